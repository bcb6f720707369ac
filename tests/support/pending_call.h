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

// Attention of one tensor to itself.
inline v1::AttentionRequest SelfAttention(const v1::Tensor& x) {
  v1::AttentionRequest request;
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = *op.mutable_k() = *op.mutable_v() = x;
  return request;
}

// Rows and heads of one channel, which cost most for their bytes. On a GPU a head is half a second's work for an H200,
// and two of them are a launch, before and after which a call can be stopped.
inline v1::Tensor HeadsOfAGpu(std::int64_t heads) {
  return F32({1, heads, 1 << 18, 1});
}

// What keeps a daemon busy for long enough to look at, on any machine: one CPU thread with 270 million exponentials, a
// GPU with five hundred times as many.
inline v1::Tensor LongOperand() {
  return OnGpu() ? HeadsOfAGpu(2) : F32({1, 1, 16384, 8});
}
inline v1::AttentionRequest LongCall() {
  return SelfAttention(LongOperand());
}

// Three times as long on a GPU, whose machine may be slow to answer.
inline v1::Tensor LongerOperand() {
  return OnGpu() ? HeadsOfAGpu(6) : LongOperand();
}

// As long as a test may want to look, and it can be stopped: on one thread it takes hours, on a GPU some seconds.
inline v1::AttentionRequest EndlessCall() {
  return SelfAttention(OnGpu() ? HeadsOfAGpu(16) : F32({1, 1, 1 << 21, 1}));
}

// The flag with which a daemon runs one such call at a time.
inline const char* OneAtATime() {
  return OnGpu() ? "--gpu-executors=1" : "--cpu-threads=1";
}

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
