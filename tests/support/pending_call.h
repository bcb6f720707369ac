// Calls that are in flight for as long as a test wants to look at them.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <memory>
#include <thread>

#include "gtest/gtest.h"
#include "kernd/v1/compute.pb.h"
#include "tests/support/daemon.h"
#include "tests/support/requests.h"

namespace kernd::testing {

// A body of 1.5 MiB and 270 million exponentials: in flight for long enough to look at, on any machine.
inline v1::AttentionRequest LongCall() {
  v1::AttentionRequest request;
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = F32({1, 1, 16384, 8});
  return request;
}

// Hours of work on one thread.
inline v1::AttentionRequest EndlessCall() {
  v1::AttentionRequest request;
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = F32({1, 1, 1 << 21, 1});
  return request;
}

// For tests of such calls: on a GPU they are over too soon, or cannot be stopped.
#define KERND_NEEDS_SLOW_KERNELS() \
  if (::kernd::testing::OnGpu()) GTEST_SKIP() << "needs a kernel that runs long and can be stopped: the CPU's"

// Until the daemon's one call is neither read nor queued any more, but runs. A call that is cancelled before that never
// reaches its kernel.
inline bool WaitUntilItRuns(const Daemon& daemon) {
  for (int tries = 0; daemon.Metrics()["kernd_memory_used_bytes{pool=\"memory\"}"] == 0; ++tries) {
    if (tries == 10'000) return false;
  }
  return daemon.WaitForMetric("kernd_queue_depth", 0);
}

// A unary call that runs in the background.
// Its own thread waits for the answer: gRPC's connections make progress only while somebody looks at a queue.
class PendingCall {
 public:
  PendingCall(const std::shared_ptr<grpc::Channel>& channel, const google::protobuf::Message& request,
              std::chrono::milliseconds timeout = std::chrono::seconds(60),
              const char* path = "/kernd.v1.Compute/Attention")
      : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
    const grpc::Slice slice(request.SerializeAsString());
    call_ = stub_.PrepareUnaryCall(&context_, path, grpc::ByteBuffer(&slice, 1), &queue_);
    call_->StartCall();
    call_->Finish(&answer_, &status_, nullptr);
    thread_ = std::thread([this] {
      void* tag = nullptr;
      bool ok = false;
      queue_.Next(&tag, &ok);
    });
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status Finish() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  ~PendingCall() { Finish(); }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> call_;
  grpc::ByteBuffer answer_;
  grpc::Status status_;
  std::thread thread_;
};

}  // namespace kernd::testing
