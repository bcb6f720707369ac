#include "server/rpc/server.h"

#include <grpcpp/alarm.h>
#include <grpcpp/ext/channelz_service_plugin.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "kernd/v1/compute.grpc.pb.h"
#include "kernd/v1/device.grpc.pb.h"
#include "kernd/v1/kv_cache.grpc.pb.h"
#include "kernd/v1/tensors.grpc.pb.h"

namespace kernd::rpc {
namespace {

// Calls waited for on each queue; an arrival asks for the next at once, so this only covers a burst.
constexpr int kPostedCalls = 64;

constexpr absl::Duration kDrainPoll = absl::Milliseconds(1);
constexpr absl::Duration kCloseGrace = absl::Milliseconds(500);
constexpr absl::Duration kSilence = absl::Milliseconds(50);

// An event that tells that all before it in a queue have fired.
struct Barrier final : EventTag {
  absl::Notification passed;
  void Fire(bool) override { passed.Notify(); }
};

int Milliseconds(absl::Duration d) {
  return static_cast<int>(std::min<std::int64_t>(absl::ToInt64Milliseconds(d), INT_MAX));
}

}  // namespace

// The services of the protocol. One method of each is ordinary (see server_call.h); the others are generic.
struct Server::Services {
  using Compute = v1::Compute;
  using Tensors = v1::Tensors;
  using KvCache = v1::KvCache;
  using Device = v1::Device;

  Compute::WithRawMethod_Plan<Compute::WithGenericMethod_Matmul<
      Compute::WithGenericMethod_Attention<Compute::WithGenericMethod_Run<Compute::Service>>>>
      compute;
  Tensors::WithRawMethod_List<Tensors::WithGenericMethod_OpenSession<
      Tensors::WithGenericMethod_CloseSession<Tensors::WithGenericMethod_Put<Tensors::WithGenericMethod_Get<
          Tensors::WithGenericMethod_Delete<Tensors::WithGenericMethod_RegisterSharedMemory<
              Tensors::WithGenericMethod_UnregisterSharedMemory<Tensors::Service>>>>>>>>
      tensors;
  KvCache::WithRawMethod_Describe<
      KvCache::WithGenericMethod_Create<KvCache::WithGenericMethod_Append<KvCache::WithGenericMethod_Fork<
          KvCache::WithGenericMethod_Truncate<KvCache::WithGenericMethod_Free<KvCache::Service>>>>>>
      kv_cache;
  Device::WithRawMethod_GetCapabilities<Device::WithGenericMethod_ListKernels<
      Device::WithGenericMethod_Autotune<Device::WithGenericMethod_TrimPool<Device::Service>>>>
      device;
};

Server::Server(const MethodTable& methods, Gate& gate, core::CallObserver& observer, const TransportOptions& options)
    : bulk_(options.io_threads),
      environment_{.methods = methods,
                   .gate = gate,
                   .observer = observer,
                   .watchdog = watchdog_,
                   .bulk = bulk_,
                   .receive_stall = options.receive_stall,
                   .send_stall = options.send_stall},
      gate_(gate),
      services_(std::make_unique<Services>()) {}

Server::~Server() {
  if (server_ != nullptr) Drain(absl::ZeroDuration());
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const TransportOptions& options, const MethodTable& methods,
                                                      Gate& gate, core::CallObserver& observer) {
  std::unique_ptr<Server> server(new Server(methods, gate, observer, options));
  if (const absl::Status built = server->Build(options); !built.ok()) return built;
  return server;
}

absl::Status Server::Build(const TransportOptions& options) {
  absl::StatusOr<std::unique_ptr<Acceptor>> acceptor = Acceptor::Bind(options.listen);
  if (!acceptor.ok()) return acceptor.status();
  acceptor_ = *std::move(acceptor);

  // Reflection and channelz are gRPC's own services; as they are synchronous, gRPC serves them from threads that poll
  // nothing as long as our queues do.
  [[maybe_unused]] static const bool plugins = [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::channelz::experimental::InitChannelzService();
    return true;
  }();

  grpc::ServerBuilder builder;
  builder.RegisterAsyncGenericService(&generic_);
  for (grpc::Service* service :
       {static_cast<grpc::Service*>(&services_->compute), static_cast<grpc::Service*>(&services_->tensors),
        static_cast<grpc::Service*>(&services_->kv_cache), static_cast<grpc::Service*>(&services_->device),
        health_.service()}) {
    builder.RegisterService(service);
  }
  for (int i = 0; i < options.io_threads; ++i) queues_.push_back(builder.AddCompletionQueue());
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);

  // The transport, each setting with its reason:
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.SetMaxSendMessageSize(-1);  // the engine bounds replies
  grpc::ResourceQuota quota("kernd");
  quota.Resize(static_cast<std::size_t>(options.quota_bytes));  // a body that lied about its size ends here
  builder.SetResourceQuota(quota);
  builder.AddChannelArgument(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET,
                             1);  // identity only: no inflated bombs
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(options.handshake_timeout));  // silent peers
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             10'000);  // clients may ping long calls
  if (options.max_connection_age != absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options.max_connection_age));
  }
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 1);

  auto sink = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    queues_.clear();
    return absl::InternalError("gRPC could not start the server");
  }
  for (const auto& queue : queues_) {
    Listen(queue.get());
    threads_.emplace_back([this, q = queue.get()] { Poll(q); });
  }
  acceptor_->Start(std::move(sink));
  return absl::OkStatus();
}

void Server::Listen(grpc::ServerCompletionQueue* queue) {
  for (int i = 0; i < kPostedCalls; ++i) ListenGeneric(environment_, generic_, queue);
  // `request` is the generated RequestXxx of the raw method.
  const auto ordinary = [&](const std::string& path, auto& service, auto request) {
    ListenOrdinary(
        environment_, path,
        [&service, request](grpc::ServerContext* context, grpc::ByteBuffer* body, RawWriter* writer,
                            grpc::ServerCompletionQueue* q,
                            void* tag) { (service.*request)(context, body, writer, q, q, tag); },
        queue);
  };
  ordinary("/kernd.v1.Compute/Plan", services_->compute, &decltype(services_->compute)::RequestPlan);
  ordinary("/kernd.v1.Tensors/List", services_->tensors, &decltype(services_->tensors)::RequestList);
  ordinary("/kernd.v1.KvCache/Describe", services_->kv_cache, &decltype(services_->kv_cache)::RequestDescribe);
  ordinary("/kernd.v1.Device/GetCapabilities", services_->device, &decltype(services_->device)::RequestGetCapabilities);
  health_.Listen(queue);
}

void Server::Poll(grpc::ServerCompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<EventTag*>(tag)->Fire(ok);
}

// Cancelled calls still end, each with an operation on its queue, and gRPC aborts where a queue is closed before. A
// kernel that runs leaves at its next step. A call may lie in a queue and not be counted yet: an alarm goes in behind
// it, and after that nothing may have come.
void Server::AwaitQuiet() {
  const auto quiet = [this] { return in_flight() == 0 && health_.active() == 0; };
  bool flushed = false;
  while (!flushed || !quiet()) {
    while (!quiet()) absl::SleepFor(kDrainPoll);
    for (const auto& queue : queues_) {
      Barrier barrier;
      grpc::Alarm alarm;
      alarm.Set(queue.get(), std::chrono::system_clock::now(), &barrier);
      barrier.passed.WaitForNotification();
    }
    flushed = true;
  }
}

// A refusal reaches its client if the connection is up until it has been read. Clients that were refused come again
// when they were told to, in a second; those that do not wait are not waited for, either.
void Server::AwaitSilence(absl::Time limit) {
  std::int64_t heard = -1;
  absl::Time since = absl::Now();
  while (absl::Now() < std::min(since + kSilence, limit)) {
    const std::int64_t arrived = environment_.arrived.load(std::memory_order_relaxed);
    if (arrived != heard || in_flight() != 0) since = absl::Now();
    heard = arrived;
    absl::SleepFor(kDrainPoll);
  }
}

bool Server::Drain(absl::Duration timeout) {
  gate_.Close();
  acceptor_->Stop();
  health_.EndWatches();
  // Waited for here and not by gRPC, which waits for connections as well: a client that is stopped, or does not look at
  // its sockets, would hold the daemon until the deadline without a call in flight.
  const absl::Time deadline = absl::Now() + timeout;
  while (in_flight() != 0 && absl::Now() < deadline) absl::SleepFor(kDrainPoll);
  const bool clean = in_flight() == 0;
  if (clean) {
    AwaitSilence(absl::Now() + kCloseGrace);
    // Connections end before the server does. A call that comes while gRPC shuts down is reset, which its client sees
    // as CANCELLED and does not repeat; one whose connection ends is UNAVAILABLE, and goes elsewhere.
    const absl::Time grace = absl::Now() + kCloseGrace;
    while (health_.active() != 0 && absl::Now() < grace) absl::SleepFor(kDrainPoll);
    while (acceptor_->Disconnect() != 0 && absl::Now() < grace) absl::SleepFor(kDrainPoll);
  }
  // What is left is cancelled.
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  AwaitQuiet();
  bulk_.Stop();  // nothing is left to do, but the last to have done something may still be at its end
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& thread : threads_) thread.join();
  server_.reset();
  queues_.clear();
  return clean;
}

}  // namespace kernd::rpc
