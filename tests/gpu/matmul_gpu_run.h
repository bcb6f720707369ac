// A matmul problem on the device, through one row of the table or through all that take it.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/kernels/gpu.h"
#include "tests/support/device_memory.h"
#include "tests/support/matmul_case.h"

namespace kernd::testing::matmul {

// Operands between guards, poison in their gaps.
struct DeviceCase {
  explicit DeviceCase(const Case& c)
      : a(c.a), b(c.b), c(c.c), bias(c.bias), a_scale(c.a_scale), b_scale(c.b_scale), problem(&c.p) {}

  MatmulArgs Args(void* d) const {
    return {.a = a.data(),
            .b = b.data(),
            .c = problem->c ? c.data() : nullptr,
            .bias = problem->bias ? bias.data() : nullptr,
            .a_scale = problem->a_scale ? static_cast<const float*>(a_scale.data()) : nullptr,
            .b_scale = problem->b_scale ? static_cast<const float*>(b_scale.data()) : nullptr,
            .d = d};
  }

  DeviceBuffer a, b, c, bias, a_scale, b_scale;
  const MatmulProblem* problem;
};

// What a problem must allow so that the row can run it.
inline Numerics NumericsFor(const MatmulVariant& row) {
  return row.info.name.find("_tf32_") != std::string::npos ? Numerics::kTf32 : Numerics::kDefault;
}

// Skips where there is no device. With KERND_ROWS set in the environment, only rows whose names contain it run:
// initcheck does not see what cuBLASLt writes through the copy engine.
class MatmulGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    const auto device = TestDevice(&why);
    if (!device) GTEST_SKIP() << why;
    device_ = *device;
  }

  // Why the row does not run the problem; empty: it does.
  std::string WhyNot(const MatmulVariant& row, const MatmulProblem& p, const MatmulGeometry& g) const {
    const auto& dtypes = row.info.dtypes;
    if (std::find(dtypes.begin(), dtypes.end(), p.a.dtype) == dtypes.end()) return "dtype";
    if (device_.sm < row.min_sm) return "device";
    return row.why_not(p, g, device_);
  }

  // D, written over poison, with a workspace of exactly the promised size that starts as NaN.
  std::vector<std::byte> Compute(const MatmulVariant& row, const Case& c, const DeviceCase& operands,
                                 Stream stream = nullptr) const {
    const MatmulGeometry g = *Validate(c.p);
    DeviceBuffer d(g.d.bytes()), workspace(row.workspace_bytes(c.p, g, device_));
    EXPECT_EQ(workspace.bytes() % kDeviceAlignment, 0);
    const absl::Status loaded = row.load(device_);
    EXPECT_TRUE(loaded.ok()) << loaded;
    const absl::Status status = row.launch(c.p, g, device_, operands.Args(d.data()), workspace.data(), stream);
    EXPECT_TRUE(status.ok()) << status;
    ExpectDeviceFine(row.info.name.c_str());
    d.ExpectGuardsIntact("D");
    workspace.ExpectGuardsIntact("the workspace");
    return d.Download();
  }

  // Every row that takes the problem, twice: near the reference, and the same bits again. `must_run`: no row of the
  // dtype may refuse, but for those that round to TF32 unasked.
  void ExpectAllMatchReference(const Case& c, bool must_run = false) {
    const auto expected = reference::MatmulValues(c.p, c.Args());
    ASSERT_TRUE(expected.ok()) << expected.status();
    const MatmulGeometry g = *Validate(c.p);
    const DeviceCase operands(c);
    const char* const wanted = std::getenv("KERND_ROWS");
    for (const MatmulVariant& row : MatmulVariants()) {
      if (wanted != nullptr && row.info.name.find(wanted) == std::string::npos) continue;
      const std::string why = WhyNot(row, c.p, g);
      if (why == "dtype" || why == "device") continue;
      SCOPED_TRACE(row.info.name);
      if (!why.empty()) {
        const bool unasked = NumericsFor(row) == Numerics::kTf32 && c.p.numerics != Numerics::kTf32;
        EXPECT_FALSE(must_run && !unasked) << why;
        EXPECT_EQ(row.info.name.find("simt"), std::string::npos) << "refuses: " << why;
        ++refused_[row.info.name + ": " + why];
        continue;
      }
      const auto d = Compute(row, c, operands);
      ExpectMatches(c, d, *expected);
      EXPECT_TRUE(d == Compute(row, c, operands)) << "not deterministic";
      ++ran_[row.info.name];
    }
    for (const DeviceBuffer* operand : {&operands.a, &operands.b, &operands.c, &operands.bias}) {
      operand->ExpectGuardsIntact("an operand");
    }
  }

  // The same, and F32 once more with leave to round to TF32.
  void ExpectAllMatchReferenceAndTf32(Case& c, bool must_run = false) {
    ExpectAllMatchReference(c, must_run);
    if (c.p.a.dtype != DataType::kF32) return;
    c.p.numerics = Numerics::kTf32;
    SCOPED_TRACE("TF32");
    ExpectAllMatchReference(c, must_run);
  }

  const MatmulVariant& Row(DataType type, std::string_view method) const {
    for (const MatmulVariant& row : MatmulVariants()) {
      if (row.info.dtypes[0] == type && row.info.name.ends_with(method)) return row;
    }
    ADD_FAILURE() << "no row " << Name(type) << " " << method;
    return MatmulVariants()[0];
  }

  // What ran and what was refused, in the log: a row that refuses everything must not look like one that passes.
  void TearDown() override {
    for (const auto& [name, count] : ran_) std::printf("  %-36s %d problems\n", name.c_str(), count);
    for (const auto& [name, count] : refused_) std::printf("  refused %dx %s\n", count, name.c_str());
  }

  DeviceInfo device_;
  std::map<std::string, int> ran_, refused_;
};

}  // namespace kernd::testing::matmul
