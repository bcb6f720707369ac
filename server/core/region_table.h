// The regions of memory that a client shares with the daemon in one session, and what all sessions may share together.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/byte_budget.h"
#include "server/core/shared_region.h"

namespace kernd::core {

// Not thread-safe, but for what is said so.
class RegionTable {
 public:
  // The kernel allows a process some 65,000 mappings, of which the heap needs its own.
  static constexpr std::int64_t kMaxRegions = 4096;

  // Of all tables.
  struct Budget {
    explicit Budget(std::int64_t limit) : bytes(limit), regions(kMaxRegions) {}
    ByteBudget bytes, regions;
  };
  // The leases of a table's regions may outlive it.
  explicit RegionTable(std::shared_ptr<Budget> budget) : budget_(std::move(budget)) {}

  // What a region is charged for; what it is bound to, it gives back when the region goes.
  struct Charge {
    std::shared_ptr<Budget> budget;
    ByteBudget::Lease bytes, place;
  };
  // Room for a region of `bytes`, which are counted in whole pages.
  //   INVALID_ARGUMENT                  not positive
  //   ALREADY_EXISTS                    the session has a region of this id
  //   RESOURCE_EXHAUSTED (TOO_LARGE)    can never fit
  //   RESOURCE_EXHAUSTED (MEMORY_FULL)  not now; retry_after is set
  absl::StatusOr<Charge> Reserve(std::uint64_t id, std::int64_t bytes) const;
  // `region` under that id, and charged. ALREADY_EXISTS.
  absl::Status Add(std::uint64_t id, std::shared_ptr<SharedRegion> region, Charge charge);

  // Whoever holds the region keeps it mapped. NOT_FOUND (REGION_NOT_FOUND).
  absl::StatusOr<std::shared_ptr<SharedRegion>> Find(std::uint64_t id) const;
  // The same, and it is no longer in the table.
  absl::StatusOr<std::shared_ptr<SharedRegion>> Remove(std::uint64_t id);
  std::vector<std::shared_ptr<SharedRegion>> RemoveAll();

 private:
  const std::shared_ptr<Budget> budget_;
  std::map<std::uint64_t, std::shared_ptr<SharedRegion>> regions_;
};

}  // namespace kernd::core
