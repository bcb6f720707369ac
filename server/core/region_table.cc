#include "server/core/region_table.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/tensor.h"

namespace kernd::core {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr absl::Duration kRetry = absl::Seconds(1);

absl::Status Taken(std::uint64_t id) {
  return WithDetail(absl::AlreadyExistsError(
                        absl::StrCat("region_id is ", id, ": the session has such a region; unregister it first")),
                    {.reason = std::string(reason::kInvalidField), .field = "region_id"});
}

absl::Status NoRegion(std::uint64_t id) {
  return WithDetail(absl::NotFoundError(absl::StrCat("region_id is ", id, ": the session has no such region")),
                    {.reason = std::string(reason::kRegionNotFound), .field = "region_id"});
}

absl::Status NoRoom(std::string_view reason, std::int64_t needed, const ByteBudget& budget) {
  const bool never = reason == reason::kTooLarge;
  return WithDetail(
      absl::ResourceExhaustedError(
          absl::StrCat("the region needs ", needed, " bytes and ", never ? "can never fit" : "does not fit now",
                       ": of the ", budget.limit(), " that clients may share, ", budget.used(), " are taken")),
      {.reason = std::string(reason),
       .field = "size_bytes",
       .retry_after = never ? std::nullopt : std::optional(kRetry),
       .metadata = {{"needed_bytes", absl::StrCat(needed)}, {"limit_bytes", absl::StrCat(budget.limit())}}});
}

}  // namespace

absl::StatusOr<RegionTable::Charge> RegionTable::Reserve(std::uint64_t id, std::int64_t bytes) const {
  if (bytes <= 0) return InvalidField("size_bytes", absl::StrCat(bytes), "must be positive");
  if (regions_.contains(id)) return Taken(id);
  const std::optional<std::int64_t> up = CheckedAdd(bytes, kPage - 1);
  const std::int64_t needed = up ? *up / kPage * kPage : bytes;
  if (needed > budget_->bytes.limit()) return NoRoom(reason::kTooLarge, needed, budget_->bytes);
  Charge charge = {.budget = budget_};
  if (!budget_->bytes.Reserve(needed, charge.bytes)) return NoRoom(reason::kMemoryFull, needed, budget_->bytes);
  if (!budget_->regions.Reserve(1, charge.place)) {
    return WithDetail(absl::ResourceExhaustedError(absl::StrCat("all ", kMaxRegions, " shared regions are taken")),
                      {.reason = std::string(reason::kMemoryFull), .field = "region_id", .retry_after = kRetry});
  }
  return charge;
}

absl::Status RegionTable::Add(std::uint64_t id, std::shared_ptr<SharedRegion> region, Charge charge) {
  // The charge ends after the mapping.
  struct Held {
    Charge charge;
    std::shared_ptr<SharedRegion> region;
  };
  SharedRegion* const data = region.get();
  auto held = std::make_shared<Held>(Held{std::move(charge), std::move(region)});
  if (!regions_.try_emplace(id, std::move(held), data).second) return Taken(id);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SharedRegion>> RegionTable::Find(std::uint64_t id) const {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return NoRegion(id);
  return it->second;
}

absl::StatusOr<std::shared_ptr<SharedRegion>> RegionTable::Remove(std::uint64_t id) {
  const auto it = regions_.find(id);
  if (it == regions_.end()) return NoRegion(id);
  std::shared_ptr<SharedRegion> region = std::move(it->second);
  regions_.erase(it);
  return region;
}

std::vector<std::shared_ptr<SharedRegion>> RegionTable::RemoveAll() {
  std::vector<std::shared_ptr<SharedRegion>> regions;
  for (auto& [id, region] : regions_) regions.push_back(std::move(region));
  regions_.clear();
  return regions;
}

}  // namespace kernd::core
