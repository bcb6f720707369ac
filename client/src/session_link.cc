#include "client/src/session_link.h"

#include <utility>

#include "client/src/status.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

// Most that a destructor waits for.
constexpr absl::Duration kGoodbye = absl::Seconds(1);

// For tensors that a call leaves behind; else they go with the session.
constexpr absl::Duration kCleanUp = absl::Seconds(2);

constexpr char kDelete[] = "/kernd.v1.Tensors/Delete";

Pieces Encoded(const google::protobuf::MessageLite& message) {
  Pieces pieces;
  pieces.Message(message);
  return pieces;
}

Pieces DeleteRequest(const std::string& session, const std::vector<std::uint64_t>& ids) {
  v1::DeleteRequest request;
  request.set_session_id(session);
  request.mutable_ids()->Add(ids.begin(), ids.end());
  return Encoded(request);
}

}  // namespace

SessionLink::SessionLink(std::shared_ptr<Wire> wire, OpenedSession session)
    : wire_(std::move(wire)), session_(std::move(session)) {}

absl::StatusOr<std::shared_ptr<const SessionLink>> SessionLink::Open(std::shared_ptr<Wire> wire,
                                                                     const SessionOptions& session,
                                                                     const CallTerms& terms) {
  v1::OpenSessionRequest request;
  if (session.lease > absl::ZeroDuration()) {
    const std::int64_t seconds = absl::ToInt64Seconds(session.lease);
    request.mutable_lease()->set_seconds(seconds);
    request.mutable_lease()->set_nanos(
        static_cast<std::int32_t>(absl::ToInt64Nanoseconds(session.lease - absl::Seconds(seconds))));
  }
  request.set_quota_bytes(session.quota_bytes);
  request.set_label(session.label);
  absl::StatusOr<grpc::ByteBuffer> reply =
      wire->transport.Call("/kernd.v1.Tensors/OpenSession", Encoded(request), terms);
  KERND_CLIENT_RETURN_IF_ERROR(reply.status());
  absl::StatusOr<OpenedSession> opened = DecodeOpenSession(*std::move(reply));
  KERND_CLIENT_RETURN_IF_ERROR(opened.status());
  ClientOptions options = wire->transport.options();
  if (opened->endpoint.empty()) opened->endpoint = options.endpoint;
  if (opened->endpoint != options.endpoint) {
    options.endpoint = opened->endpoint;
    wire = std::make_shared<Wire>(options);
  }
  return std::make_shared<const SessionLink>(std::move(wire), *std::move(opened));
}

CallTerms SessionLink::With(CallTerms terms) const {
  if (session_.epoch != 0) terms.metadata["kernd-server-epoch"] = std::to_string(session_.epoch);
  return terms;
}

absl::StatusOr<CallTerms> SessionLink::Terms(const CallOptions& options) const {
  absl::StatusOr<CallTerms> terms = TermsOf(options, wire_->transport.options());
  return terms.ok() ? With(*std::move(terms)) : terms;
}

absl::Status SessionLink::Delete(const std::vector<std::uint64_t>& ids, const CallTerms& terms) const {
  return wire_->transport.Call(kDelete, DeleteRequest(session_.id, ids), terms).status();
}

void SessionLink::DeleteLater(std::vector<std::uint64_t> ids, const CallTerms& terms) const {
  CallTerms own{absl::Now() + kCleanUp, terms.retry, terms.metadata, {}};
  // The wire is there for as long as its helpers are; this link may be gone.
  wire_->stripes.crew().Later([&transport = wire_->transport, request = DeleteRequest(session_.id, ids),
                               own = std::move(own)] { transport.Call(kDelete, request, own).status().IgnoreError(); });
}

absl::Status SessionLink::Close(const CallTerms& terms) const {
  v1::CloseSessionRequest request;
  request.set_session_id(session_.id);
  const absl::Status status = wire_->transport.Call("/kernd.v1.Tensors/CloseSession", Encoded(request), terms).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

void SessionLink::CloseSoon() const {
  CallOptions options;
  options.timeout = kGoodbye;
  options.retry = RetryPolicy{.max_attempts = 1};
  if (const absl::StatusOr<CallTerms> terms = Terms(options); terms.ok()) Close(*terms).IgnoreError();
}

}  // namespace kernd::client
