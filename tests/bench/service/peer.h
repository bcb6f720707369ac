// The servers that kernd is compared with. Each is a process of its own, service_peer, with the heap as it comes.
#pragma once

#include <string>

#include "kernd/v1/compute.pb.h"

namespace kernd::bench {

// Answers with op(A) op(B) of two F32 matrices and looks at nothing else.
void Multiply(const v1::MatmulRequest& request, v1::MatmulReply& reply);

// Each serves until the process ends, and prints its address once it can be called. Exit code.
//
// Handlers as the tutorials have them, on generated messages. Synchronous: gRPC's own threads.
int ServeProto();
// Raw messages: the request's bytes are looked at by nobody, the reply's were made before. Completion queues with a
// thread each, `threads` of them. What is left of a gRPC server when everything that it does is taken away.
int ServeRaw(int threads);
// Plain sockets on `target`, a thread for each connection.
int ServeSocket(const std::string& target);

}  // namespace kernd::bench
