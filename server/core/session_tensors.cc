// Tensors of sessions that are there: found, made by calls, deleted; and regions of shared memory likewise.
#include <algorithm>
#include <limits>
#include <utility>

#include "kernd/kernels/error.h"
#include "server/core/session_errors.h"
#include "server/core/session_records.h"

namespace kernd::core {

absl::StatusOr<SessionStore::Resident> SessionStore::Find(const SessionId& id, std::uint64_t tensor) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  const Upload visible = session->Visible(tensor);
  if (visible == nullptr) return NoTensor(tensor);
  const Tensor& found = *visible;
  switch (found.state) {
    case TensorState::kReady:
      return Resident{
          .spec = found.spec, .memory = found.memory, .version = found.version, .users = found.memory.use_count() - 1};
    case TensorState::kFilling: return StillFilling(tensor, found.received, found.bytes);
    case TensorState::kFailed: break;
  }
  if (DetailOf(found.failure).reason == reason::kFillFailed) return found.failure;
  return FillFailed(tensor, {found.failure.message().data(), found.failure.message().size()});
}

absl::StatusOr<std::shared_ptr<TensorMemory>> SessionStore::Allocate(TensorCharge charge, std::int64_t bytes) {
  const auto holding = std::make_shared<Holding>();
  holding->charge = std::move(charge);
  KERND_ASSIGN_OR_RETURN(holding->memory, environment_.allocate(bytes));
  return std::shared_ptr<TensorMemory>(holding, holding->memory.get());
}

absl::StatusOr<SessionStore::Result> SessionStore::NewResult(const SessionId& id, const TensorSpec& spec) {
  LetGo let_go;
  Result result = {.spec = spec};
  {
    absl::MutexLock lock(&mutex_);
    KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
    KERND_ASSIGN_OR_RETURN(result.record, TensorCharge::Take(session->budgets, spec.bytes()));
  }
  KERND_ASSIGN_OR_RETURN(result.memory, Allocate(result.record.SplitMemory(), spec.bytes()));
  KERND_RETURN_IF_ERROR(result.memory->Settle());  // whatever the device does for the allocation is done
  return result;
}

absl::Status SessionStore::Publish(const SessionId& id, std::vector<std::pair<std::uint64_t, Result>> results) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  // Nothing can fail from here on: places and memory are there.
  for (auto& [tensor, result] : results) {
    const Upload there = session->Newest(tensor);
    // Uploads of a version up to now must not take the result for their own.
    const std::uint64_t uploaded = std::max(there == nullptr ? 0 : there->uploaded, session->deleted.VersionOf(tensor));
    const std::uint64_t highest = std::max(there == nullptr ? 0 : there->version, uploaded);
    const std::uint64_t version = highest + (highest == std::numeric_limits<std::uint64_t>::max() ? 0 : 1);
    Remove(*session, tensor, let_go);
    const Upload made = std::make_shared<Tensor>(tensor, version, std::move(result.spec), session);
    made->uploaded = uploaded;
    made->memory = std::move(result.memory);
    made->record = std::move(result.record);
    made->state = TensorState::kReady;
    session->tensors.emplace(tensor, made);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::int64_t> SessionStore::Delete(const SessionId& id, absl::Span<const std::uint64_t> tensors) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  std::int64_t freed = 0;
  for (const std::uint64_t tensor : tensors) {
    const Upload newest = session->Newest(tensor);
    if (newest != nullptr && newest->uploaded != 0) session->deleted.Add(tensor, newest->uploaded);
    freed += Remove(*session, tensor, let_go);
  }
  return freed;
}

std::int64_t SessionStore::Remove(Session& session, std::uint64_t tensor, LetGo& let_go) {
  const auto it = session.tensors.find(tensor);
  if (it == session.tensors.end()) return 0;
  const Upload gone = std::move(it->second);
  session.tensors.erase(it);
  const Upload behind = std::exchange(gone->replaces, nullptr);
  const std::int64_t freed = Detach(session, gone, let_go);
  return behind == nullptr ? freed : freed + Detach(session, behind, let_go);
}

std::int64_t SessionStore::Detach(Session& session, const Upload& tensor, LetGo& let_go) {
  session.filling.erase(tensor);
  tensor->attached = false;
  std::int64_t freed = tensor->record.bytes();
  tensor->record = TensorCharge();
  if (tensor->memory == nullptr) return freed;
  if (tensor->unused()) freed += TensorCharge::MemoryBytes(tensor->bytes);
  let_go.push_back(std::exchange(tensor->memory, nullptr));
  return freed;
}

void SessionStore::Fail(Tensor& tensor, absl::Status why, LetGo& let_go) {
  tensor.state = TensorState::kFailed;
  tensor.failure = std::move(why);
  if (tensor.memory != nullptr) let_go.push_back(std::exchange(tensor.memory, nullptr));
  tensor.claimed.Clear();
}

absl::Status SessionStore::CheckAttached(const Tensor& tensor) const {
  if (tensor.state == TensorState::kFailed) return tensor.failure;
  return tensor.attached ? absl::OkStatus() : TensorGone(tensor.id);
}

SessionStore::TensorFacts SessionStore::FactsOf(const Tensor& tensor) {
  return {.id = tensor.id,
          .spec = tensor.spec,
          .state = tensor.state,
          .users = tensor.memory == nullptr ? 0 : tensor.memory.use_count() - 1,
          .version = tensor.version};
}

absl::StatusOr<SessionStore::TensorFacts> SessionStore::Describe(const SessionId& id, std::uint64_t tensor) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  const Upload found = session->Visible(tensor);
  if (found == nullptr) return NoTensor(tensor);
  return FactsOf(*found);
}

absl::Status SessionStore::AddRegion(const SessionId& id, std::uint64_t region, std::int64_t bytes,
                                     const MapRegion& map) {
  KERND_ASSIGN_OR_RETURN(const Hold hold, KeepOpen(id));  // mapping may take long
  LetGo let_go;
  RegionTable::Charge charge;
  {
    absl::MutexLock lock(&mutex_);
    KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
    KERND_ASSIGN_OR_RETURN(charge, session->regions.Reserve(region, bytes));
  }
  KERND_ASSIGN_OR_RETURN(std::shared_ptr<SharedRegion> mapped, map());
  let_go.push_back(mapped);  // to be unmapped outside the lock, where it is not taken
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  return session->regions.Add(region, std::move(mapped), std::move(charge));
}

absl::StatusOr<std::shared_ptr<SharedRegion>> SessionStore::FindRegion(const SessionId& id, std::uint64_t region) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  return session->regions.Find(region);
}

absl::Status SessionStore::RemoveRegion(const SessionId& id, std::uint64_t region) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  KERND_ASSIGN_OR_RETURN(std::shared_ptr<SharedRegion> removed, session->regions.Remove(region));
  let_go.push_back(std::move(removed));
  return absl::OkStatus();
}

}  // namespace kernd::core
