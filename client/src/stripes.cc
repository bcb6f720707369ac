#include "client/src/stripes.h"

#include <algorithm>

namespace kernd::client {

int Stripes::Lanes(std::int64_t bytes) const {
  const bool striped = options_.transfer == Transfer::kStriped ||
                       (options_.transfer == Transfer::kAuto && bytes >= options_.stripe_threshold_bytes);
  if (!striped) return 1;
  return static_cast<int>(std::clamp<std::int64_t>((bytes - 1) / kChunkBytes + 1, 1, options_.stripe_channels));
}

absl::Status Stripes::Run(int lanes, const CallTerms& terms,
                          const std::function<absl::Status(int, const Stripe&, const CallTerms&)>& work) {
  std::call_once(dialled_, [this] {
    for (int i = 0; i < options_.stripe_channels; ++i) {
      stripes_.push_back({Dial(options_), options_.endpoint, !IsUnix(options_.endpoint)});
    }
  });
  std::stop_source stop;
  const std::stop_callback stopped(terms.stop, [&stop] { stop.request_stop(); });
  CallTerms lane_terms = terms;
  lane_terms.stop = stop.get_token();
  std::mutex mutex;
  absl::Status first;
  const std::size_t turn = turn_.fetch_add(static_cast<std::size_t>(lanes), std::memory_order_relaxed);
  crew_.Run(lanes, [&](int lane) {
    if (stop.stop_requested()) return;
    const Stripe& stripe = stripes_[(turn + static_cast<std::size_t>(lane)) % stripes_.size()];
    const absl::Status status = work(lane, stripe, lane_terms);
    if (status.ok()) return;
    const std::lock_guard lock(mutex);
    if (first.ok()) first = status;
    stop.request_stop();
  });
  // Lanes that had not begun say nothing of it.
  if (terms.stop.stop_requested()) return absl::CancelledError("stopped by the caller");
  return first;
}

}  // namespace kernd::client
