// Shapes of the attention for SM 9.0 side by side: what kernels/gpu/attention_wgmma_tile.cuh chooses from. One line of
// JSON for each shape and problem, for run_attention_mma.py.
#include "tests/bench/attention_tiles.h"
#include "tests/support/attention_wgmma_candidates.cuh"

namespace kernd::gpu {
namespace {

template <unsigned kD>
void TimeAll(std::int64_t length, bool causal, const DeviceInfo& device) {
  const TiledProblem p(kD, length, causal);
  std::vector<std::byte> first;
  for (const attention_wgmma::Candidate& candidate : attention_wgmma::Candidates<kD>()) {
    const absl::Status loaded = candidate.kernel.load();
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s: %s\n", candidate.name, std::string(loaded.message()).c_str());
      continue;
    }
    p.ForgetOutput();
    p.Time(candidate.name, [&] {
      return LaunchWgmma(candidate.kernel, p.problem(), p.geometry(), device, p.args(), p.tables(), nullptr);
    });
    // All have tiles of as many keys, and so the same bits. Not JSON: this is no time.
    const std::vector<std::byte> output = p.SampleOfOutput();
    if (first.empty()) first = output;
    if (output != first) {
      std::printf("WRONG: %s, d %u, length %ld%s: other bits than the first\n", candidate.name, kD,
                  static_cast<long>(length), causal ? ", causal" : "");
    }
  }
}

}  // namespace
}  // namespace kernd::gpu

int main() {
  return kernd::gpu::ForUsualProblems([](std::int64_t length, bool causal, const kernd::DeviceInfo& device) {
    if (device.sm != 90) return;
    kernd::gpu::TimeAll<128>(length, causal, device);
    kernd::gpu::TimeAll<256>(length, causal, device);
    kernd::gpu::TimeAll<64>(length, causal, device);
  });
}
