#include "server/rpc/health.h"

#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/async_unary_call.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernd/kernels/error.h"
#include "server/rpc/server_call.h"
#include "server/rpc/status_codec.h"

namespace kernd::rpc {
namespace {

namespace pb = grpc::health::v1;

constexpr char kLiveness[] = "liveness";
constexpr const char* kServices[] = {"", "kernd.v1.Compute", "kernd.v1.Device", "kernd.v1.KvCache", "kernd.v1.Tensors"};

// As calls are told (server/rpc/gate.h).
absl::Status Draining() {
  return WithDetail(absl::UnavailableError("kernd is draining"),
                    {.reason = std::string(reason::kDraining), .retry_after = absl::Seconds(1)});
}

}  // namespace

struct Health::Service : pb::Health::WithAsyncMethod_Check<pb::Health::WithAsyncMethod_Watch<pb::Health::Service>> {};

// Check: one question, one answer. Deletes itself.
class Health::CheckCall final : public EventTag {
 public:
  CheckCall(Health& health, grpc::ServerCompletionQueue* queue) : health_(health), queue_(queue), writer_(&context_) {
    health_.service_->RequestCheck(&context_, &request_, &writer_, queue_, queue_, this);
  }

  void Fire(bool ok) override {
    if (!ok || answered_) {
      if (answered_) health_.active_.fetch_sub(1, std::memory_order_release);
      delete this;
      return;
    }
    new CheckCall(health_, queue_);
    answered_ = true;
    health_.active_.fetch_add(1, std::memory_order_relaxed);
    pb::HealthCheckResponse response;
    {
      absl::ReaderMutexLock lock(&health_.mutex_);
      response.set_status(health_.StatusOf(request_.service()));
    }
    if (response.status() == pb::HealthCheckResponse::SERVICE_UNKNOWN) {
      writer_.FinishWithError(grpc::Status(grpc::StatusCode::NOT_FOUND, "no service of that name"), this);
    } else {
      writer_.Finish(response, grpc::Status::OK, this);
    }
  }

 private:
  Health& health_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::ServerContext context_;
  pb::HealthCheckRequest request_;
  grpc::ServerAsyncResponseWriter<pb::HealthCheckResponse> writer_;
  bool answered_ = false;
};

// Watch: one write at a time; what changes meanwhile is sent when it is out. Each pending event holds a reference.
class Health::WatchCall final : public std::enable_shared_from_this<WatchCall> {
 public:
  WatchCall(Health& health, grpc::ServerCompletionQueue* queue) : health_(health), queue_(queue), writer_(&context_) {}

  void Listen() {
    context_.AsyncNotifyWhenDone(Arm(done_, &WatchCall::OnDone));
    health_.service_->RequestWatch(&context_, &request_, &writer_, queue_, queue_,
                                   Arm(arrived_, &WatchCall::OnArrived));
  }

  void Notify(Status status) {
    absl::MutexLock lock(&mutex_);
    next_ = status;
    Advance();
  }

  void End() {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    Advance();
  }

 private:
  struct Tag final : EventTag {
    std::shared_ptr<WatchCall> owner;
    void (WatchCall::*method)(bool) = nullptr;
    void Fire(bool ok) override {
      const std::shared_ptr<WatchCall> keep = std::move(owner);
      (keep.get()->*method)(ok);
    }
  };

  void* Arm(Tag& tag, void (WatchCall::*method)(bool)) {
    tag.owner = shared_from_this();
    tag.method = method;
    return &tag;
  }

  void OnArrived(bool ok) {
    if (!ok) {
      done_.owner.reset();
      return;
    }
    health_.active_.fetch_add(1, std::memory_order_relaxed);
    std::make_shared<WatchCall>(health_, queue_)->Listen();
    bool ending = false;
    const Status now = health_.AddWatch(shared_from_this(), request_.service(), ending);
    Notify(now);
    if (ending) End();
  }

  void OnDone(bool) {
    health_.RemoveWatch(shared_from_this());
    End();  // nobody reads any more
  }

  void OnWritten(bool ok) {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) ending_ = true;
    Advance();
  }

  void OnFinished(bool) { health_.active_.fetch_sub(1, std::memory_order_release); }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (next_ && next_ != sent_) {
      sent_ = next_;
      writing_ = true;
      pb::HealthCheckResponse response;
      response.set_status(*next_);
      writer_.Write(response, Arm(written_, &WatchCall::OnWritten));
    } else if (ending_) {
      finished_ = true;
      writer_.Finish(ToGrpc(Draining()), Arm(finished_tag_, &WatchCall::OnFinished));
    }
  }

  Health& health_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::ServerContext context_;
  pb::HealthCheckRequest request_;
  grpc::ServerAsyncWriter<pb::HealthCheckResponse> writer_;
  Tag arrived_, done_, written_, finished_tag_;
  absl::Mutex mutex_;
  std::optional<Status> next_ ABSL_GUARDED_BY(mutex_), sent_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

Health::Health() : service_(std::make_unique<Service>()) {}
Health::~Health() = default;

grpc::Service* Health::service() {
  return service_.get();
}

void Health::Listen(grpc::ServerCompletionQueue* queue) {
  new CheckCall(*this, queue);
  std::make_shared<WatchCall>(*this, queue)->Listen();
}

Health::Status Health::StatusOf(const std::string& name) const {
  if (name == kLiveness) return pb::HealthCheckResponse::SERVING;
  for (const char* service : kServices) {
    if (name == service) return serving_ ? pb::HealthCheckResponse::SERVING : pb::HealthCheckResponse::NOT_SERVING;
  }
  return pb::HealthCheckResponse::SERVICE_UNKNOWN;
}

void Health::SetServing(bool serving) {
  absl::MutexLock lock(&mutex_);
  serving_ = serving;
  // Under the lock, so that two changes reach a watcher in their order.
  for (const auto& [watch, name] : watches_) watch->Notify(StatusOf(name));
}

void Health::EndWatches() {
  absl::MutexLock lock(&mutex_);
  ending_ = true;
  for (const auto& [watch, name] : watches_) watch->End();
}

Health::Status Health::AddWatch(const std::shared_ptr<WatchCall>& watch, const std::string& name, bool& ending) {
  absl::MutexLock lock(&mutex_);
  ending = ending_;
  watches_.emplace(watch, name);
  return StatusOf(name);
}

void Health::RemoveWatch(const std::shared_ptr<WatchCall>& watch) {
  absl::MutexLock lock(&mutex_);
  watches_.erase(watch);
}

}  // namespace kernd::rpc
