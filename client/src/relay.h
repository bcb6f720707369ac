// Calls whose large tensors go ahead of them: operands are uploaded over the stripes under ids of the library's own,
// the call names them, and results are left in the session and downloaded likewise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/src/operation.h"
#include "client/src/session_link.h"
#include "client/src/status.h"
#include "client/src/transfer.h"

namespace kernd::client {

// Which tensors of a call travel so: those of at least `min_bytes`.
struct Travellers {
  std::int64_t min_bytes = INT64_MAX;  // none

  bool Any() const { return min_bytes != INT64_MAX; }
  bool Include(std::int64_t bytes) const { return bytes >= min_bytes; }
};

// Of a call with tensors of so many bytes, operands in memory and results to be there.
Travellers Choose(const std::vector<std::int64_t>& tensor_bytes, const ClientOptions& options);

// An id from 2^63 on that nobody else will think of.
std::uint64_t OwnId();

// What lies in shared memory stays there.
inline bool Stays(const SharedRegions* shared, const Operand& operand) {
  return operand.resident || (shared != nullptr && shared->Find(operand.data, ElementBytes(operand.dtype)));
}
inline bool Stays(const SharedRegions* shared, const ResultPlace& place) {
  return place.resident || (shared != nullptr && shared->Find(place.into, kResultAlignment));
}

template <typename Call>
Travellers TravellersOf(typename Call::Args args, const ClientOptions& options, const SharedRegions* shared = nullptr) {
  std::vector<std::int64_t> bytes;
  for (const Operand* operand : Call::Operands(args)) {
    if (!Stays(shared, *operand)) bytes.push_back(std::ssize(operand->data));
  }
  for (const auto& result : Call::Results(args)) {
    if (!Stays(shared, *result.place)) bytes.push_back(result.about_bytes);
  }
  return Choose(bytes, options);
}

// All in one request and one reply, but for what lies in `shared`. `session` may be empty.
template <typename Call>
absl::StatusOr<typename Call::Reply> CallInline(const Transport& transport, const std::string& session,
                                                const typename Call::Args& args, const CallOptions& options,
                                                const CallTerms& terms, const SharedRegions* shared = nullptr) {
  const absl::StatusOr<Pieces> request = Call::Encode(args, options, session, shared);
  KERND_CLIENT_RETURN_IF_ERROR(request.status());
  absl::StatusOr<grpc::ByteBuffer> reply = transport.Call(Call::kMethod, *request, terms);
  KERND_CLIENT_RETURN_IF_ERROR(reply.status());
  return Call::Decode(*std::move(reply), args, shared);
}

// Tensors that must not outlive a call, whatever becomes of it.
class Temporaries {
 public:
  Temporaries(const SessionLink& link, const CallTerms& terms) : link_(link), terms_(terms) {}
  ~Temporaries() {
    if (!ids_.empty()) link_.DeleteLater(std::move(ids_), terms_);
  }
  Temporaries(const Temporaries&) = delete;
  Temporaries& operator=(const Temporaries&) = delete;

  std::uint64_t Add() { return ids_.emplace_back(OwnId()); }

 private:
  const SessionLink& link_;
  const CallTerms& terms_;
  std::vector<std::uint64_t> ids_;
};

// Where it turns out that the session has no room, what was put until then is gone when this is.
class RoomGivenBack {
 public:
  RoomGivenBack(const SessionLink& link, const bool* refused) : link_(link), refused_(refused) {}
  ~RoomGivenBack() {
    if (*refused_) link_.wire().stripes.crew().AwaitLater();
  }
  RoomGivenBack(const RoomGivenBack&) = delete;
  RoomGivenBack& operator=(const RoomGivenBack&) = delete;

 private:
  const SessionLink& link_;
  const bool* const refused_;
};

// PutTensors, again where what was in the way were temporaries of earlier calls.
absl::Status PutOperands(const SessionLink& link, const std::vector<Upload>& uploads, const CallTerms& terms);

// Where the result `name` of that dtype and shape shall be: in `into`, or, where that is empty, in memory of its own.
absl::StatusOr<Tensor> Destination(const char* name, const Tensor& result, std::span<std::byte> into);

// A session's own refusal: it has no room for a tensor. What else is exhausted, memory for calls or for bodies, or
// places in the queue, is not the session's, and a call that does without it would not find it either.
bool IsSessionFull(const absl::Status& status);
// The same of a call, which has named the result for which there is no room.
bool IsSessionFullFor(const absl::Status& status, const char* result);

// `args` have passed Call::Encode; `terms` are the link's. `*refused`: the session has no room for operands or results.
// The room that this call took is then free again.
template <typename Call>
absl::StatusOr<typename Call::Reply> Relay(const SessionLink& link, const Travellers& travellers,
                                           typename Call::Args args, const CallOptions& options, const CallTerms& terms,
                                           bool* refused) {
  // What this call has put is deleted before it is made in another way, which needs the memory.
  const RoomGivenBack given_back(link, refused);
  Temporaries temporaries(link, terms);
  std::vector<Upload> uploads;
  for (Operand* operand : Call::Operands(args)) {
    if (Stays(&link.shared(), *operand) || !travellers.Include(std::ssize(operand->data))) continue;
    const std::uint64_t id = temporaries.Add();
    uploads.push_back({id, {operand->dtype, operand->shape, operand->data}, options.device});
    *operand = ResidentTensor{id, operand->dtype, operand->shape};
  }
  struct Awaited {
    Result<typename Call::Reply> result;
    std::uint64_t id;
    std::span<std::byte> into;
  };
  std::vector<Awaited> awaited;
  for (const auto& result : Call::Results(args)) {
    if (Stays(&link.shared(), *result.place) || !travellers.Include(result.about_bytes)) continue;
    awaited.push_back({result, temporaries.Add(), result.place->into});
    *result.place = {.resident = awaited.back().id};
  }

  const absl::Status put = PutOperands(link, uploads, terms);
  *refused = IsSessionFull(put);
  KERND_CLIENT_RETURN_IF_ERROR(put);
  const auto call = [&](bool* no_room) {
    absl::StatusOr<typename Call::Reply> reply =
        CallInline<Call>(link.wire().transport, link.session().id, args, options, terms, &link.shared());
    *no_room = std::any_of(awaited.begin(), awaited.end(),
                           [&](const Awaited& a) { return IsSessionFullFor(reply.status(), a.result.name); });
    return reply;
  };
  bool crowded = link.wire().stripes.crew().HasLater();
  absl::StatusOr<typename Call::Reply> reply = call(refused);
  crowded = crowded || link.wire().stripes.crew().HasLater();
  if (*refused && crowded) {  // by temporaries of earlier calls
    link.wire().stripes.crew().AwaitLater();
    reply = call(refused);
  }
  KERND_CLIENT_RETURN_IF_ERROR(reply.status());

  std::vector<Download> downloads;
  for (const Awaited& a : awaited) {
    Tensor& tensor = (*reply).*a.result.tensor;
    absl::StatusOr<Tensor> destination = Destination(a.result.name, tensor, a.into);
    KERND_CLIENT_RETURN_IF_ERROR(destination.status());
    tensor = *std::move(destination);
    downloads.push_back({a.id, 0, tensor.mutable_bytes()});
  }
  KERND_CLIENT_RETURN_IF_ERROR(GetTensors(link.wire().stripes, link.session().id, downloads, terms));
  return reply;
}

}  // namespace kernd::client
