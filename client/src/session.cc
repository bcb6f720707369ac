#include "kernd/client/session.h"

#include <optional>
#include <utility>

#include "client/src/relay.h"
#include "client/src/session_link.h"
#include "client/src/shared_memory.h"
#include "client/src/status.h"
#include "client/src/transfer.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

template <typename Call>
absl::StatusOr<typename Call::Reply> Compute(const SessionLink& link, const typename Call::Args& args,
                                             const CallOptions& options) {
  const absl::StatusOr<CallTerms> terms = link.Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  const ClientOptions& settings = link.wire().transport.options();
  if (const Travellers travellers = TravellersOf<Call>(args, settings, &link.shared()); travellers.Any()) {
    KERND_CLIENT_RETURN_IF_ERROR(Call::Encode(args, options, link.session().id).status());
    bool refused = false;
    absl::StatusOr<typename Call::Reply> reply = Relay<Call>(link, travellers, args, options, *terms, &refused);
    if (!refused || settings.transfer == Transfer::kStriped) return reply;
  }
  return CallInline<Call>(link.wire().transport, link.session().id, args, options, *terms, &link.shared());
}

}  // namespace

Session::Session(std::shared_ptr<const SessionLink> link) : link_(std::move(link)) {}

Session::Session(Session&& other) noexcept : link_(std::move(other.link_)), open_(std::exchange(other.open_, false)) {}

Session& Session::operator=(Session&& other) noexcept {
  std::swap(link_, other.link_);
  std::swap(open_, other.open_);
  return *this;
}

Session::~Session() {
  if (link_ != nullptr && open_) link_->CloseSoon();
}

absl::Status Session::Put(std::uint64_t id, const TensorView& tensor, const CallOptions& options) const {
  const std::optional<std::int64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes || *bytes != std::ssize(tensor.data)) {
    return InvalidField("tensor", std::to_string(tensor.data.size()) + " bytes",
                        "must be those of " + ToString(tensor.dtype, tensor.shape));
  }
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  // Where it breaks off, the daemon gives up what has come of it when nothing more does. To delete it here could hit
  // the upload that comes next.
  return PutTensors(link_->wire().stripes, link_->session().id, {{id, tensor, options.device}}, *terms);
}

absl::StatusOr<Tensor> Session::Get(std::uint64_t id, const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  return GetTensor(link_->wire().stripes, link_->session().id, id, *terms);
}

absl::Status Session::Get(std::uint64_t id, std::int64_t offset_bytes, std::span<std::byte> into,
                          const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  if (offset_bytes < 0) return InvalidField("offset_bytes", std::to_string(offset_bytes), "not negative");
  return GetRange(link_->wire().stripes, link_->session().id, {id, offset_bytes, into}, *terms);
}

absl::Status Session::Delete(const std::vector<std::uint64_t>& ids, const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  return link_->Delete(ids, *terms);
}

absl::StatusOr<SessionContents> Session::List(const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  v1::ListRequest message;
  message.set_session_id(link_->session().id);
  Pieces request;
  request.Message(message);
  absl::StatusOr<grpc::ByteBuffer> reply = link_->wire().transport.Call("/kernd.v1.Tensors/List", request, *terms);
  KERND_CLIENT_RETURN_IF_ERROR(reply.status());
  return DecodeList(*std::move(reply));
}

absl::StatusOr<SharedBuffer> Session::Share(std::int64_t bytes, const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  absl::StatusOr<std::unique_ptr<SharedMemory>> memory = SharedMemory::Make(link_, bytes, *terms);
  KERND_CLIENT_RETURN_IF_ERROR(memory.status());
  return SharedBuffer(*std::move(memory));
}

SharedBuffer::SharedBuffer(std::unique_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}
SharedBuffer::SharedBuffer(SharedBuffer&&) noexcept = default;
SharedBuffer& SharedBuffer::operator=(SharedBuffer&&) noexcept = default;
SharedBuffer::~SharedBuffer() = default;

std::span<std::byte> SharedBuffer::bytes() const {
  return memory_->bytes();
}

absl::StatusOr<MatmulReply> Session::Matmul(const MatmulArgs& args, const CallOptions& options) const {
  return Compute<MatmulCall>(*link_, args, options);
}

absl::StatusOr<AttentionReply> Session::Attention(const AttentionArgs& args, const CallOptions& options) const {
  return Compute<AttentionCall>(*link_, args, options);
}

absl::Status Session::Close(const CallOptions& options) {
  const absl::StatusOr<CallTerms> terms = link_->Terms(options);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  const absl::Status closed = link_->Close(*terms);
  if (closed.ok()) open_ = false;
  return closed;
}

void Session::Release() {
  open_ = false;
}

const std::string& Session::id() const {
  return link_->session().id;
}

std::uint64_t Session::server_epoch() const {
  return link_->session().epoch;
}

const std::string& Session::endpoint() const {
  return link_->session().endpoint;
}

absl::Duration Session::lease() const {
  return link_->session().lease;
}

std::int64_t Session::quota_bytes() const {
  return link_->session().quota_bytes;
}

}  // namespace kernd::client
