// Sessions, and the tensors that clients keep in them between calls. No network, and no clock of its own.
//
//   Open --> session --+-- BeginPut --> FILLING --Write, Write, ...--> READY --Find--> operands of calls
//                      |                   |  no chunk for fill_timeout, or the device failed
//                      |                   +--> FAILED: memory given back; the same version may begin again
//                      +-- NewResult --> (a call writes it) --> Publish --> READY
//
// A session ends when it is closed, or when for its lease nobody has used it: neither begun anything, nor had anything
// under way. Nothing else ever takes a tensor away: what does not fit is refused. Whoever uses a tensor holds its
// memory, and the memory holds what it is charged for; so a tensor that is deleted while calls read it lives, and
// counts, until the last of them has ended.
//
// The files: session_store.cc has the sessions, session_uploads.cc how tensors are filled, session_tensors.cc how they
// are found, made by calls, and deleted; session_records.h is what they keep.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernd/kernels/tensor.h"
#include "server/core/byte_budget.h"
#include "server/core/region_table.h"
#include "server/core/stage.h"
#include "server/core/tensor_charge.h"
#include "server/core/tensor_memory.h"

namespace kernd::core {

using SessionId = std::array<std::uint8_t, 16>;

// From the system's generator: nobody can guess another's.
SessionId RandomSessionId();

enum class TensorState { kFilling, kReady, kFailed };

// Thread-safe. Copies to tensors run outside its lock, so that an upload never holds up another's calls.
class SessionStore {
 public:
  struct Options {
    std::int64_t resident_limit = 0;  // bytes of all sessions
    std::int64_t session_quota = 0;   // bytes that one session may have, and has unless it asks for less
    std::int64_t max_sessions = 0;
    std::int64_t shared_limit = 0;  // bytes of memory that clients share with the daemon, of all sessions
    absl::Duration default_lease, max_lease;
    absl::Duration fill_timeout;  // after its last chunk
  };

  // What the store is built on; must outlive it.
  struct Environment {
    ByteBudget& memory;  // of the device, shared with the calls
    std::function<absl::StatusOr<std::unique_ptr<TensorMemory>>(std::int64_t bytes)> allocate;
    std::function<SteadyTime()> now = SteadyNow;
    std::function<SessionId()> new_id = RandomSessionId;
  };

  // However much there is for them: tables that large are slow to list, and to end.
  static constexpr std::int64_t kMaxTensorsOfSession = std::int64_t{1} << 16;
  static constexpr std::int64_t kMaxTensors = std::int64_t{1} << 20;

  SessionStore(const Options& options, Environment environment);
  ~SessionStore();

  struct Opened {
    SessionId id;
    absl::Duration lease;
    std::int64_t quota = 0;
  };
  // `lease` and `quota` are wishes, 0 for the default; more than the limits is cut down to them.
  //   INVALID_ARGUMENT                    negative
  //   RESOURCE_EXHAUSTED (SESSIONS_FULL)  retry_after is set
  absl::StatusOr<Opened> Open(absl::Duration lease, std::int64_t quota);

  // Whatever names a session, and Write, renews its lease. NOT_FOUND (SESSION_NOT_FOUND): there is none, any more.

  // The session does not expire while somebody has one of these, and its lease begins anew when the last of them goes.
  // For calls and transfers, which may take longer than the lease. Goes before the store; not under a lock that the
  // store is called under.
  using Hold = std::shared_ptr<const void>;
  absl::StatusOr<Hold> KeepOpen(const SessionId& id);

  // Bytes free now; those in use follow when their last call ends.
  absl::StatusOr<std::int64_t> Close(const SessionId& id);

  // A tensor as those who fill it hold it.
  struct Tensor;
  using Upload = std::shared_ptr<Tensor>;

  // Makes the tensor, or joins those who fill it already: same version and spec. A READY tensor is joined as well, and
  // takes nothing any more. A higher version, or the same one of a FAILED tensor, takes the old one's place once it has
  // its memory; where it gets none, the old one stays. Only where both do not fit beside each other, and nobody uses
  // the old one, that goes first.
  //   INVALID_ARGUMENT                  another spec than this version has
  //   NOT_FOUND (TENSOR_NOT_FOUND)      this version, not 0, or a higher one, was deleted: a late stream of its upload
  //   FAILED_PRECONDITION (OLD_VERSION)  the tensor has a higher version
  //   errors of TensorCharge::Take, and of `allocate`
  absl::StatusOr<Upload> BeginPut(const SessionId& id, std::uint64_t tensor, const TensorSpec& spec,
                                  std::uint64_t version);

  // Bytes of the tensor from `offset` on. Bytes that are there already are dropped. READY with the last of them.
  //   INVALID_ARGUMENT (OVERLAP)          overlaps in part with what is there; INVALID_FIELD: in too many pieces
  //   OUT_OF_RANGE (OUT_OF_RANGE)         beyond the tensor's end
  //   FAILED_PRECONDITION (FILL_FAILED)   failed meanwhile
  //   NOT_FOUND (TENSOR_NOT_FOUND)        deleted or replaced meanwhile
  absl::Status Write(const Upload& upload, std::int64_t offset, absl::Span<const absl::Span<const std::byte>> runs);

  struct Progress {
    TensorState state = TensorState::kFilling;
    std::int64_t received = 0;  // bytes
  };
  // Errors of Write for one that failed or was taken away.
  absl::StatusOr<Progress> ProgressOf(const Upload& upload);

  // A READY tensor. Holding `memory` makes a user.
  struct Resident {
    TensorSpec spec;
    std::shared_ptr<TensorMemory> memory;
    std::uint64_t version = 0;
    std::int64_t users = 0;  // beside this one
  };
  //   NOT_FOUND (TENSOR_NOT_FOUND)
  //   FAILED_PRECONDITION (NOT_READY)    still FILLING; retry_after is set
  //   FAILED_PRECONDITION (FILL_FAILED)  FAILED
  absl::StatusOr<Resident> Find(const SessionId& id, std::uint64_t tensor);

  // Memory for the result of a call, and a place in the session, both charged to it; nobody sees it before Publish.
  struct Result {
    TensorSpec spec;
    std::shared_ptr<TensorMemory> memory;
    TensorCharge record;
  };
  // Errors of TensorCharge::Take, and of `allocate`.
  absl::StatusOr<Result> NewResult(const SessionId& id, const TensorSpec& spec);
  // The results of a call are written: each is now the tensor of its id, in the place of one that was it before, and
  // one version later. Either all are, or, where there is no session any more, none. The ids differ.
  absl::Status Publish(const SessionId& id, std::vector<std::pair<std::uint64_t, Result>> results);

  // Ids that are none are passed over, so that a repeated call is one. An upload of a version other than 0 ends with
  // its tensor: see BeginPut. Bytes free now.
  absl::StatusOr<std::int64_t> Delete(const SessionId& id, absl::Span<const std::uint64_t> tensors);

  // Memory that the client shares: `map`, called outside the lock, becomes the session's region of this id. Errors of
  // RegionTable::Reserve, and of `map`.
  using MapRegion = std::function<absl::StatusOr<std::shared_ptr<SharedRegion>>()>;
  absl::Status AddRegion(const SessionId& id, std::uint64_t region, std::int64_t bytes, const MapRegion& map);
  // Holding it keeps it mapped. NOT_FOUND (REGION_NOT_FOUND).
  absl::StatusOr<std::shared_ptr<SharedRegion>> FindRegion(const SessionId& id, std::uint64_t region);
  // Calls that use it keep it until they end. NOT_FOUND (REGION_NOT_FOUND).
  absl::Status RemoveRegion(const SessionId& id, std::uint64_t region);

  struct TensorFacts {
    std::uint64_t id = 0;
    TensorSpec spec;
    TensorState state = TensorState::kFilling;
    std::int64_t users = 0;  // that hold its memory now
    std::uint64_t version = 0;
  };
  struct Listing {
    std::vector<TensorFacts> tensors;  // by id
    std::int64_t used = 0, quota = 0;  // bytes
    absl::Duration lease_left;         // before this call renewed it
  };
  absl::StatusOr<Listing> List(const SessionId& id);
  // One of them, in any state.
  absl::StatusOr<TensorFacts> Describe(const SessionId& id, std::uint64_t tensor);

  // Ends what is over: sessions by their lease, uploads by fill_timeout. To be called now and then.
  void Sweep();

  struct Use {
    std::int64_t sessions = 0, tensors = 0, filling = 0;
    std::int64_t used = 0, peak = 0, limit = 0;                       // bytes
    std::int64_t shared_used = 0, shared_peak = 0, shared_limit = 0;  // bytes of regions
    std::int64_t expired = 0, abandoned = 0;  // sessions and uploads that time ended, since the start
  };
  Use use() const;

 private:
  struct Session;
  struct Holding;
  using SessionPtr = std::shared_ptr<Session>;
  // Memory that nobody needs any more, to be let go of outside the lock.
  using LetGo = std::vector<std::shared_ptr<void>>;

  absl::StatusOr<SessionPtr> Enter(const SessionId& id, LetGo& let_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::int64_t End(const SessionPtr& session, LetGo& let_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the tensor, and the one that was to take its place, out of their session. Bytes free when `let_go` is.
  std::int64_t Remove(Session& session, std::uint64_t tensor, LetGo& let_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For tensors that are not in the table any more.
  std::int64_t Detach(Session& session, const Upload& tensor, LetGo& let_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(Tensor& tensor, absl::Status why, LetGo& let_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static TensorFacts FactsOf(const Tensor& tensor);
  absl::Status CheckAttached(const Tensor& tensor) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The charge of a new tensor of that spec; perhaps in the place of `old`, which may be null.
  absl::StatusOr<TensorCharge> ChargeFor(Session& session, const TensorSpec& spec, const Upload& old)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Joins an upload, or says why there can be none; null: it is to be made.
  absl::StatusOr<Upload> Join(const Session& session, std::uint64_t tensor, const TensorSpec& spec,
                              std::uint64_t version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `memory`, which an upload was given, or why it got none, is its; it takes the place of what was there.
  absl::StatusOr<Upload> Begin(const Upload& upload, absl::StatusOr<std::shared_ptr<TensorMemory>> memory);
  void EndExpired(LetGo& let_go) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<TensorMemory>> Allocate(TensorCharge charge, std::int64_t bytes);

  const Options options_;
  const Environment environment_;
  const std::shared_ptr<TensorCharge::Budget> resident_;  // its leases may outlive the store
  const std::shared_ptr<RegionTable::Budget> shared_;     // as `resident_`

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<SessionId, SessionPtr> sessions_ ABSL_GUARDED_BY(mutex_);
  std::int64_t expired_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t abandoned_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kernd::core
