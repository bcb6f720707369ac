// What the session store keeps of a session and of a tensor. Only the store's own files include this.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "server/core/byte_ranges.h"
#include "server/core/session_store.h"

namespace kernd::core {

// The versions of uploads that Delete has ended, by tensor: streams of them may still be on their way. The latest
// kMost of a session, as ids are for the client to choose.
class DeletedUploads {
 public:
  static constexpr std::size_t kMost = 256;

  // `version` is not 0: an upload without one cannot be told from the next.
  void Add(std::uint64_t tensor, std::uint64_t version) {
    if (Entry* const there = Of(tensor)) {
      there->version = std::max(there->version, version);
    } else if (entries_.size() < kMost) {
      entries_.push_back({tensor, version});
    } else {
      entries_[oldest_] = {tensor, version};
      oldest_ = (oldest_ + 1) % kMost;
    }
  }
  // The highest that was deleted of this tensor; 0: none.
  std::uint64_t VersionOf(std::uint64_t tensor) const {
    const Entry* const there = const_cast<DeletedUploads*>(this)->Of(tensor);
    return there == nullptr ? 0 : there->version;
  }

 private:
  struct Entry {
    std::uint64_t tensor, version;
  };
  Entry* Of(std::uint64_t tensor) {
    const auto it =
        std::find_if(entries_.begin(), entries_.end(), [tensor](const Entry& e) { return e.tensor == tensor; });
    return it == entries_.end() ? nullptr : &*it;
  }

  std::vector<Entry> entries_;
  std::size_t oldest_ = 0;
};

// Guarded by the store's lock.
struct SessionStore::Session {
  const SessionId id;
  const absl::Duration lease;
  const TensorCharge::Budgets budgets;
  SteadyTime expires;
  int holds = 0;  // not 0: does not expire
  bool open = true;
  std::map<std::uint64_t, Upload> tensors;
  absl::flat_hash_set<Upload> filling;
  DeletedUploads deleted;
  RegionTable regions;

  Session(const SessionId& id, absl::Duration lease, TensorCharge::Budgets budgets,
          std::shared_ptr<RegionTable::Budget> shared)
      : id(id), lease(lease), budgets(std::move(budgets)), regions(std::move(shared)) {}

  // Null: there is none.
  Upload Newest(std::uint64_t tensor) const {
    const auto it = tensors.find(tensor);
    return it == tensors.end() ? nullptr : it->second;
  }
  // The one that calls see: not the one that is about to take its place.
  Upload Visible(std::uint64_t tensor) const;
  bool IsOver(SteadyTime now) const { return holds == 0 && now >= expires; }
  ByteBudget& quota() const { return budgets.session->bytes; }
};

// Memory with what it is charged for; the charge ends after the memory.
struct SessionStore::Holding {
  TensorCharge charge;
  std::unique_ptr<TensorMemory> memory;
};

// Guarded by the store's lock, but for what never changes.
struct SessionStore::Tensor {
  const std::uint64_t id, version;
  const TensorSpec spec;
  const std::int64_t bytes;
  const std::weak_ptr<Session> session;
  std::uint64_t uploaded;  // the highest version that an upload of this id had; 0: none had one

  TensorCharge record;  // nothing once it is no longer attached
  TensorState state = TensorState::kFilling;
  bool attached = true;                  // is still the session's tensor of this id
  absl::Status failure;                  // of a FAILED one
  std::shared_ptr<TensorMemory> memory;  // null while it is being allocated, and once FAILED
  Upload replaces;                       // while it is being allocated: what is there until it has its memory
  ByteRanges claimed;                    // has arrived, or is being written
  std::int64_t received = 0;
  SteadyTime last_chunk;

  Tensor(std::uint64_t id, std::uint64_t version, TensorSpec spec, const SessionPtr& session)
      : id(id),
        version(version),
        spec(std::move(spec)),
        bytes(this->spec.bytes()),
        session(session),
        uploaded(version),
        claimed(ByteRanges::PiecesFor(bytes)) {}
  bool allocating() const { return memory == nullptr && state == TensorState::kFilling; }
  bool unused() const { return memory == nullptr || memory.use_count() == 1; }
};

inline SessionStore::Upload SessionStore::Session::Visible(std::uint64_t tensor) const {
  const Upload newest = Newest(tensor);
  return newest != nullptr && newest->replaces != nullptr ? newest->replaces : newest;
}

}  // namespace kernd::core
