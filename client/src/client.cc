#include "kernd/client/client.h"

#include <string>
#include <utility>

#include "client/src/decode.h"
#include "client/src/encode.h"
#include "client/src/status.h"
#include "client/src/transport.h"
#include "grpc/health/v1/health.pb.h"

namespace kernd::client {

class Client::Impl {
 public:
  explicit Impl(const ClientOptions& options) : transport_(options) {}

  // Sends what was encoded to `method`, and decodes the answer.
  template <typename Reply>
  absl::StatusOr<Reply> Call(const char* method, const absl::StatusOr<Pieces>& request, const CallOptions& options,
                             absl::StatusOr<Reply> (*decode)(grpc::ByteBuffer)) const {
    KERND_CLIENT_RETURN_IF_ERROR(request.status());
    absl::StatusOr<grpc::ByteBuffer> reply = transport_.Call(method, *request, options);
    KERND_CLIENT_RETURN_IF_ERROR(reply.status());
    return decode(*std::move(reply));
  }

  absl::Status AwaitConnection(absl::Duration timeout) const {
    return transport_.AwaitConnection(absl::Now() + timeout);
  }

 private:
  const Transport transport_;
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
  return impl_->AwaitConnection(timeout);
}

absl::StatusOr<MatmulReply> Client::Matmul(const MatmulArgs& args, const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Compute/Matmul", EncodeMatmul(args, options), options, DecodeMatmul);
}

absl::StatusOr<AttentionReply> Client::Attention(const AttentionArgs& args, const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Compute/Attention", EncodeAttention(args, options), options, DecodeAttention);
}

absl::StatusOr<PlanReply> Client::Plan(const MatmulArgs& args, const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Compute/Plan", EncodePlan(args, options), options, DecodePlan);
}

absl::StatusOr<PlanReply> Client::Plan(const AttentionArgs& args, const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Compute/Plan", EncodePlan(args, options), options, DecodePlan);
}

absl::StatusOr<Capabilities> Client::GetCapabilities(const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Device/GetCapabilities", Pieces(), options, DecodeCapabilities);
}

absl::StatusOr<std::vector<KernelInfo>> Client::ListKernels(const CallOptions& options) const {
  return impl_->Call("/kernd.v1.Device/ListKernels", Pieces(), options, DecodeKernels);
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
