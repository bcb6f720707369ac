// Attention problems on the device: operands, tables, results and the workspace of exactly the promised size, each
// between guards and poisoned before it is set.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/kernels/gpu.h"
#include "tests/support/attention_case.h"
#include "tests/support/device_memory.h"

namespace kernd::gpu {

using testing::DeviceBuffer;
using testing::Operand;
using testing::Pick;
using testing::Random;
using testing::SpecOf;
using testing::attention::Case;
using testing::attention::Describe;
using testing::attention::ExpectMatches;
using testing::attention::PlainCase;
using testing::attention::RandomCase;
using testing::attention::SetTensors;
using testing::attention::TensorCoreChoices;

struct Result {
  std::vector<std::byte> o, lse;
  bool operator==(const Result&) const = default;
};

// The operands of a case.
struct OnDevice {
  DeviceBuffer q, k, v, mask, bias;

  explicit OnDevice(const Case& c) : q(c.q), k(c.k), v(c.v) {
    if (c.p.mask) mask = DeviceBuffer(c.mask);
    if (c.p.bias) bias = DeviceBuffer(c.bias);
  }

  AttentionArgs Args() const {
    return {.q = q.data(), .k = k.data(), .v = v.data(), .mask = mask.data(), .bias = bias.data()};
  }
};

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    const auto device = testing::TestDevice(&why);
    if (!device) GTEST_SKIP() << "SKIPPED: " << why;
    device_ = *device;
    for (const AttentionVariant& variant : AttentionVariants()) {
      if (variant.min_sm > device_.sm) continue;
      const absl::Status loaded = variant.load(device_);
      ASSERT_TRUE(loaded.ok()) << variant.info.name << ": " << loaded;
    }
  }

  const DeviceInfo& Device() const { return device_; }
  // Kernels plan for so many of them from now on, whatever the device has.
  void SetMultiprocessors(int count) { device_.multiprocessors = count; }

  // With KERND_WITHOUT_ROWS set in the environment, none whose name contains it does.
  bool Takes(const AttentionVariant& variant, const AttentionProblem& p) const {
    const char* const unwanted = std::getenv("KERND_WITHOUT_ROWS");
    if (unwanted != nullptr && variant.info.name.find(unwanted) != std::string::npos) return false;
    const auto& dtypes = variant.info.dtypes;
    const auto g = Validate(p);
    if (variant.min_sm > device_.sm || std::find(dtypes.begin(), dtypes.end(), p.q.dtype) == dtypes.end() ||
        !variant.why_not(p, *g, device_).empty()) {
      return false;
    }
    EXPECT_GE(variant.estimate(p, *g, device_), 0) << variant.info.name;  // as a daemon asks before it chooses
    return true;
  }

  Result Compute(const AttentionVariant& variant, const Case& c, const OnDevice& operands) const {
    return Compute(variant, c.p, operands.Args());
  }

  // With operands anywhere on the device.
  Result Compute(const AttentionVariant& variant, const AttentionProblem& p, AttentionArgs args) const {
    const auto g = Validate(p);
    EXPECT_TRUE(g.ok()) << g.status();
    if (!g.ok()) return {};
    const AttentionTableLayout layout(p, *g);
    std::vector<std::byte> table(static_cast<std::size_t>(layout.bytes()));
    layout.Write(p, *g, table.data());
    const DeviceBuffer tables(table.data(), layout.bytes());
    const DeviceBuffer workspace(variant.workspace_bytes(p, *g, device_)), o(g->o_spec.bytes()),
        lse(g->lse_spec ? g->lse_spec->bytes() : 0);
    args.o = o.data();
    args.lse = p.want_lse ? static_cast<float*>(lse.data()) : nullptr;
    const absl::Status launched = variant.launch(
        p, *g, device_, args, layout.At(static_cast<std::byte*>(tables.data())), workspace.data(), nullptr);
    EXPECT_TRUE(launched.ok()) << launched;
    testing::ExpectDeviceFine(variant.info.name.c_str());
    tables.ExpectGuardsIntact("tables");
    workspace.ExpectGuardsIntact("workspace");
    o.ExpectGuardsIntact("O");
    lse.ExpectGuardsIntact("LSE");
    return {o.Download(), lse.Download()};
  }

 private:
  DeviceInfo device_;
};

}  // namespace kernd::gpu
