// The peer of the small-call bench: a bare asynchronous gRPC server. One completion queue, one thread, a raw method
// that answers every Matmul with the same bytes. What is left when everything that kernd does is taken away.
//
// usage: grpc_echo_server REPLY_BYTES; prints its port.
#include <grpcpp/server_builder.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "kernd/v1/compute.grpc.pb.h"

namespace {

using Service = kernd::v1::Compute::WithRawMethod_Matmul<kernd::v1::Compute::Service>;

class Call {
 public:
  Call(Service& service, grpc::ServerCompletionQueue* queue, const grpc::ByteBuffer& reply)
      : service_(service), queue_(queue), reply_(reply), writer_(&context_) {
    service_.RequestMatmul(&context_, &request_, &writer_, queue_, queue_, this);
  }

  void Proceed(bool ok) {
    if (!ok || answered_) {
      delete this;
      return;
    }
    new Call(service_, queue_, reply_);
    answered_ = true;
    writer_.Finish(reply_, grpc::Status::OK, this);
  }

 private:
  Service& service_;
  grpc::ServerCompletionQueue* queue_;
  const grpc::ByteBuffer& reply_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_;
  bool answered_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  kernd::v1::MatmulReply reply;
  reply.mutable_d()->set_data(std::string(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 0, '\0'));
  const grpc::Slice slice(reply.SerializeAsString());
  const grpc::ByteBuffer buffer(&slice, 1);

  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  for (int i = 0; i < 64; ++i) new Call(service, queue.get(), buffer);
  std::printf("%d\n", port);
  std::fflush(stdout);
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}
