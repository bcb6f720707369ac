#include "server/core/session_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/core/byte_ranges.h"
#include "server/core/session_errors.h"

namespace kernd::core {
namespace {

// When memory that others hold is worth asking for again: what calls hold, and what sessions do.
constexpr absl::Duration kRetryCalls = absl::Milliseconds(50);
constexpr absl::Duration kRetrySessions = absl::Seconds(1);

std::int64_t Rounded(std::int64_t bytes) {
  const std::optional<std::int64_t> up = CheckedAdd(bytes, SessionStore::kUnit - 1);
  return up ? *up / SessionStore::kUnit * SessionStore::kUnit : bytes;
}

}  // namespace

SessionId RandomSessionId() {
  SessionId id;
  // The generator of a machine that runs daemons has long been seeded; without one no id would be safe.
  if (getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) std::abort();
  return id;
}

// Guarded by the store's lock.
struct SessionStore::Session {
  const SessionId id;
  const absl::Duration lease;
  const std::shared_ptr<ByteBudget> quota;
  SteadyTime expires;
  bool open = true;
  std::map<std::uint64_t, Upload> tensors;
  absl::flat_hash_set<Upload> filling;
  RegionTable regions;

  Session(const SessionId& id, absl::Duration lease, std::int64_t quota, std::shared_ptr<RegionTable::Budget> shared)
      : id(id), lease(lease), quota(std::make_shared<ByteBudget>(quota)), regions(std::move(shared)) {}
};

// Memory with what it is charged for; the charge ends after the memory.
struct SessionStore::Holding {
  std::shared_ptr<ByteBudget> quota, resident;
  ByteBudget::Lease of_session, of_resident, of_device;
  std::unique_ptr<TensorMemory> memory;
};

// Guarded by the store's lock, but for what never changes.
struct SessionStore::Tensor {
  const std::uint64_t id, version;
  const TensorSpec spec;
  const std::int64_t bytes;
  const std::weak_ptr<Session> session;
  ByteBudget::Lease place;

  TensorState state = TensorState::kFilling;
  bool attached = true;                  // is still the session's tensor of this id
  absl::Status failure;                  // of a FAILED one
  std::shared_ptr<TensorMemory> memory;  // null while it is being allocated, and once FAILED
  ByteRanges claimed;                    // has arrived, or is being written
  std::int64_t received = 0;
  SteadyTime last_chunk;

  Tensor(std::uint64_t id, std::uint64_t version, TensorSpec spec, const SessionPtr& session)
      : id(id), version(version), spec(std::move(spec)), bytes(this->spec.bytes()), session(session) {}
  bool allocating() const { return memory == nullptr && state == TensorState::kFilling; }
};

SessionStore::SessionStore(const Options& options, Environment environment)
    : options_(options),
      environment_(std::move(environment)),
      resident_(std::make_shared<ByteBudget>(options.resident_limit)),
      tensors_(kMaxTensors),
      shared_(std::make_shared<RegionTable::Budget>(options.shared_limit)) {}

SessionStore::~SessionStore() = default;

absl::StatusOr<SessionStore::Opened> SessionStore::Open(absl::Duration lease, std::int64_t quota) {
  if (lease < absl::ZeroDuration()) {
    return InvalidField("lease", absl::FormatDuration(lease), "must not be negative; 0 is the default");
  }
  if (quota < 0) return InvalidField("quota_bytes", absl::StrCat(quota), "must not be negative; 0 is the default");
  const absl::Duration granted =
      lease == absl::ZeroDuration() ? options_.default_lease : std::min(lease, options_.max_lease);
  const std::int64_t granted_quota = quota == 0 ? options_.session_quota : std::min(quota, options_.session_quota);
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  if (static_cast<std::int64_t>(sessions_.size()) >= options_.max_sessions) EndExpired(let_go);
  if (static_cast<std::int64_t>(sessions_.size()) >= options_.max_sessions) {
    return SessionsFull(options_.max_sessions);
  }
  for (;;) {
    const SessionId id = environment_.new_id();
    const auto [it, added] = sessions_.try_emplace(id);
    if (!added) continue;
    it->second = std::make_shared<Session>(id, granted, granted_quota, shared_);
    it->second->expires = environment_.now() + absl::ToChronoNanoseconds(granted);
    return Opened{.id = id, .lease = granted, .quota = granted_quota};
  }
}

absl::StatusOr<SessionStore::SessionPtr> SessionStore::Enter(const SessionId& id, LetGo& let_go) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return NoSession();
  const SessionPtr session = it->second;
  const SteadyTime now = environment_.now();
  if (now >= session->expires) {
    ++expired_;
    End(session, let_go);
    return NoSession();
  }
  session->expires = now + absl::ToChronoNanoseconds(session->lease);
  return session;
}

std::int64_t SessionStore::End(const SessionPtr& session, LetGo& let_go) {
  std::int64_t freed = 0;
  while (!session->tensors.empty()) freed += Remove(*session, session->tensors.begin()->first, let_go);
  for (std::shared_ptr<SharedRegion>& region : session->regions.RemoveAll()) let_go.push_back(std::move(region));
  session->open = false;
  sessions_.erase(session->id);
  return freed;
}

std::int64_t SessionStore::Remove(Session& session, std::uint64_t tensor, LetGo& let_go) {
  const auto it = session.tensors.find(tensor);
  if (it == session.tensors.end()) return 0;
  const Upload gone = std::move(it->second);
  session.tensors.erase(it);
  session.filling.erase(gone);
  gone->attached = false;
  if (gone->memory == nullptr) return 0;
  const std::int64_t freed = gone->memory.use_count() == 1 ? Rounded(gone->bytes) : 0;
  let_go.push_back(std::move(gone->memory));
  gone->memory = nullptr;
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

absl::StatusOr<std::int64_t> SessionStore::Close(const SessionId& id) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  return End(session, let_go);
}

absl::StatusOr<std::shared_ptr<SessionStore::Holding>> SessionStore::Charge(const Session& session,
                                                                            std::int64_t bytes) {
  const std::int64_t needed = Rounded(bytes);
  const ByteBudget& quota = *session.quota;
  if (needed > quota.limit()) return CanNeverFit(needed, quota.limit(), "the session's quota");
  const std::int64_t limit = std::min(resident_->limit(), environment_.memory.limit());
  if (needed > limit) return CanNeverFit(needed, limit, "there for tensors of sessions");
  auto holding = std::make_shared<Holding>();
  holding->quota = session.quota;
  holding->resident = resident_;
  if (!holding->quota->Reserve(needed, holding->of_session)) {
    return DoesNotFitNow(reason::kQuotaFull, needed, quota.used(), quota.limit(), "the session's quota", std::nullopt);
  }
  if (!resident_->Reserve(needed, holding->of_resident)) {
    return DoesNotFitNow(reason::kMemoryFull, needed, resident_->used(), resident_->limit(), "all sessions",
                         kRetrySessions);
  }
  if (!environment_.memory.Reserve(needed, holding->of_device)) {
    return DoesNotFitNow(reason::kMemoryFull, needed, environment_.memory.used(), environment_.memory.limit(),
                         "the device", kRetryCalls);
  }
  return holding;
}

absl::Status SessionStore::Place(Session& session, Upload tensor) {
  if (session.tensors.size() >= kMaxTensorsOfSession || !tensors_.Reserve(1, tensor->place)) {
    return TooManyTensors(tensor->id, kMaxTensorsOfSession, kMaxTensors);
  }
  session.tensors.emplace(tensor->id, std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<TensorMemory>> SessionStore::Allocate(std::shared_ptr<Holding> holding,
                                                                     std::int64_t bytes) {
  KERND_ASSIGN_OR_RETURN(holding->memory, environment_.allocate(bytes));
  TensorMemory* const memory = holding->memory.get();
  return std::shared_ptr<TensorMemory>(std::move(holding), memory);
}

absl::StatusOr<SessionStore::Upload> SessionStore::BeginPut(const SessionId& id, std::uint64_t tensor,
                                                            const TensorSpec& spec, std::uint64_t version) {
  LetGo let_go;
  Upload upload;
  std::shared_ptr<Holding> holding;
  {
    absl::MutexLock lock(&mutex_);
    KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
    const auto there = session->tensors.find(tensor);
    if (there != session->tensors.end()) {
      const Upload old = there->second;
      if (version < old->version) return OldVersion(tensor, version, old->version);
      if (version == old->version && old->state != TensorState::kFailed) {
        if (spec != old->spec) return OtherSpec(tensor, version, spec, old->spec);
        // Whoever began it has left the lock to allocate.
        mutex_.Await(absl::Condition(
            +[](Tensor* t) { return !t->allocating() || !t->attached; }, old.get()));
        KERND_RETURN_IF_ERROR(CheckAttached(*old));
        return old;
      }
    }
    absl::StatusOr<std::shared_ptr<Holding>> charged = Charge(*session, spec.bytes());
    if (!charged.ok() && there != session->tensors.end() && there->second->memory.use_count() == 1 &&
        DetailOf(charged.status()).reason != reason::kTooLarge) {
      // The old one's bytes may be what is missing. They are given back only where that will do.
      const std::int64_t needed = Rounded(spec.bytes()), back = Rounded(there->second->bytes);
      const auto fits = [&](const ByteBudget& budget) { return needed - back <= budget.limit() - budget.used(); };
      if (fits(*session->quota) && fits(*resident_) && fits(environment_.memory)) {
        LetGo now;
        Remove(*session, tensor, now);
        now.clear();
        charged = Charge(*session, spec.bytes());
      }
    }
    KERND_RETURN_IF_ERROR(charged.status());
    holding = *std::move(charged);
    Remove(*session, tensor, let_go);
    upload = std::make_shared<Tensor>(tensor, version, spec, session);
    upload->last_chunk = environment_.now();
    KERND_RETURN_IF_ERROR(Place(*session, upload));
    session->filling.insert(upload);
  }
  absl::StatusOr<std::shared_ptr<TensorMemory>> memory = Allocate(std::move(holding), upload->bytes);
  absl::MutexLock lock(&mutex_);
  const SessionPtr session = upload->session.lock();
  if (!upload->attached) {  // deleted already
    if (memory.ok()) let_go.push_back(*std::move(memory));
    return CheckAttached(*upload);
  }
  if (!memory.ok()) {
    // Those who have joined are told; nobody else will know that it was there.
    Fail(*upload, memory.status(), let_go);
    Remove(*session, tensor, let_go);
    return memory.status();
  }
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
      case ByteRanges::Added::kTooMany: return TooManyPieces(offset);
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

absl::StatusOr<SessionStore::Resident> SessionStore::Find(const SessionId& id, std::uint64_t tensor) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  const auto it = session->tensors.find(tensor);
  if (it == session->tensors.end()) return NoTensor(tensor);
  const Tensor& found = *it->second;
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

absl::StatusOr<SessionStore::Resident> SessionStore::NewResult(const SessionId& id, const TensorSpec& spec) {
  LetGo let_go;
  std::shared_ptr<Holding> holding;
  {
    absl::MutexLock lock(&mutex_);
    KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
    KERND_ASSIGN_OR_RETURN(holding, Charge(*session, spec.bytes()));
  }
  KERND_ASSIGN_OR_RETURN(std::shared_ptr<TensorMemory> memory, Allocate(std::move(holding), spec.bytes()));
  KERND_RETURN_IF_ERROR(memory->Settle());  // whatever the device does for the allocation is done
  return Resident{.spec = spec, .memory = std::move(memory)};
}

absl::Status SessionStore::Publish(const SessionId& id, std::uint64_t tensor, Resident result) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  const auto there = session->tensors.find(tensor);
  // An upload of the version before must not take it for its own.
  const std::uint64_t version = there == session->tensors.end() ? 1 : there->second->version + 1;
  Remove(*session, tensor, let_go);
  const Upload made = std::make_shared<Tensor>(tensor, version, std::move(result.spec), session);
  made->memory = std::move(result.memory);
  made->state = TensorState::kReady;
  return Place(*session, made);
}

absl::StatusOr<std::int64_t> SessionStore::Delete(const SessionId& id, absl::Span<const std::uint64_t> tensors) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  std::int64_t freed = 0;
  for (const std::uint64_t tensor : tensors) freed += Remove(*session, tensor, let_go);
  return freed;
}

absl::Status SessionStore::AddRegion(const SessionId& id, std::uint64_t region, std::int64_t bytes,
                                     const MapRegion& map) {
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

absl::Status SessionStore::Renew(const SessionId& id) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  return Enter(id, let_go).status();
}

SessionStore::TensorFacts SessionStore::FactsOf(const Tensor& tensor) {
  return {.id = tensor.id,
          .spec = tensor.spec,
          .state = tensor.state,
          .users = tensor.memory == nullptr ? 0 : tensor.memory.use_count() - 1,
          .version = tensor.version};
}

absl::StatusOr<SessionStore::Listing> SessionStore::List(const SessionId& id) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(id);
  const SteadyTime expires = it == sessions_.end() ? SteadyTime() : it->second->expires;
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  Listing listing;
  listing.used = session->quota->used();
  listing.quota = session->quota->limit();
  listing.lease_left = absl::FromChrono(expires - environment_.now());
  for (const auto& [number, tensor] : session->tensors) listing.tensors.push_back(FactsOf(*tensor));
  return listing;
}

absl::StatusOr<SessionStore::TensorFacts> SessionStore::Describe(const SessionId& id, std::uint64_t tensor) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  const auto it = session->tensors.find(tensor);
  if (it == session->tensors.end()) return NoTensor(tensor);
  return FactsOf(*it->second);
}

void SessionStore::EndExpired(LetGo& let_go) {
  const SteadyTime now = environment_.now();
  std::vector<SessionPtr> over;
  for (const auto& [id, session] : sessions_) {
    if (now >= session->expires) over.push_back(session);
  }
  expired_ += static_cast<std::int64_t>(over.size());
  for (const SessionPtr& session : over) End(session, let_go);
}

void SessionStore::Sweep() {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  EndExpired(let_go);
  const SteadyTime now = environment_.now();
  for (const auto& [id, session] : sessions_) {
    std::vector<Upload> stalled;
    for (const Upload& upload : session->filling) {
      const bool quiet = now - upload->last_chunk >= absl::ToChronoNanoseconds(options_.fill_timeout);
      if (quiet && !upload->allocating()) stalled.push_back(upload);
    }
    abandoned_ += static_cast<std::int64_t>(stalled.size());
    for (const Upload& upload : stalled) {
      session->filling.erase(upload);
      Fail(*upload,
           FillFailed(upload->id, absl::StrCat("no chunk came for ", absl::FormatDuration(options_.fill_timeout), "; ",
                                               upload->received, " of ", upload->bytes, " bytes had arrived")),
           let_go);
    }
  }
}

SessionStore::Use SessionStore::use() const {
  absl::MutexLock lock(&mutex_);
  Use use = {.sessions = static_cast<std::int64_t>(sessions_.size()),
             .tensors = tensors_.used(),
             .used = resident_->used(),
             .peak = resident_->peak(),
             .limit = resident_->limit(),
             .shared_used = shared_->bytes.used(),
             .shared_peak = shared_->bytes.peak(),
             .shared_limit = shared_->bytes.limit(),
             .expired = expired_,
             .abandoned = abandoned_};
  for (const auto& [id, session] : sessions_) use.filling += static_cast<std::int64_t>(session->filling.size());
  return use;
}

}  // namespace kernd::core
