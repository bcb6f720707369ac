#include "server/core/session_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/core/session_errors.h"
#include "server/core/session_records.h"

namespace kernd::core {

SessionId RandomSessionId() {
  SessionId id;
  // The generator of a machine that runs daemons has long been seeded; without one no id would be safe.
  if (getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) std::abort();
  return id;
}

SessionStore::SessionStore(const Options& options, Environment environment)
    : options_(options),
      environment_(std::move(environment)),
      resident_(std::make_shared<TensorCharge::Budget>(options.resident_limit, kMaxTensors)),
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
    TensorCharge::Budgets budgets = {
        .session = std::make_shared<TensorCharge::Budget>(granted_quota, kMaxTensorsOfSession),
        .all = resident_,
        .device = &environment_.memory};
    it->second = std::make_shared<Session>(id, granted, std::move(budgets), shared_);
    it->second->expires = environment_.now() + absl::ToChronoNanoseconds(granted);
    return Opened{.id = id, .lease = granted, .quota = granted_quota};
  }
}

absl::StatusOr<SessionStore::SessionPtr> SessionStore::Enter(const SessionId& id, LetGo& let_go) {
  const auto it = sessions_.find(id);
  if (it == sessions_.end()) return NoSession();
  const SessionPtr session = it->second;
  const SteadyTime now = environment_.now();
  if (session->IsOver(now)) {
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

absl::StatusOr<std::int64_t> SessionStore::Close(const SessionId& id) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  return End(session, let_go);
}

absl::StatusOr<SessionStore::Hold> SessionStore::KeepOpen(const SessionId& id) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  ++session->holds;
  return Hold(session.get(), [this, session](const void*) {
    absl::MutexLock end_lock(&mutex_);
    --session->holds;
    session->expires = environment_.now() + absl::ToChronoNanoseconds(session->lease);
  });
}

absl::StatusOr<SessionStore::Listing> SessionStore::List(const SessionId& id) {
  LetGo let_go;
  absl::MutexLock lock(&mutex_);
  const auto it = sessions_.find(id);
  const SteadyTime before = it == sessions_.end() ? SteadyTime() : it->second->expires;
  KERND_ASSIGN_OR_RETURN(const SessionPtr session, Enter(id, let_go));
  Listing listing;
  listing.used = session->quota().used();
  listing.quota = session->quota().limit();
  listing.lease_left = absl::FromChrono((session->holds > 0 ? session->expires : before) - environment_.now());
  for (const auto& [number, tensor] : session->tensors) listing.tensors.push_back(FactsOf(*session->Visible(number)));
  return listing;
}

void SessionStore::EndExpired(LetGo& let_go) {
  const SteadyTime now = environment_.now();
  std::vector<SessionPtr> over;
  for (const auto& [id, session] : sessions_) {
    if (session->IsOver(now)) over.push_back(session);
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
             .tensors = resident_->tensors.used(),
             .used = resident_->bytes.used(),
             .peak = resident_->bytes.peak(),
             .limit = resident_->bytes.limit(),
             .shared_used = shared_->bytes.used(),
             .shared_peak = shared_->bytes.peak(),
             .shared_limit = shared_->bytes.limit(),
             .expired = expired_,
             .abandoned = abandoned_};
  for (const auto& [id, session] : sessions_) use.filling += static_cast<std::int64_t>(session->filling.size());
  return use;
}

}  // namespace kernd::core
