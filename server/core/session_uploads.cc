// How tensors of sessions are filled: memory for them, and what comes of them, from any number of streams.
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/core/session_errors.h"
#include "server/core/session_records.h"

namespace kernd::core {

absl::StatusOr<SessionStore::Upload> SessionStore::Join(const Session& session, std::uint64_t tensor,
                                                        const TensorSpec& spec, std::uint64_t version) {
  if (version != 0 && version <= session.deleted.VersionOf(tensor)) return UploadDeleted(tensor, version);
  const Upload there = session.Newest(tensor);
  if (there == nullptr) return there;
  if (version < there->version) return OldVersion(tensor, version, there->version);
  if (version > there->version || there->state == TensorState::kFailed) return Upload();
  if (spec != there->spec) return OtherSpec(tensor, version, spec, there->spec);
  // Whoever began it has left the lock to allocate.
  mutex_.Await(absl::Condition(
      +[](Tensor* t) { return !t->allocating() || !t->attached; }, there.get()));
  KERND_RETURN_IF_ERROR(CheckAttached(*there));
  return there;
}

absl::StatusOr<TensorCharge> SessionStore::ChargeFor(Session& session, const TensorSpec& spec, const Upload& old) {
  absl::StatusOr<TensorCharge> charge = TensorCharge::Take(session.budgets, spec.bytes());
  if (charge.ok() || old == nullptr || !old->unused()) return charge;
  // The old one's bytes may be what is missing. They are given back only where that will do.
  const std::int64_t back =
      TensorCharge::kRecordBytes + (old->memory == nullptr ? 0 : TensorCharge::MemoryBytes(old->bytes));
  if (!TensorCharge::WouldFit(session.budgets, spec.bytes(), back)) return charge;
  {
    LetGo now;
    Remove(session, old->id, now);
  }
  return TensorCharge::Take(session.budgets, spec.bytes());
}

absl::StatusOr<SessionStore::Upload> SessionStore::BeginPut(const SessionId& id, std::uint64_t tensor,
                                                            const TensorSpec& spec, std::uint64_t version) {
  LetGo let_go;
  Upload upload;
  TensorCharge charge;
  {
    absl::MutexLock lock(&mutex_);
    KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
    KERND_ASSIGN_OR_RETURN(const Upload joined, Join(*session, tensor, spec, version));
    if (joined != nullptr) return joined;
    KERND_ASSIGN_OR_RETURN(charge, ChargeFor(*session, spec, session->Visible(tensor)));
    upload = std::make_shared<Tensor>(tensor, version, spec, session);
    upload->last_chunk = environment_.now();
    Upload& place = session->tensors[tensor];
    if (place != nullptr) {
      upload->replaces = session->Visible(tensor);
      // One that waited for memory as well is out of the race.
      if (upload->replaces != place) {
        place->replaces = nullptr;
        Detach(*session, place, let_go);
      }
    }
    place = upload;
    session->filling.insert(upload);
    upload->record = std::move(charge);
    charge = upload->record.SplitMemory();
  }
  return Begin(upload, Allocate(std::move(charge), upload->bytes));
}

absl::StatusOr<SessionStore::Upload> SessionStore::Begin(const Upload& upload,
                                                         absl::StatusOr<std::shared_ptr<TensorMemory>> memory) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  const SessionPtr session = upload->session.lock();
  if (!upload->attached) {  // deleted already, or replaced
    if (memory.ok()) let_go.push_back(*std::move(memory));
    return CheckAttached(*upload);
  }
  const Upload old = std::exchange(upload->replaces, nullptr);
  if (!memory.ok()) {
    // Those who have joined are told; nobody else will know that it was there.
    Fail(*upload, memory.status(), let_go);
    const auto it = session->tensors.find(upload->id);
    if (it->second != upload) {
      it->second->replaces = nullptr;  // a later version, which waits for memory as well
    } else if (old != nullptr) {
      it->second = old;
    } else {
      session->tensors.erase(it);
    }
    Detach(*session, upload, let_go);
    return memory.status();
  }
  if (old != nullptr) Detach(*session, old, let_go);
  upload->memory = *std::move(memory);
  if (upload->bytes == 0) {
    upload->state = TensorState::kReady;
    session->filling.erase(upload);
  }
  return upload;
}

absl::Status SessionStore::Write(const Upload& upload, std::int64_t offset,
                                 absl::Span<const absl::Span<const std::byte>> runs) {
  Tensor& tensor = *upload;
  std::int64_t bytes = 0;
  for (const absl::Span<const std::byte> run : runs) bytes += static_cast<std::int64_t>(run.size());
  if (offset < 0 || bytes > tensor.bytes || offset > tensor.bytes - bytes) {
    return BeyondEnd(offset, bytes, tensor.bytes);
  }
  const SessionPtr session = tensor.session.lock();
  LetGo let_go;
  std::shared_ptr<TensorMemory> memory;
  {
    absl::MutexLock lock(&mutex_);
    if (session == nullptr || !session->open) return NoSession();
    KERND_RETURN_IF_ERROR(Enter(session->id, let_go).status());
    KERND_RETURN_IF_ERROR(CheckAttached(tensor));
    if (tensor.state == TensorState::kReady) return absl::OkStatus();
    tensor.last_chunk = environment_.now();
    switch (tensor.claimed.Add(offset, offset + bytes)) {
      case ByteRanges::Added::kPresent: return absl::OkStatus();
      case ByteRanges::Added::kOverlap: {
        const auto [begin, end] = tensor.claimed.FirstOverlap(offset, offset + bytes);
        return Overlap(offset, bytes, begin, end);
      }
      case ByteRanges::Added::kTooMany: return TooManyPieces(offset, tensor.claimed.max_pieces());
      case ByteRanges::Added::kNew: break;
    }
    memory = tensor.memory;
  }
  const absl::Status written = memory->Write(offset, runs);
  bool complete = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!written.ok()) {
      if (tensor.state == TensorState::kFilling) Fail(tensor, written, let_go);
      session->filling.erase(upload);
      return written;
    }
    tensor.received += bytes;
    tensor.last_chunk = environment_.now();
    complete = tensor.received == tensor.bytes;
  }
  if (!complete) return absl::OkStatus();
  const absl::Status settled = memory->Settle();
  absl::MutexLock lock(&mutex_);
  session->filling.erase(upload);
  KERND_RETURN_IF_ERROR(CheckAttached(tensor));
  if (!settled.ok()) {
    Fail(tensor, settled, let_go);
    return settled;
  }
  tensor.state = TensorState::kReady;
  tensor.claimed.Clear();
  return absl::OkStatus();
}

absl::StatusOr<SessionStore::Progress> SessionStore::ProgressOf(const Upload& upload) {
  absl::MutexLock lock(&mutex_);
  KERND_RETURN_IF_ERROR(CheckAttached(*upload));
  return Progress{.state = upload->state,
                  .received = upload->state == TensorState::kReady ? upload->bytes : upload->received};
}

}  // namespace kernd::core
