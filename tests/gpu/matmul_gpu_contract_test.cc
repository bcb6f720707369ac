// The promises of kernd/kernels/matmul.h and gpu.h that no tolerance covers: what bits may depend on, and which
// operands are never read.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu/matmul_gpu_run.h"

namespace kernd::testing::matmul {
namespace {

// NaN in C with beta = 0 is in the random problems. With alpha = 0 or K = 0, A and B may be null.
TEST_F(MatmulGpu, OperandsThatDoNotCountAreNotRead) {
  for (const MatmulVariant& row : MatmulVariants()) {
    const DataType type = row.info.dtypes[0], output = DefaultMatmulOutput(type);
    if (device_.sm < row.min_sm) continue;
    for (const std::int64_t k : {0, 20}) {
      Case c = PlainCase(type, 5, 9, k);
      c.p.numerics = NumericsFor(row);
      c.p.alpha = k == 0 ? 1 : 0;
      c.p.beta = 0.5;
      c.p.c = SpecOf(output, {5, 9});
      c.c = Operand(*c.p.c, 0);
      c.c.Fill([](const Dims& at) { return static_cast<double>(at[0] * 2); });
      const MatmulGeometry g = *Validate(c.p);
      ASSERT_EQ(row.why_not(c.p, g, device_), "") << row.info.name;
      const DeviceBuffer operand(c.c);
      DeviceBuffer d(g.d.bytes()), workspace(row.workspace_bytes(c.p, g, device_));
      const absl::Status status =
          row.launch(c.p, g, device_, {.c = operand.data(), .d = d.data()}, workspace.data(), {});
      ASSERT_TRUE(status.ok()) << status;
      ExpectDeviceFine(row.info.name.c_str());
      const auto values = d.Download();
      for (std::int64_t i = 0; i < 45; ++i) {
        ASSERT_EQ(reference::Load(output, values.data(), i), static_cast<double>(i / 9)) << row.info.name << " k " << k;
      }
    }
  }
}

TEST_F(MatmulGpu, EmptyResultsLaunchNothing) {
  for (const MatmulVariant& row : MatmulVariants()) {
    if (device_.sm < row.min_sm) continue;
    const DataType type = row.info.dtypes[0];
    for (const Dims& sizes : {Dims{1, 0, 8, 8}, Dims{1, 8, 0, 8}, Dims{0, 8, 8, 8}, Dims{0, 0, 0, 0}}) {
      MatmulProblem p;
      p.a = SpecOf(type, {sizes[0], sizes[1], sizes[3]});
      p.b = SpecOf(type, {sizes[0], sizes[3], sizes[2]});
      p.numerics = NumericsFor(row);
      const MatmulGeometry g = *Validate(p);
      ASSERT_EQ(row.why_not(p, g, device_), "") << row.info.name << " " << g.d.ToString();
      EXPECT_GE(row.workspace_bytes(p, g, device_), 0);
      EXPECT_TRUE(row.launch(p, g, device_, {}, nullptr, {}).ok()) << row.info.name << " " << g.d.ToString();
      ExpectDeviceFine(row.info.name.c_str());
    }
  }
}

class MatmulGpuInvariance : public MatmulGpu {
 protected:
  // Calls `check(row, case)` for every row that runs a batch-invariant problem of M = `m`.
  template <typename Check>
  void ForEachRow(std::int64_t m, std::int64_t n, std::int64_t k, const Check& check) {
    for (const MatmulVariant& row : MatmulVariants()) {
      const DataType type = row.info.dtypes[0];
      Case c = PlainCase(type, m, n, k, 23);
      c.p.numerics = Numerics::kBatchInvariant;
      c.p.activation = Activation::kGelu;
      if (type != DataType::kF64) {
        Random random(24);
        c.p.bias = SpecOf(DataType::kF32, {n});
        c.bias = Operand(*c.p.bias, 0);
        c.bias.FillNormal(random);
      }
      if (!WhyNot(row, c.p, *Validate(c.p)).empty()) continue;
      SCOPED_TRACE(row.info.name);
      check(row, c);
    }
  }

  // Rows on their own and items on their own have the bits that they have among `m` rows.
  void ExpectRowsDoNotDependOnTheirCompany(const MatmulVariant& row, const Case& c, const std::vector<Dims>& parts) {
    const std::int64_t m = c.p.a.shape[0], k = c.p.a.shape[1];
    const DeviceCase operands(c);
    const auto all = Compute(row, c, operands);
    const std::int64_t row_bytes = static_cast<std::int64_t>(all.size()) / m;
    for (const Dims& sizes : parts) {
      const std::int64_t batch = sizes[0], rows = sizes[1];
      Case part = c;
      part.p.a.shape = {batch, rows, k};
      part.p.a.strides = {rows * k, k, 1};
      const auto some = Compute(row, part, operands);
      EXPECT_EQ(std::memcmp(some.data(), all.data(), static_cast<std::size_t>(batch * rows * row_bytes)), 0)
          << batch << " x " << rows;
    }
  }
};

TEST_F(MatmulGpuInvariance, RowsDoNotDependOnTheirCompany) {
  ForEachRow(1500, 1400, 200, [&](const MatmulVariant& row, const Case& c) {
    std::vector<Dims> parts;
    for (const std::int64_t rows : {1, 5, 33, 290}) parts.insert(parts.end(), {{1, rows}, {3, rows}});
    ExpectRowsDoNotDependOnTheirCompany(row, c, parts);
  });
}

// A device that few rows leave idle, so that they would be cut along K, and many would not.
TEST_F(MatmulGpuInvariance, FewRowsDoNotDependOnTheirCompany) {
  device_.multiprocessors = 1;
  ForEachRow(150, 40, 2100, [&](const MatmulVariant& row, const Case& c) {
    ExpectRowsDoNotDependOnTheirCompany(row, c, {{1, 1}, {1, 33}, {3, 50}});
  });
}

// Tiles of one method sum in the same order.
TEST_F(MatmulGpuInvariance, TileDoesNotShow) {
  std::map<std::string, std::vector<std::byte>> first;  // by method
  ForEachRow(70, 130, 330, [&](const MatmulVariant& row, const Case& c) {
    if (!row.info.tile) return;
    const std::string method = row.info.name.substr(0, row.info.name.rfind('_'));
    const auto d = Compute(row, c, DeviceCase(c));
    EXPECT_TRUE(first.try_emplace(method, d).first->second == d);
  });
}

}  // namespace
}  // namespace kernd::testing::matmul
