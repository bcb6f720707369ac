// Results and plans to the wire. Results are not copied: a reply is a few bytes of header around slices that own the
// results' memory until gRPC has sent them.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "kernd/v1/compute.pb.h"
#include "server/core/call.h"

namespace kernd::rpc {

// The reply to a finished one-step call: Timing, Memory, KernelUsed, then the results as `Tensor` fields. The slices
// keep `call` alive, and with it the memory that it is charged for. Adds to the call's encode stage.
grpc::ByteBuffer EncodeMatmulReply(const core::CallPtr& call, core::SteadyTime arrived);
grpc::ByteBuffer EncodeAttentionReply(const core::CallPtr& call, core::SteadyTime arrived);

v1::PlanReply EncodePlan(const core::Plan& plan);

void EncodeMemory(const core::MemoryUse& memory, v1::Memory& out);
void EncodeTile(const Tile& tile, v1::Tile& out);

}  // namespace kernd::rpc
