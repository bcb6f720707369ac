#include "server/rpc/server_call.h"

#include <grpcpp/alarm.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"
#include "server/rpc/status_codec.h"

namespace kernd::rpc {
namespace {

// What a transfer of `bytes` may take: a fixed time, and a second for each MiB.
absl::Duration Allowed(absl::Duration stall, std::int64_t bytes) {
  return stall + absl::Seconds(1) * (bytes >> 20);
}

absl::Time DeadlineOf(const grpc::ServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

// Of a stream. What is not larger is copied sooner than another thread would be awake.
constexpr std::size_t kQuickMessage = 64 << 10;

// What generic and ordinary calls have in common. Every pending event holds a reference, so a call lives until its last
// event has fired and its handler has let go. All events of a call fire on the one thread of its queue; Reply and Fail
// may come from another, and where a bulk thread has the call no event of it is pending but that of its end.
class ServerCall : public Exchange, public std::enable_shared_from_this<ServerCall> {
 public:
  ServerCall(CallEnvironment& environment, grpc::ServerCompletionQueue* queue)
      : environment_(environment), queue_(queue), ended_(this, &ServerCall::OnEnded) {}

  std::optional<std::string> Metadata(const char* key) final {
    const auto& all = context().client_metadata();
    const auto it = all.find(key);
    if (it == all.end()) return std::nullopt;
    return std::string(it->second.data(), it->second.size());
  }

  void Reply(grpc::ByteBuffer reply) final {
    Leaves(reply);
    SendReply(std::move(reply), ended_.Arm());
  }

  void Fail(const absl::Status& status) final {
    record.status = status;
    if (const std::optional<absl::Duration> retry = DetailOf(status).retry_after) {
      context().AddTrailingMetadata("grpc-retry-pushback-ms", absl::StrCat(absl::ToInt64Milliseconds(*retry)));
    }
    SendStatus(ToGrpc(status), ended_.Arm());
  }

 protected:
  // A tag that keeps its call alive from Arm until it has fired.
  class Tag final : public EventTag {
   public:
    using Method = void (ServerCall::*)(bool ok);
    Tag(ServerCall* call, Method method) : call_(call), method_(method) {}

    void* Arm() {
      owner_ = call_->shared_from_this();
      return this;
    }
    // For an event that will never fire.
    void Disarm() { owner_.reset(); }
    void Fire(bool ok) final {
      const std::shared_ptr<ServerCall> owner = std::move(owner_);
      (owner.get()->*method_)(ok);
    }

   private:
    ServerCall* const call_;
    const Method method_;
    std::shared_ptr<ServerCall> owner_;
  };

  virtual grpc::ServerContext& context() = 0;
  virtual void SendReply(grpc::ByteBuffer reply, void* tag) = 0;
  virtual void SendStatus(const grpc::Status& status, void* tag) = 0;

  // The headers are here: note who calls what, and let it in or refuse it. Null: refused, and answered.
  const Method* Enter(const std::string& path) {
    arrived = core::SteadyNow();
    core::StageTimer timer(record.stages, core::Stage::kHeaders);
    environment_.in_flight.fetch_add(1, std::memory_order_relaxed);
    environment_.arrived.fetch_add(1, std::memory_order_relaxed);
    deadline = DeadlineOf(context());
    const Method* method = environment_.methods.Find(path);
    record.method = method != nullptr ? method->name : "unknown";
    if (method == nullptr) {
      timer.Stop();
      Fail(WithDetail(absl::UnimplementedError(absl::StrCat("no method ", path.substr(0, 200))),
                      {.reason = std::string(reason::kUnsupported)}));
      return nullptr;
    }
    const absl::Status entered = environment_.gate.Enter(*method, context(), deadline, body_);
    timer.Stop();
    if (!entered.ok()) {
      Fail(entered);
      return nullptr;
    }
    return method;
  }

  // The body is here: it is charged as what it is.
  absl::Status Settle(const Method& method) {
    record.request_bytes = static_cast<std::int64_t>(request.Length());
    if (left_) {
      return WithDetail(absl::CancelledError("cancelled by the client before the call could run"),
                        {.reason = std::string(reason::kCancelled)});
    }
    return environment_.gate.Settle(method, record.request_bytes, body_);
  }

  // A message of a stream is here. The charge is that of the largest so far, as the next one is on its way already.
  absl::Status SettleMessage(const Method& method) {
    const std::int64_t bytes = static_cast<std::int64_t>(request.Length());
    record.request_bytes += bytes;
    return bytes <= body_.bytes() ? absl::OkStatus() : environment_.gate.Settle(method, bytes, body_);
  }

  void Handle(const Method& method) {
    if (const absl::Status settled = Settle(method); !settled.ok()) return Fail(settled);
    if (!method.bulk) return method.handler(shared_from_this());
    environment_.bulk.Run([&method, call = shared_from_this()] { method.handler(call); });
  }

  // A message goes out.
  void Leaves(const grpc::ByteBuffer& message) {
    const std::int64_t bytes = static_cast<std::int64_t>(message.Length());
    record.reply_bytes += bytes;
    environment_.watchdog.Expect(&context(), Allowed(environment_.send_stall, bytes));
  }

  // The client has its answer, or has gone before it. Called by done-tags of generic calls.
  void Left() {
    left_ = context().IsCancelled();
    if (left_ && on_abandon) on_abandon();
    on_abandon = nullptr;
  }

  bool left() const { return left_; }

  // Why nobody waits for the reply any more.
  absl::Status LeftEarly() const {
    return deadline <= absl::Now()
               ? WithDetail(absl::DeadlineExceededError("the deadline has passed before the last message"),
                            {.reason = std::string(reason::kDeadline)})
               : WithDetail(absl::CancelledError("the client left before it had the reply"),
                            {.reason = std::string(reason::kCancelled)});
  }

  // The body is awaited.
  void Await() { environment_.watchdog.Expect(&context(), Allowed(environment_.receive_stall, body_.bytes())); }
  // It has arrived, or a message has gone out.
  void Arrived() { environment_.watchdog.Forget(&context()); }

  CallEnvironment& environment_;
  grpc::ServerCompletionQueue* const queue_;

 private:
  void OnEnded(bool ok) {
    environment_.watchdog.Forget(&context());
    on_abandon = nullptr;
    if (!ok && record.status.ok()) {
      record.status = WithDetail(absl::CancelledError("the client left before it had the reply"),
                                 {.reason = std::string(reason::kCancelled)});
    }
    record.total = core::Since(arrived);
    record.peer = context().peer();  // only now that the reply is out: it costs a microsecond
    body_.Reset();
    request.Clear();
    environment_.observer.CallEnded(record);
    environment_.in_flight.fetch_sub(1, std::memory_order_release);
  }

  core::ByteBudget::Lease body_;
  std::atomic<bool> left_ = false;  // read by bulk threads, too
  Tag ended_;
};

// One of the three kinds of method; which one is known when its headers are here.
class GenericCall final : public ServerCall {
 public:
  GenericCall(CallEnvironment& environment, grpc::AsyncGenericService& service, grpc::ServerCompletionQueue* queue)
      : ServerCall(environment, queue),
        service_(service),
        stream_(&context_),
        arrived_(this, static_cast<Tag::Method>(&GenericCall::OnArrived)),
        read_(this, static_cast<Tag::Method>(&GenericCall::OnRead)),
        written_(this, static_cast<Tag::Method>(&GenericCall::OnWritten)),
        woken_(this, static_cast<Tag::Method>(&GenericCall::OnWoken)),
        done_(this, static_cast<Tag::Method>(&GenericCall::OnDone)) {}

  void Listen() {
    context_.AsyncNotifyWhenDone(done_.Arm());
    service_.RequestCall(&context_, &stream_, queue_, queue_, arrived_.Arm());
  }

 private:
  grpc::ServerContext& context() override { return context_; }

  void OnArrived(bool ok) {
    if (!ok) return done_.Disarm();  // the server stops; a call that never came is never done
    method_ = Enter(context_.method());
    if (method_ != nullptr) {
      if (method_->sink != nullptr) sink_ = method_->sink(*this);
      Read();
    }
    ListenGeneric(environment_, service_, queue_);  // after: this call is under way, and enough others are waited for
  }

  void Read() {
    reading_since_ = core::SteadyNow();
    Await();
    stream_.Read(&request, read_.Arm());
  }

  void OnRead(bool ok) {
    Arrived();
    record.stages.Add(core::Stage::kDecode, core::Since(reading_since_));
    if (sink_ != nullptr) return ok ? TakeMessage() : EndSink();
    if (!ok) {
      return Fail(WithDetail(absl::InvalidArgumentError("the call ended without a whole request message"),
                             {.reason = std::string(reason::kMalformed)}));
    }
    method_->source != nullptr ? BeginSource() : Handle(*method_);
  }

  // Client streaming: one read in flight, and the next only when this one's bytes are where they belong.
  void TakeMessage() {
    const bool quick = taken_one_ && request.Length() <= kQuickMessage;
    taken_one_ = true;
    quick ? Take() : environment_.bulk.Run([this, call = shared_from_this()] { Take(); });
  }

  void Take() {
    absl::Status taken = SettleMessage(*method_);
    if (taken.ok()) taken = sink_->Take(request);
    request.Clear();
    if (!taken.ok()) return Fail(taken);
    Read();
  }

  void EndSink() {
    absl::StatusOr<grpc::ByteBuffer> reply = sink_->End();
    if (!reply.ok()) return Fail(reply.status());
    Reply(*std::move(reply));
  }

  // Server streaming: one write in flight, and the next only when gRPC has taken it, so that a slow reader holds one
  // message.
  void BeginSource() {
    if (const absl::Status settled = Settle(*method_); !settled.ok()) return Fail(settled);
    absl::StatusOr<std::unique_ptr<MessageSource>> source = method_->source(*this);
    if (!source.ok()) return Fail(source.status());
    source_ = *std::move(source);
    WriteNext();
  }

  // A source that wakes its call has little to send, and is asked where it wakes it.
  void WriteNext() {
    alarm_.has_value() ? Write() : environment_.bulk.Run([this, call = shared_from_this()] { Write(); });
  }

  void Write() {
    if (left()) return EndSource(LeftEarly());
    if (!source_->Ready()) {
      idle_ = true;
      return;
    }
    bool last = false;
    absl::StatusOr<grpc::ByteBuffer> message = source_->Next(last);
    if (!message.ok()) return EndSource(message.status());
    if (last) {
      source_.reset();
      return Reply(*std::move(message));
    }
    Leaves(*message);
    stream_.Write(*message, written_.Arm());
  }

  void EndSource(const absl::Status& status) {
    source_.reset();
    Fail(status);
  }

  void OnWritten(bool ok) {
    Arrived();
    ok ? WriteNext() : EndSource(LeftEarly());
  }

  // An alarm that is due brings the source's word to this call's own thread. One at a time; the source is gone, and
  // wakes no more, before the call has ended.
  std::function<void()> Waker() override {
    alarm_.emplace();
    return [weak = weak_from_this()] {
      const std::shared_ptr<ServerCall> call = weak.lock();
      if (call == nullptr) return;
      auto& self = static_cast<GenericCall&>(*call);
      if (!self.waking_.exchange(true)) {
        self.alarm_->Set(self.queue_, std::chrono::system_clock::now(), self.woken_.Arm());
      }
    };
  }

  void OnWoken(bool /*ok*/) {
    waking_ = false;
    if (std::exchange(idle_, false)) Write();
  }

  void OnDone(bool /*ok*/) {
    Left();
    if (std::exchange(idle_, false)) Write();  // with nothing under way there is no other event that would tell
  }

  void SendReply(grpc::ByteBuffer reply, void* tag) override {
    stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc::Status::OK, tag);
  }
  void SendStatus(const grpc::Status& status, void* tag) override { stream_.Finish(status, tag); }

  grpc::AsyncGenericService& service_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  Tag arrived_, read_, written_, woken_, done_;
  const Method* method_ = nullptr;
  std::unique_ptr<MessageSink> sink_;  // of a method whose client streams
  bool taken_one_ = false;
  std::unique_ptr<MessageSource> source_;  // of one that streams itself
  bool idle_ = false;                      // of which, with nothing to send yet
  std::atomic<bool> waking_ = false;
  std::optional<grpc::Alarm> alarm_;  // of a source that wakes: making one takes a lock of gRPC's
  core::SteadyTime reading_since_;
};

class OrdinaryCall final : public ServerCall {
 public:
  OrdinaryCall(CallEnvironment& environment, const std::string& path, RequestMethod request_method,
               grpc::ServerCompletionQueue* queue)
      : ServerCall(environment, queue),
        path_(path),
        request_method_(std::move(request_method)),
        writer_(&context_),
        arrived_(this, static_cast<Tag::Method>(&OrdinaryCall::OnArrived)) {}

  void Listen() { request_method_(&context_, &request, &writer_, queue_, arrived_.Arm()); }

 private:
  grpc::ServerContext& context() override { return context_; }

  void OnArrived(bool ok) {
    if (!ok) return;
    ListenOrdinary(environment_, path_, request_method_, queue_);
    if (const Method* method = Enter(path_)) Handle(*method);
  }

  void SendReply(grpc::ByteBuffer reply, void* tag) override { writer_.Finish(reply, grpc::Status::OK, tag); }
  void SendStatus(const grpc::Status& status, void* tag) override { writer_.FinishWithError(status, tag); }

  const std::string path_;
  const RequestMethod request_method_;
  grpc::ServerContext context_;
  RawWriter writer_;
  Tag arrived_;
};

}  // namespace

void ListenGeneric(CallEnvironment& environment, grpc::AsyncGenericService& service,
                   grpc::ServerCompletionQueue* queue) {
  std::make_shared<GenericCall>(environment, service, queue)->Listen();
}

void ListenOrdinary(CallEnvironment& environment, const std::string& path, RequestMethod request_method,
                    grpc::ServerCompletionQueue* queue) {
  std::make_shared<OrdinaryCall>(environment, path, std::move(request_method), queue)->Listen();
}

}  // namespace kernd::rpc
