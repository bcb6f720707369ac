// Problems of the kernels, put to a real daemon through the client library and held against the fp64 reference.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/client/client.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/values.h"
#include "tests/support/daemon.h"
#include "tests/support/golden.h"
#include "tests/support/operand.h"

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

// A problem with its operands, all contiguous, as inline tensors are.
struct MatmulCase {
  MatmulProblem p;
  Operand a, b, c, bias, a_scale, b_scale;

  MatmulArgs Args() const;                // for the reference
  client::MatmulArgs ClientArgs() const;  // the same for the client; looks into this case
  DataType OutputType() const;
  std::string ToString() const;
};

struct AttentionCase {
  AttentionProblem p;
  Operand q, k, v, mask, bias;

  AttentionArgs Args() const;
  client::AttentionArgs ClientArgs() const;
  DataType OutputType() const;
  std::string ToString() const;
};

// Sets a spec and its operand together, filled with normal numbers (I8: any).
void SetNormal(TensorSpec& spec, Operand& operand, DataType type, Dims shape, Random& random, double scale = 1);

// A [M, K] times B [K, N] and nothing else.
MatmulCase MakeMatmul(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed = 1);

struct AttentionSizes {
  std::int64_t batch = 2, q_heads = 4, kv_heads = 2, q_rows = 33, kv_rows = 65, d = 32, dv = 32;
};

// Plain attention with LSE. Packed: batch * rows rows in all, cut into sequences at random, some of them empty.
AttentionCase MakeAttention(const AttentionSizes& sizes, std::uint64_t seed = 1, DataType type = DataType::kF32,
                            AttentionLayout layout = AttentionLayout::kBHLD);

// The case of a golden; views are copied into contiguous tensors.
MatmulCase MatmulOf(const Golden& golden);
AttentionCase AttentionOf(const Golden& golden);

struct AttentionBits {
  Bits o, lse;
  bool operator==(const AttentionBits&) const = default;
};

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

// `count` bytes from `begin` on; a test failure, and nothing, where there are none such.
Bits Slice(const Bits& bits, std::int64_t begin, std::int64_t count);

}  // namespace kernd::testing
