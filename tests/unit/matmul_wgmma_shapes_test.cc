// Every shape of the matmul for SM 9.0 that a bench compares (tests/support/matmul_wgmma_candidates.cuh), on the
// emulator: right before a GPU sees it, and for the chosen ones and the others alike.
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "kernels/emulator/emulator.h"
#include "tests/gpu/matmul_gpu_run.h"
#include "tests/support/matmul_wgmma_candidates.cuh"

namespace kernd::testing::matmul {
namespace {

using gpu::matmul_wgmma::Candidate;

class MatmulWgmmaShapes : public MatmulGpu {
 protected:
  void TearDown() override { emulator::most_blocks = ~0u; }

  // A batch of A along or across K, each with the same B.
  static Case Make(std::int64_t m, std::int64_t n, std::int64_t k, int layout) {
    Random random(static_cast<std::uint64_t>(layout));
    Case c;
    c.p.transpose_a = layout & 1;
    c.p.transpose_b = layout & 2;
    c.p.a = SpecOf(DataType::kBF16, c.p.transpose_a ? Dims{2, k, m} : Dims{2, m, k});
    c.p.b = SpecOf(DataType::kBF16, c.p.transpose_b ? Dims{n, k} : Dims{k, n});
    c.a = Operand(c.p.a, 0);
    c.b = Operand(c.p.b, 0);
    c.a.FillNormal(random);
    c.b.FillNormal(random);
    return c;
  }

  std::vector<std::byte> Run(const Candidate& candidate, const Case& c, const DeviceCase& operands) const {
    const MatmulGeometry g = *Validate(c.p);
    const MmaTile tile = candidate.kernels({}).tile;
    DeviceBuffer d(g.d.bytes()), workspace(WgmmaPlanOf(tile, c.p, g, device_).workspace_bytes);
    const absl::Status status = gpu::LaunchWgmmaMatmul(candidate.kernels, c.p, g, device_, operands.Args(d.data()),
                                                       workspace.data(), candidate.group, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    d.ExpectGuardsIntact("D");
    workspace.ExpectGuardsIntact("the workspace");
    return d.Download();
  }

  // An odd number of tiles below one another, so that a cluster's last block has none; tails of every dimension; and
  // more steps of K than stages.
  void CheckAll(std::int64_t m, std::int64_t n, std::int64_t k) {
    for (int layout = 0; layout < 4; ++layout) {
      const Case c = Make(m, n, k, layout);
      const DeviceCase operands(c);
      const auto expected = *reference::MatmulValues(c.p, c.Args());
      for (const Candidate& candidate : gpu::matmul_wgmma::kCandidates) {
        SCOPED_TRACE(candidate.name + (", " + Describe(c)));
        emulator::ResetCounters();
        const auto d = Run(candidate, c, operands);
        ExpectMatches(c, d, expected);
        EXPECT_EQ(emulator::Counts().ldmatrix_conflicts, 0u);
        emulator::most_blocks = 2;
        EXPECT_TRUE(d == Run(candidate, c, operands)) << "another order of warps, and all tiles one after the other";
        emulator::most_blocks = ~0u;
      }
    }
  }
};

TEST_F(MatmulWgmmaShapes, WholeChunks) {
  CheckAll(264, 264, 392);
}
TEST_F(MatmulWgmmaShapes, OddColumns) {
  CheckAll(100, 129, 72);
}

}  // namespace
}  // namespace kernd::testing::matmul
