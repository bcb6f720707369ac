// What only the emulator can tell of the tensor-core matmul: that shared memory has no bank conflicts, and that neither
// the order of warps nor the size of the grid shows in the bits.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/emulator.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::testing::matmul {
namespace {

class MatmulEmulated : public MatmulGpu {
 protected:
  void TearDown() override {
    emulator::SetOrder(emulator::Order::kVaried);
    emulator::most_blocks = ~0u;
    MatmulGpu::TearDown();
  }

  // Reads operands as they lie, whatever that costs.
  static bool IsSkinny(const MatmulVariant& row) { return row.info.name.ends_with("_skinny"); }

  // A case for the row with operands in one of four orientations, in lines of whole chunks of 16 bytes, or not.
  static Case CaseFor(const MatmulVariant& row, std::int64_t m, std::int64_t n, std::int64_t k, int layout) {
    const DataType type = row.info.dtypes[0];
    Case c;
    c.p.transpose_a = layout & 1;
    c.p.transpose_b = layout & 2;
    c.p.numerics = NumericsFor(row);
    c.p.a = SpecOf(type, c.p.transpose_a ? Dims{k, m} : Dims{m, k});
    c.p.b = SpecOf(type, c.p.transpose_b ? Dims{n, k} : Dims{k, n});
    Random random(5);
    c.a = Operand(c.p.a, 0);
    c.b = Operand(c.p.b, 0);
    c.a.FillNormal(random);
    c.b.FillNormal(random);
    return c;
  }
};

// Every instantiation: of each row, each layout in memory, aligned and not.
TEST_F(MatmulEmulated, NoBankConflictsAndCopiesWhereTheyCan) {
  for (const MatmulVariant& row : MatmulVariants()) {
    for (int layout = 0; layout < 4; ++layout) {
      for (const std::int64_t odd : {0, 1}) {
        const Case c = CaseFor(row, 48 + odd, 64 + odd, 96 + odd, layout);
        const std::string what = row.info.name + ", " + Describe(c);
        ASSERT_EQ(WhyNot(row, c.p, *Validate(c.p)), "") << what;
        emulator::ResetCounters();
        const auto d = Compute(row, c, DeviceCase(c));
        ExpectMatches(c, d, *reference::MatmulValues(c.p, c.Args()));
        const emulator::Counters& counts = emulator::Counts();
        EXPECT_EQ(counts.ldmatrix_conflicts, 0u) << what;
        if (row.min_sm == 90) {
          EXPECT_GT(counts.wgmma, 0u) << what;
          EXPECT_GT(counts.bulk_copies, 0u) << what;
          EXPECT_EQ(counts.launches, odd == 0 ? 1u : 3u) << what << ": crooked operands are packed, others are not";
          continue;
        }
        EXPECT_GT(counts.mma, 0u) << what;
        if (IsSkinny(row)) {
          EXPECT_EQ(counts.launches, 1u) << what;
          continue;
        }
        // 8 and 32 bits cannot be turned by ldmatrix.
        const bool turned = ElementBytes(c.p.a.dtype) != 2 && layout != 2;
        EXPECT_EQ(counts.copies > 0, row.min_sm >= 80 && odd == 0 && !turned) << what;
      }
    }
  }
}

// Crooked operands, and those that ldmatrix does not turn, are copied first on a device where that pays: the bits are
// those of the way through registers.
TEST_F(MatmulEmulated, PackedOperandsGiveTheSameBits) {
  DeviceInfo slow = device_;
  slow.clock_khz = 1000;  // beside its memory
  for (const MatmulVariant& row : MatmulVariants()) {
    if (row.min_sm != 80 || IsSkinny(row)) continue;
    for (int layout = 0; layout < 4; ++layout) {
      Case c = CaseFor(row, 49, 65, 97, layout);
      c.p.b.shape.insert(c.p.b.shape.begin(), 3);
      c.b = Operand(c.p.b, 0);
      Random random(7);
      c.b.FillNormal(random);
      const MatmulGeometry g = *Validate(c.p);
      const std::string what = row.info.name + ", " + Describe(c);
      const DeviceCase operands(c);
      const auto direct = Compute(row, c, operands);
      ExpectMatches(c, direct, *reference::MatmulValues(c.p, c.Args()));
      EXPECT_EQ(row.workspace_bytes(c.p, g, device_), 0) << what;
      std::swap(device_, slow);
      EXPECT_GT(row.workspace_bytes(c.p, g, device_), 0) << what;
      EXPECT_TRUE(direct == Compute(row, c, operands)) << what;
      std::swap(device_, slow);
    }
  }
}

TEST_F(MatmulEmulated, NeitherOrderNorGridShows) {
  for (const MatmulVariant& row : MatmulVariants()) {
    const Case c = CaseFor(row, 150, 100, 2056, 0);
    const DeviceCase operands(c);
    SCOPED_TRACE(row.info.name);
    emulator::SetOrder(emulator::Order::kAscending);
    const auto first = Compute(row, c, operands);
    emulator::SetOrder(emulator::Order::kDescending);
    EXPECT_TRUE(first == Compute(row, c, operands)) << "descending";
    emulator::SetOrder(emulator::Order::kRandom, 1);
    EXPECT_TRUE(first == Compute(row, c, operands)) << "random";
    emulator::SetOrder(emulator::Order::kVaried);
    emulator::most_blocks = 1;
    EXPECT_TRUE(first == Compute(row, c, operands)) << "one block";
    emulator::most_blocks = ~0u;
  }
}

// As many as MoreItemsThanAGridHasRows has on a device, for one row.
TEST_F(MatmulEmulated, MoreItemsThanAGridHasRows) {
  const std::int64_t items = 66'000;
  Case c;
  c.p.a = SpecOf(DataType::kI8, {items, 1, 3});
  c.p.b = SpecOf(DataType::kI8, {3, 2});
  c.a = Operand(c.p.a, 0);
  c.b = Operand(c.p.b, 0);
  Random random(6);
  c.a.FillNormal(random);
  c.b.FillNormal(random);
  const auto d = Compute(Row(DataType::kI8, "mma_32x32x32"), c, DeviceCase(c));
  ExpectMatches(c, d, *reference::MatmulValues(c.p, c.Args()));
}

}  // namespace
}  // namespace kernd::testing::matmul
