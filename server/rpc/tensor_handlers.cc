// Tensors: sessions, and the way of tensors into them and out again. The store decides; here it is only translated.
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernd/v1/tensors.pb.h"
#include "server/core/session_errors.h"
#include "server/rpc/enums.h"
#include "server/rpc/handlers.h"
#include "server/rpc/message.h"
#include "server/rpc/session_decode.h"

namespace kernd::rpc {
namespace {

using core::SessionStore;

// A stream holds one message on either side. Clients of gRPC take messages of up to 4 MiB unless told otherwise.
constexpr std::int64_t kMaxPutMessage = 8 << 20;
constexpr std::int64_t kDefaultChunk = 2 << 20, kMaxChunk = 8 << 20;

constexpr std::size_t kMaxLabel = 128;  // bytes

// Data up to this size are copied behind their header: one slice is then cheaper than two.
constexpr std::int64_t kCopyLimit = 4096;

// What the methods work with.
struct Tensors {
  SessionStore& sessions;
  const core::Backend& backend;
  const ServerFacts facts;
};

// A year is more than any lease, and less than any clock.
absl::StatusOr<absl::Duration> DecodeDuration(const google::protobuf::Duration& duration, const char* field) {
  constexpr std::int64_t kYear = 366 * 24 * 3600;
  if (duration.seconds() < 0 || duration.nanos() < 0 || duration.nanos() >= 1'000'000'000) {
    return InvalidField(field, absl::StrCat(duration.seconds(), " s and ", duration.nanos(), " ns"),
                        "must not be negative, and have less than a second of nanoseconds");
  }
  return absl::Seconds(std::min(duration.seconds(), kYear)) + absl::Nanoseconds(duration.nanos());
}

void EncodeDuration(absl::Duration duration, google::protobuf::Duration& out) {
  out.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  out.set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(duration)));
}

v1::TensorState EncodeState(core::TensorState state) {
  switch (state) {
    case core::TensorState::kFilling: return v1::TENSOR_STATE_FILLING;
    case core::TensorState::kReady: return v1::TENSOR_STATE_READY;
    case core::TensorState::kFailed: return v1::TENSOR_STATE_FAILED;
  }
  return v1::TENSOR_STATE_UNSPECIFIED;
}

void EncodeInfo(const SessionStore::TensorFacts& facts, std::string_view device, v1::TensorInfo& out) {
  out.set_id(facts.id);
  out.set_dtype(EncodeDataType(facts.spec.dtype));
  out.mutable_shape()->Assign(facts.spec.shape.begin(), facts.spec.shape.end());
  out.set_state(EncodeState(facts.state));
  out.set_bytes(facts.spec.bytes());
  out.set_device(std::string(device));
  out.set_users(facts.users);
  out.set_version(facts.version);
}

absl::StatusOr<v1::OpenSessionReply> Open(const Tensors& tensors, const v1::OpenSessionRequest& request,
                                          Exchange& exchange) {
  if (request.label().size() > kMaxLabel) {
    return InvalidField("label", absl::StrCat(request.label().size(), " bytes"),
                        absl::StrCat("at most ", kMaxLabel, " bytes"));
  }
  exchange.record.shapes = absl::StrCat("label=", request.label());
  KERND_ASSIGN_OR_RETURN(const absl::Duration lease, DecodeDuration(request.lease(), "lease"));
  KERND_ASSIGN_OR_RETURN(const SessionStore::Opened opened, tensors.sessions.Open(lease, request.quota_bytes()));
  v1::OpenSessionReply reply;
  reply.set_session_id(opened.id.data(), opened.id.size());
  reply.set_server_epoch(tensors.facts.epoch);
  reply.set_endpoint(tensors.facts.advertise);
  EncodeDuration(opened.lease, *reply.mutable_lease());
  reply.set_quota_bytes(opened.quota);
  return reply;
}

absl::StatusOr<v1::CloseSessionReply> Close(const Tensors& tensors, const v1::CloseSessionRequest& request, Exchange&) {
  KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(request.session_id(), "session_id"));
  v1::CloseSessionReply reply;
  KERND_ASSIGN_OR_RETURN(const std::int64_t freed, tensors.sessions.Close(id));
  reply.set_freed_bytes(freed);
  return reply;
}

absl::StatusOr<v1::DeleteReply> Delete(const Tensors& tensors, const v1::DeleteRequest& request, Exchange&) {
  KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(request.session_id(), "session_id"));
  v1::DeleteReply reply;
  const std::vector<std::uint64_t> ids(request.ids().begin(), request.ids().end());
  KERND_ASSIGN_OR_RETURN(const std::int64_t freed, tensors.sessions.Delete(id, ids));
  reply.set_freed_bytes(freed);
  return reply;
}

absl::StatusOr<v1::ListReply> List(const Tensors& tensors, const v1::ListRequest& request, Exchange&) {
  KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(request.session_id(), "session_id"));
  KERND_ASSIGN_OR_RETURN(const SessionStore::Listing listing, tensors.sessions.List(id));
  v1::ListReply reply;
  for (const SessionStore::TensorFacts& facts : listing.tensors) {
    EncodeInfo(facts, tensors.backend.device_id(), *reply.add_tensors());
  }
  reply.set_used_bytes(listing.used);
  reply.set_quota_bytes(listing.quota);
  EncodeDuration(listing.lease_left, *reply.mutable_lease_left());
  return reply;
}

// Fills one tensor from the messages of one stream.
class PutSink final : public MessageSink {
 public:
  PutSink(const Tensors& tensors, Exchange& exchange) : tensors_(tensors), exchange_(exchange) {}

  absl::Status Take(grpc::ByteBuffer& message) override {
    v1::PutRequest request;
    Payloads payloads;
    KERND_RETURN_IF_ERROR(Parse(message, request, payloads));
    if (upload_ == nullptr) {
      KERND_RETURN_IF_ERROR(Begin(request));
    } else if (request.has_header()) {
      return InvalidField("header", "set", "only the first message of a stream has it");
    }
    const core::Operand data = payloads.Find(request.data());
    exchange_.record.copied_bytes += data.bytes();
    return Explain(tensors_.sessions.Write(upload_, request.offset_bytes(), data.runs), exchange_,
                   tensors_.facts.epoch);
  }

  absl::StatusOr<grpc::ByteBuffer> End() override {
    if (upload_ == nullptr) {
      return WithDetail(absl::InvalidArgumentError("the stream ended without a message"),
                        {.reason = std::string(reason::kMalformed)});
    }
    KERND_ASSIGN_OR_RETURN(const SessionStore::Progress progress, tensors_.sessions.ProgressOf(upload_));
    v1::PutReply reply;
    reply.set_state(EncodeState(progress.state));
    reply.set_received_bytes(progress.received);
    return Serialize(reply);
  }

 private:
  absl::Status Begin(const v1::PutRequest& request) {
    if (!request.has_header()) return InvalidField("header", "absent", "the first message of a stream has it");
    const v1::PutHeader& header = request.header();
    TensorSpec spec;
    KERND_ASSIGN_OR_RETURN(spec.dtype, DecodeDataType(header.dtype(), "header.dtype"));
    spec.shape.assign(header.shape().begin(), header.shape().end());
    KERND_RETURN_IF_ERROR(CheckSpec("header", spec));
    exchange_.record.shapes = spec.ToString();
    KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(header.session_id(), "header.session_id"));
    return Explain(Begin(id, header, spec), exchange_, tensors_.facts.epoch);
  }

  absl::Status Begin(const core::SessionId& id, const v1::PutHeader& header, const TensorSpec& spec) {
    absl::StatusOr<SessionStore::Hold> hold = tensors_.sessions.KeepOpen(id);
    if (!hold.ok()) return Under(hold.status(), "header.");
    hold_ = *std::move(hold);
    KERND_RETURN_IF_ERROR(DecodePlacement(header.placement(), "header.placement", tensors_.backend.device_id(),
                                          {.store = &tensors_.sessions, .id = id}));
    absl::StatusOr<SessionStore::Upload> upload = tensors_.sessions.BeginPut(id, header.id(), spec, header.version());
    if (!upload.ok()) return Under(upload.status(), "header.");
    upload_ = *std::move(upload);
    return absl::OkStatus();
  }

  const Tensors& tensors_;
  Exchange& exchange_;
  SessionStore::Hold hold_;
  SessionStore::Upload upload_;
};

// The bytes of a tensor, a chunk at a time. Each message owns its memory until gRPC has sent it.
class GetSource final : public MessageSource {
 public:
  GetSource(v1::TensorInfo header, SessionStore::Hold hold, std::shared_ptr<core::TensorMemory> memory,
            std::int64_t offset, std::int64_t end, std::int64_t chunk)
      : header_(std::move(header)),
        hold_(std::move(hold)),
        memory_(std::move(memory)),
        at_(offset),
        end_(end),
        chunk_(chunk) {}

  absl::StatusOr<grpc::ByteBuffer> Next(bool& last) override {
    const std::int64_t bytes = std::min(chunk_, end_ - at_);
    KERND_ASSIGN_OR_RETURN(core::HostBuffer buffer, memory_->Read(at_, bytes));
    v1::GetReply reply;
    if (!std::exchange(begun_, true)) *reply.mutable_header() = std::move(header_);
    reply.set_offset_bytes(at_);
    at_ += bytes;
    last = at_ == end_;
    return Message(reply, std::move(buffer));
  }

 private:
  struct Owner {
    std::shared_ptr<core::TensorMemory> memory;  // lives longer than the buffer
    core::HostBuffer buffer;
  };

  grpc::ByteBuffer Message(const v1::GetReply& reply, core::HostBuffer data) const {
    std::string head = reply.SerializeAsString();
    if (data.size() > 0) {
      google::protobuf::io::StringOutputStream stream(&head);
      google::protobuf::io::CodedOutputStream out(&stream);
      using google::protobuf::internal::WireFormatLite;
      out.WriteTag(WireFormatLite::MakeTag(v1::GetReply::kDataFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
      out.WriteVarint64(static_cast<std::uint64_t>(data.size()));
    }
    const auto size = static_cast<std::size_t>(data.size());
    if (data.size() <= kCopyLimit) {
      if (size > 0) head.append(reinterpret_cast<const char*>(data.data()), size);
      const grpc::Slice slice(head);
      return grpc::ByteBuffer(&slice, 1);
    }
    std::byte* const bytes = data.data();
    const auto release = [](void* owner) { delete static_cast<Owner*>(owner); };
    const grpc::Slice slices[] = {grpc::Slice(head),
                                  grpc::Slice(bytes, size, release, new Owner{memory_, std::move(data)})};
    return grpc::ByteBuffer(slices, 2);
  }

  v1::TensorInfo header_;
  const SessionStore::Hold hold_;
  const std::shared_ptr<core::TensorMemory> memory_;
  std::int64_t at_;
  const std::int64_t end_, chunk_;
  bool begun_ = false;
};

absl::StatusOr<std::unique_ptr<MessageSource>> Get(const Tensors& tensors, const v1::GetRequest& request) {
  KERND_ASSIGN_OR_RETURN(const core::SessionId id, DecodeSessionId(request.session_id(), "session_id"));
  KERND_ASSIGN_OR_RETURN(SessionStore::Hold hold, tensors.sessions.KeepOpen(id));
  KERND_ASSIGN_OR_RETURN(SessionStore::Resident found, tensors.sessions.Find(id, request.id()));
  if (request.version() != 0 && request.version() != found.version) {
    return core::OldVersion(request.id(), request.version(), found.version);
  }
  const std::int64_t bytes = found.memory->bytes(), offset = request.offset_bytes(), length = request.length_bytes();
  for (const auto& [field, value] :
       {std::pair{"offset_bytes", offset}, {"length_bytes", length}, {"chunk_bytes", request.chunk_bytes()}}) {
    if (value < 0) return InvalidField(field, absl::StrCat(value), "must not be negative");
  }
  if (offset > bytes || length > bytes - offset) {
    const char* const field = offset > bytes ? "offset_bytes" : "length_bytes";
    return WithDetail(
        absl::OutOfRangeError(absl::StrCat(field, " is ", offset > bytes ? offset : length, ": ", length,
                                           " bytes from ", offset, " lie not within the tensor's ", bytes)),
        {.reason = std::string(reason::kOutOfRange), .field = field});
  }
  const std::int64_t chunk = request.chunk_bytes() == 0 ? kDefaultChunk : std::min(request.chunk_bytes(), kMaxChunk);
  const SessionStore::TensorFacts facts = {.id = request.id(),
                                           .spec = found.spec,
                                           .state = core::TensorState::kReady,
                                           .users = found.users,
                                           .version = found.version};
  v1::TensorInfo header;
  EncodeInfo(facts, tensors.backend.device_id(), header);
  return std::make_unique<GetSource>(std::move(header), std::move(hold), std::move(found.memory), offset,
                                     length == 0 ? bytes : offset + length, chunk);
}

// A method that parses `Request` and answers at once.
template <typename Request, typename Answer>
Handler Simple(std::shared_ptr<const Tensors> tensors, Answer answer) {
  return [tensors, answer](const ExchangePtr& exchange) {
    Request request;
    if (const absl::Status parsed = Parse(exchange->request, request); !parsed.ok()) return exchange->Fail(parsed);
    const auto reply = answer(*tensors, request, *exchange);
    if (!reply.ok()) return exchange->Fail(Explain(reply.status(), *exchange, tensors->facts.epoch));
    exchange->Reply(Serialize(*reply));
  };
}

}  // namespace

void AddTensorMethods(core::SessionStore& sessions, const core::Backend& backend, const ServerFacts& facts,
                      MethodTable& table) {
  const auto tensors = std::make_shared<const Tensors>(Tensors{sessions, backend, facts});
  const auto simple = [&](const char* name, bool bulk, Handler handler) {
    table.Add(absl::StrCat("/kernd.v1.Tensors/", name),
              {.name = absl::StrCat("Tensors/", name), .bulk = bulk, .handler = std::move(handler)});
  };
  simple("OpenSession", false, Simple<v1::OpenSessionRequest>(tensors, Open));
  simple("CloseSession", /*bulk=*/true, Simple<v1::CloseSessionRequest>(tensors, Close));  // gives much memory back
  simple("Delete", /*bulk=*/true, Simple<v1::DeleteRequest>(tensors, Delete));
  simple("List", false, Simple<v1::ListRequest>(tensors, List));
  table.Add("/kernd.v1.Tensors/Put", {.name = "Tensors/Put",
                                      .max_message_bytes = kMaxPutMessage,
                                      .sink = [tensors](Exchange& exchange) -> std::unique_ptr<MessageSink> {
                                        return std::make_unique<PutSink>(*tensors, exchange);
                                      }});
  table.Add("/kernd.v1.Tensors/Get",
            {.name = "Tensors/Get",
             .source = [tensors](Exchange& exchange) -> absl::StatusOr<std::unique_ptr<MessageSource>> {
               v1::GetRequest request;
               KERND_RETURN_IF_ERROR(Parse(exchange.request, request));
               absl::StatusOr<std::unique_ptr<MessageSource>> source = Get(*tensors, request);
               if (!source.ok()) return Explain(source.status(), exchange, tensors->facts.epoch);
               return source;
             }});
}

}  // namespace kernd::rpc
