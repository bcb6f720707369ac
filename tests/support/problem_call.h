// Problems of the kernels, put to a real daemon through the client library and held against the fp64 reference.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/client/client.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/values.h"
#include "tests/support/client_case.h"
#include "tests/support/daemon.h"

namespace kernd::testing {

// The one daemon of a test program, and a client of it:
//   const auto* const kDaemon = ::testing::AddGlobalTestEnvironment(new SharedDaemon);
// In the end it must hold no memory for tensors or bodies, and leave with 0.
class SharedDaemon : public ::testing::Environment {
 public:
  void SetUp() override;
  void TearDown() override;

  // Ends the program where no daemon came up.
  static const client::Client& client();
  static const std::vector<client::KernelInfo>& kernels();

 private:
  std::unique_ptr<Daemon> daemon_;
};

using Bits = std::vector<std::byte>;

struct AttentionBits {
  Bits o, lse;
  bool operator==(const AttentionBits&) const = default;
};

// Whether Plan takes the problem for `kernel`; a test failure where it refuses it for anything else than that this
// kernel cannot run it.
bool Runs(const AttentionCase& c, const std::string& kernel);

// Results of a call, with the dtype and shape that the problem's geometry says; a test failure, and nothing, where the
// call fails or the reply is another. `kernel` forces one by name: the reply must then name it.
Bits Ask(const MatmulCase& c, const std::string& kernel = {});
AttentionBits Ask(const AttentionCase& c, const std::string& kernel = {});

// Test failures where a result is not within the reference's bounds.
void ExpectMatches(const MatmulCase& c, const Bits& d, const reference::Values& expected);
void ExpectMatches(const AttentionCase& c, const AttentionBits& result, const reference::AttentionResult& expected);

// Ask, then ExpectMatches with the reference's values.
Bits AskAndCheck(const MatmulCase& c, const std::string& kernel = {});
AttentionBits AskAndCheck(const AttentionCase& c, const std::string& kernel = {});

// Plan and the call itself: kernel, memory and results must be those that the plan promised, and the memory that of the
// problem's tensors.
void ExpectPlanKept(const MatmulCase& c);
void ExpectPlanKept(const AttentionCase& c);

// AskAndCheck and ExpectPlanKept for `make(seed)`, seeds from 1 to `count`; ends at the first that fails.
template <typename Make>
void CheckProblems(std::uint64_t count, const Make& make) {
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    const auto c = make(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + " " + c.ToString());
    AskAndCheck(c);
    ExpectPlanKept(c);
    if (::testing::Test::HasFailure()) return;
  }
}

// `count` bytes from `begin` on; a test failure, and nothing, where there are none such.
Bits Slice(const Bits& bits, std::int64_t begin, std::int64_t count);

}  // namespace kernd::testing
