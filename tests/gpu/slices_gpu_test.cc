// Slices of long steps, and the scan of --debug-checks, on the device. Every row of the tables, cut as finely as can
// be: attention must have the whole's bits, and so must a matmul of a row that promises them.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/kernels/non_finite.h"
#include "server/gpu/slices.h"
#include "tests/gpu/attention_gpu_case.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::gpu {
namespace {

// Longer with every row, whatever the variant itself says: then all are cut.
double Rows(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo&) {
  double rows = 1;
  for (const AttentionSequence& s : g.sequences) rows += static_cast<double>(g.q_heads * s.q_rows);
  return rows;
}
double Rows(const MatmulProblem&, const MatmulGeometry& g, const DeviceInfo&) {
  return static_cast<double>(g.batch * g.m);
}

class AttentionSlices : public DeviceTest {
 protected:
  // In slices; nothing where the problem is not cut.
  std::optional<Result> InSlices(AttentionVariant variant, const Case& c) {
    const AttentionProblem& p = c.p;
    const AttentionGeometry g = *Validate(p);
    variant.estimate = Rows;
    const std::vector<AttentionSlice> slices = SlicesOf(p, g, variant, Device(), 0);
    if (slices.empty()) return std::nullopt;
    const OnDevice operands(c);
    const AttentionTableLayout layout(p, g);
    std::vector<std::byte> table(static_cast<std::size_t>(layout.bytes()));
    layout.Write(p, g, table.data());
    const DeviceBuffer tables(table.data(), layout.bytes()), o(g.o_spec.bytes()),
        lse(g.lse_spec ? g.lse_spec->bytes() : 0);
    AttentionArgs args = operands.Args();
    args.o = o.data();
    args.lse = p.want_lse ? static_cast<float*>(lse.data()) : nullptr;
    const AttentionTables at = layout.At(static_cast<const std::byte*>(tables.data()));
    for (const AttentionSlice& slice : slices) {
      const DeviceBuffer workspace(variant.workspace_bytes(p, slice.geometry, Device()));
      const absl::Status launched =
          variant.launch(p, slice.geometry, Device(), slice.Of(args), slice.Of(at), workspace.data(), nullptr);
      EXPECT_TRUE(launched.ok()) << launched;
      testing::ExpectDeviceFine(variant.info.name.c_str());
      workspace.ExpectGuardsIntact("workspace");
    }
    o.ExpectGuardsIntact("O");
    lse.ExpectGuardsIntact("LSE");
    return Result{o.Download(), lse.Download()};
  }
};

TEST_F(AttentionSlices, HaveTheBitsOfTheWhole) {
  int cut = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Case c = RandomCase(seed);
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (!Takes(variant, c.p)) continue;
      SCOPED_TRACE(variant.info.name + " seed " + std::to_string(seed) + " " + Describe(c));
      const std::optional<Result> slices = InSlices(variant, c);
      if (!slices) continue;
      ++cut;
      EXPECT_TRUE(*slices == Compute(variant, c, OnDevice(c)));
    }
  }
  EXPECT_GT(cut, 50);
}

class MatmulSlices : public testing::matmul::MatmulGpu {};

TEST_F(MatmulSlices, AreNearTheReferenceOrHaveTheBitsOfTheWhole) {
  int cut = 0;
  for (const DataType type : {DataType::kF32, DataType::kBF16, DataType::kF8E4M3, DataType::kI8, DataType::kF64}) {
    for (const Dims& shape : {Dims{700, 40, 70}, Dims{3, 520, 33, 64}, Dims{64, 8, 16, 32}}) {
      Random random(static_cast<std::uint64_t>(shape[0]));
      const std::int64_t m = shape[shape.size() - 3], n = shape[shape.size() - 2], k = shape.back();
      testing::matmul::Case c;
      c.p.a = shape.size() == 4 ? SpecOf(type, {shape[0], m, k}) : SpecOf(type, {m, k});
      c.p.b = SpecOf(type, {k, n});
      c.a = Operand(c.p.a, 0);
      c.b = Operand(c.p.b, 0);
      c.a.FillNormal(random);
      c.b.FillNormal(random);
      const MatmulGeometry g = *Validate(c.p);
      const auto expected = reference::MatmulValues(c.p, c.Args());
      ASSERT_TRUE(expected.ok()) << expected.status();
      const testing::matmul::DeviceCase operands(c);
      for (MatmulVariant row : MatmulVariants()) {
        if (!WhyNot(row, c.p, g).empty()) continue;
        SCOPED_TRACE(row.info.name + " " + ToString(shape));
        const auto whole = Compute(row, c, operands);  // loads the row, too
        row.estimate = Rows;
        const std::vector<MatmulSlice> slices = SlicesOf(c.p, g, row, device_, 0);
        if (slices.empty()) continue;
        ++cut;
        const DeviceBuffer d(g.d.bytes());
        for (const MatmulSlice& slice : slices) {
          const DeviceBuffer workspace(row.workspace_bytes(slice.problem, slice.geometry, device_));
          const absl::Status status = row.launch(slice.problem, slice.geometry, device_,
                                                 slice.Of(operands.Args(d.data())), workspace.data(), nullptr);
          EXPECT_TRUE(status.ok()) << status;
          testing::ExpectDeviceFine(row.info.name.c_str());
        }
        d.ExpectGuardsIntact("D");
        const auto bytes = d.Download();
        testing::matmul::ExpectMatches(c, bytes, *expected);
        if (row.info.name.find("_simt") != std::string::npos) {
          EXPECT_TRUE(bytes == whole);
        }
      }
    }
  }
  EXPECT_GT(cut, 10);
}

class ScanGpu : public testing::matmul::MatmulGpu {};

TEST_F(ScanGpu, CountsAsTheHostDoes) {
  for (const DataType type : {DataType::kF16, DataType::kBF16, DataType::kF32, DataType::kF64, DataType::kF8E4M3,
                              DataType::kF8E5M2, DataType::kI8, DataType::kBool, DataType::kI32}) {
    for (const std::int64_t elements : {0, 1, 15, 16, 17, 4095, 4097, 3'000'001}) {
      SCOPED_TRACE(std::string(Name(type)) + " " + std::to_string(elements));
      // All bit patterns: of 8 and 16 bits each, of wider types some with an exponent of ones.
      Random random(static_cast<std::uint64_t>(elements) + 1);
      std::vector<std::byte> bytes(static_cast<std::size_t>(elements * ElementBytes(type)));
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = random() % 4 == 0 ? std::byte{0xff} : static_cast<std::byte>(random());
      }
      const DeviceBuffer data(bytes.data(), static_cast<std::int64_t>(bytes.size()));
      const std::uint64_t start[2] = {7, 9};
      const DeviceBuffer counts(start, sizeof(start));
      const absl::Status status =
          EnqueueScan(type, data.data(), elements, static_cast<std::uint64_t*>(counts.data()), device_, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      testing::ExpectDeviceFine("Scan");
      counts.ExpectGuardsIntact("counts");
      std::uint64_t got[2];
      std::memcpy(got, counts.Download().data(), sizeof(got));
      const NonFinite expected = CountNonFinite(type, bytes.data(), elements);
      EXPECT_EQ(static_cast<std::int64_t>(got[0]) - 7, expected.nan);
      EXPECT_EQ(static_cast<std::int64_t>(got[1]) - 9, expected.inf);
    }
  }
}

}  // namespace
}  // namespace kernd::gpu
