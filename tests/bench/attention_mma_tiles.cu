// Tiles of the tensor-core attention side by side: what kernels/gpu/attention_mma_family.cuh chooses from. One line of
// JSON for each tile and problem, for run_attention_mma.py.
#include "kernels/gpu/attention_mma_tile.cuh"
#include "tests/bench/attention_tiles.h"

namespace kernd::gpu {
namespace {

using attention_mma::TileKernel;
using attention_mma::TileShape;

struct Candidate {
  const char* name;  // rows of a warp x warps, buffers, blocks of an SM
  MmaKernel kernel;
};

template <unsigned kD>
std::vector<Candidate> Candidates() {
  constexpr MmaKind kKind = MmaKind::kF16Sm80;
  if constexpr (kD > 128) {
    return {{"16x4 1buf 2blk", TileKernel<TileShape<kKind, kD, kD, 1, 4, 2, 1>>()},
            {"16x8 1buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 1>>()},
            {"16x8 2buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 2>>()}};
  } else {
    return {{"32x4 1buf 2blk", TileKernel<TileShape<kKind, kD, kD, 2, 4, 2, 1>>()},
            {"32x4 2buf 2blk", TileKernel<TileShape<kKind, kD, kD, 2, 4, 2, 2>>()},
            {"16x4 1buf 3blk", TileKernel<TileShape<kKind, kD, kD, 1, 4, 3, 1>>()},
            {"16x8 1buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 1>>()},
            {"16x8 2buf 1blk", TileKernel<TileShape<kKind, kD, kD, 1, 8, 1, 2>>()}};
  }
}

template <unsigned kD>
void TimeAll(std::int64_t length, bool causal, const DeviceInfo& device) {
  const TiledProblem p(kD, length, causal);
  const AttentionParams params = ParamsOf(p.problem(), p.geometry(), p.args(), p.tables());
  for (const Candidate& candidate : Candidates<kD>()) {
    if (static_cast<std::int64_t>(candidate.kernel.shared_bytes) > device.shared_memory_optin) continue;
    const absl::Status loaded = candidate.kernel.load();
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s: %s\n", candidate.name, std::string(loaded.message()).c_str());
      continue;
    }
    AttentionPlan plan{.section = SectionOf(p.geometry(), 2, device)};
    CutIntoPieces(params, candidate.kernel.rows, kD, length, 0, plan);
    p.Time(candidate.name, [&] { return candidate.kernel.launch(params, plan, nullptr); });
  }
}

}  // namespace
}  // namespace kernd::gpu

int main() {
  return kernd::gpu::ForUsualProblems([](std::int64_t length, bool causal, const kernd::DeviceInfo& device) {
    kernd::gpu::TimeAll<64>(length, causal, device);
    kernd::gpu::TimeAll<128>(length, causal, device);
    kernd::gpu::TimeAll<256>(length, causal, device);
  });
}
