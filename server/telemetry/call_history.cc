#include "server/telemetry/call_history.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace kernd::telemetry {
namespace {

std::vector<std::string> WithUnknown(std::vector<std::string> methods) {
  std::erase(methods, "unknown");
  std::sort(methods.begin(), methods.end());
  methods.push_back("unknown");
  return methods;
}

std::unordered_map<std::string, std::size_t> IndicesOf(const std::vector<std::string>& names) {
  std::unordered_map<std::string, std::size_t> indices;
  for (std::size_t i = 0; i < names.size(); ++i) indices[names[i]] = i;
  return indices;
}

}  // namespace

CallHistory::CallHistory(std::vector<std::string> methods)
    : methods_(WithUnknown(std::move(methods))),
      method_indices_(IndicesOf(methods_)),
      counts_(methods_.size() * kNumCodes) {}

void CallHistory::Add(const core::CallRecord& record, core::SteadyTime now) {
  const auto found = method_indices_.find(record.method);
  const std::size_t method = found == method_indices_.end() ? methods_.size() - 1 : found->second;
  const auto code = static_cast<std::size_t>(record.status.code());
  counts_.Add(method * kNumCodes + (code < kNumCodes ? code : static_cast<std::size_t>(absl::StatusCode::kUnknown)),
              now);
  total_.Add(record.total, now);
  for (std::size_t i = 0; i < core::kNumStages; ++i) {
    const absl::Duration time = record.stages[static_cast<core::Stage>(i)];
    if (time > absl::ZeroDuration()) stages_[i].Add(time, now);
  }
  if (!record.status.ok()) errors_.Add(record, absl::Now());
}

RecentCalls CallHistory::Read(core::SteadyTime now) const {
  RecentCalls recent;
  recent.window = absl::FromChrono(std::min(SlidingCounts::Span(now), std::chrono::nanoseconds(now - started_)));
  std::vector<std::uint64_t> sums(counts_.counters());
  for (std::size_t i = 0; i < recent.slots.size(); ++i) {
    const std::vector<std::uint64_t> slot = counts_.Slot(static_cast<int>(recent.slots.size() - 1 - i), now);
    for (std::size_t j = 0; j < slot.size(); ++j) {
      sums[j] += slot[j];
      (j % kNumCodes == 0 ? recent.slots[i].ok : recent.slots[i].failed) += slot[j];
    }
  }
  for (std::size_t j = 0; j < sums.size(); ++j) {
    if (sums[j] == 0) continue;
    recent.calls.push_back(
        {.method = methods_[j / kNumCodes], .code = static_cast<absl::StatusCode>(j % kNumCodes), .calls = sums[j]});
  }
  recent.total = total_.Read(now);
  for (std::size_t i = 0; i < core::kNumStages; ++i) recent.stages[i] = stages_[i].Read(now);
  recent.errors = errors_.Read();
  return recent;
}

}  // namespace kernd::telemetry
