#include "server/app/prewarm.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "server/config/machine_limits.h"
#include "server/config/process_setup.h"
#include "server/core/stage.h"
#include "spdlog/spdlog.h"

namespace kernd {
namespace {

// Of the heap; what a large call's operands take, and what small machines can spare.
std::size_t HeapToTouch() {
  return static_cast<std::size_t>(std::min<std::int64_t>(32 << 20, config::ReadMachineLimits().memory_bytes / 64));
}

}  // namespace

absl::Status Prewarm(core::Engine& engine, const std::vector<core::DeclaredShape>& declared, Life& life) {
  const core::SteadyTime began = core::SteadyNow();
  config::TouchHeap(HeapToTouch());
  const absl::Status warm = engine.Start(
      [&](int done, int total, std::string_view what) {
        life.to_prewarm = total;
        life.prewarmed = done;
        spdlog::debug("prewarm {}/{} {}", done, total, what);
      },
      declared,
      [&](const core::DeclaredShape& shape, const absl::Status& why) {
        ++life.prewarm_refused;
        spdlog::warn("--prewarm {} cannot be run here: {}", shape.text, std::string(why.message()));
      });
  if (!warm.ok()) return warm;
  life.prewarm_ns = absl::ToInt64Nanoseconds(core::Since(began));
  spdlog::info("prewarm took {:.3f} s: {} kernels, {} shapes of which {} cannot be run here",
               life.prewarm_ns.load() * 1e-9, life.to_prewarm.load() - static_cast<std::int64_t>(declared.size()),
               declared.size(), life.prewarm_refused.load());
  return absl::OkStatus();
}

}  // namespace kernd
