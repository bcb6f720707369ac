#include "kernd/client/client.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/src/connection.h"
#include "client/src/decode.h"
#include "client/src/encode.h"
#include "client/src/own_session.h"
#include "client/src/relay.h"
#include "client/src/session_link.h"
#include "client/src/status.h"
#include "grpc/health/v1/health.pb.h"
#include "kernd/v1/device.pb.h"

namespace kernd::client {

class Client::Impl {
 public:
  explicit Impl(const ClientOptions& options) : wire_(std::make_shared<Wire>(options)), own_session_(wire_) {}

  const Transport& transport() const { return wire_->transport; }
  const std::shared_ptr<Wire>& wire() const { return wire_; }

  // Sends what was encoded to `method`, and decodes the answer.
  template <typename Reply>
  absl::StatusOr<Reply> Call(const char* method, const absl::StatusOr<Pieces>& request, const CallOptions& options,
                             absl::StatusOr<Reply> (*decode)(grpc::ByteBuffer)) const {
    KERND_CLIENT_RETURN_IF_ERROR(request.status());
    absl::StatusOr<grpc::ByteBuffer> reply = transport().Call(method, *request, options);
    KERND_CLIENT_RETURN_IF_ERROR(reply.status());
    return decode(*std::move(reply));
  }

  // The tensors go the way that ClientOptions::transfer says.
  template <typename Call>
  absl::StatusOr<typename Call::Reply> Compute(const typename Call::Args& args, const CallOptions& options) {
    const ClientOptions& settings = transport().options();
    const absl::StatusOr<CallTerms> terms = TermsOf(options, settings);
    KERND_CLIENT_RETURN_IF_ERROR(terms.status());
    if (const Travellers travellers = TravellersOf<Call>(args, settings); travellers.Any()) {
      KERND_CLIENT_RETURN_IF_ERROR(Call::Encode(args, options, {}).status());
      std::optional<absl::StatusOr<typename Call::Reply>> reply =
          Ahead<Call>(travellers, args, options, *terms, settings.transfer == Transfer::kStriped);
      if (reply) return *std::move(reply);
    }
    return CallInline<Call>(transport(), {}, args, options, *terms);
  }

 private:
  // Empty, unless it `must` be so: the daemon does not let tensors be resident, or has no room for them now.
  template <typename Call>
  std::optional<absl::StatusOr<typename Call::Reply>> Ahead(const Travellers& travellers,
                                                            const typename Call::Args& args, const CallOptions& options,
                                                            const CallTerms& terms, bool must) {
    for (bool again = true;; again = false) {
      const absl::StatusOr<std::shared_ptr<const SessionLink>> link = own_session_.Get(terms);
      if (!link.ok()) {
        if (OwnSession::IsRefusal(link.status()) && !must) return std::nullopt;
        return link.status();
      }
      bool refused = false;
      absl::StatusOr<typename Call::Reply> reply =
          Relay<Call>(**link, travellers, args, options, (*link)->With(terms), &refused);
      if (refused && !must) return std::nullopt;
      if (!again || !OwnSession::IsGone(reply.status())) return reply;
      own_session_.Drop(*link);
    }
  }

  const std::shared_ptr<Wire> wire_;
  OwnSession own_session_;
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

absl::StatusOr<Client> Client::Connect(const ClientOptions& options) {
  KERND_CLIENT_RETURN_IF_ERROR(ValidateOptions(options));
  return Client(std::make_unique<Impl>(options));
}

absl::Status Client::AwaitConnection(absl::Duration timeout) const {
  return impl_->transport().AwaitConnection(absl::Now() + timeout);
}

absl::StatusOr<MatmulReply> Client::Matmul(const MatmulArgs& args, const CallOptions& options) const {
  return impl_->Compute<MatmulCall>(args, options);
}

absl::StatusOr<AttentionReply> Client::Attention(const AttentionArgs& args, const CallOptions& options) const {
  return impl_->Compute<AttentionCall>(args, options);
}

absl::StatusOr<PlanReply> Client::Plan(const MatmulArgs& args, const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Compute/Plan", EncodePlan(args, options), options, DecodePlan);
}

absl::StatusOr<PlanReply> Client::Plan(const AttentionArgs& args, const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Compute/Plan", EncodePlan(args, options), options, DecodePlan);
}

absl::StatusOr<Session> Client::OpenSession(const SessionOptions& session, const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = TermsOf(options, impl_->transport().options());
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  absl::StatusOr<std::shared_ptr<const SessionLink>> link = SessionLink::Open(impl_->wire(), session, *terms);
  KERND_CLIENT_RETURN_IF_ERROR(link.status());
  return Session(*std::move(link));
}

Session Client::AttachSession(const std::string& id, std::uint64_t server_epoch) const {
  return Session(std::make_shared<const SessionLink>(
      impl_->wire(),
      OpenedSession{.id = id, .epoch = server_epoch, .endpoint = impl_->transport().options().endpoint}));
}

absl::StatusOr<Capabilities> Client::GetCapabilities(const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Device/GetCapabilities", Pieces(), options, DecodeCapabilities);
}

absl::StatusOr<std::vector<KernelInfo>> Client::ListKernels(const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Device/ListKernels", Pieces(), options, DecodeKernels);
}

absl::Status Client::Autotune(const AutotuneArgs& args, const AutotuneCallback& on_progress,
                              const CallOptions& options) const {
  constexpr absl::Duration kLongest = absl::Hours(24), kMore = absl::Minutes(1);
  v1::AutotuneRequest message;
  for (const std::string& shape : args.shapes) message.add_shapes(shape);
  message.set_budget_s(absl::ToDoubleSeconds(args.budget));  // what is no budget the daemon names
  Pieces request;
  request.Message(message);
  CallOptions timed = options;
  if (!timed.timeout) timed.timeout = args.budget > absl::ZeroDuration() ? args.budget + kMore : kLongest;
  const absl::StatusOr<CallTerms> terms = TermsOf(timed, impl_->transport().options());
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  return impl_->transport().Listen("/kernd.v1.Device/Autotune", request, *terms, [&](grpc::ByteBuffer reply) {
    const absl::StatusOr<AutotuneProgress> progress = DecodeAutotune(std::move(reply));
    if (progress.ok() && on_progress) on_progress(*progress);
    return progress.status();
  });
}

absl::StatusOr<HealthStatus> Client::Health(std::string_view service, const CallOptions& options) const {
  grpc::health::v1::HealthCheckRequest message;
  message.set_service(std::string(service));
  Pieces request;
  request.Message(message);
  return impl_->Call("/grpc.health.v1.Health/Check", absl::StatusOr<Pieces>(std::move(request)), options, DecodeHealth);
}

std::string_view Version() {
  return KERND_VERSION;
}

}  // namespace kernd::client
