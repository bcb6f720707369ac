// How a matmul becomes calls of cuBLASLt: which operands are packed first, where the sums go, what is done to them
// afterwards. Pure functions of problem and device; the library itself is not asked here.
//
// cuBLASLt thinks in columns: a row-major [R, C] is its column-major [C, R]. So its first operand, X, is our B, its
// second, Y, our A; its m is N, its n is M, and X Y is D transposed, which is D again in memory.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernd/kernels/gpu.h"
#include "kernels/gpu/matmul_epilogue.h"

namespace kernd {

// Everything that the choice of an algorithm depends on: the key of a plan.
struct LtCall {
  int device = 0;
  DataType x_type = DataType::kInvalid, y_type = DataType::kInvalid, d_type = DataType::kInvalid;
  bool tf32 = false;
  bool x_transposed = false, y_transposed = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t ldx = 0, ldy = 0, ldc = 0, ldd = 0;
  std::int64_t batch = 1;
  std::int64_t x_stride = 0, y_stride = 0, c_stride = 0, d_stride = 0;
  // Bytes that every pointer of the call is a multiple of, at most kDeviceAlignment.
  std::int64_t x_align = 0, y_align = 0, c_align = 0, d_align = 0;
  bool reads_c = false, adds_bias = false, scales_x = false, scales_y = false;

  auto Tied() const {
    return std::tie(device, x_type, y_type, d_type, tf32, x_transposed, y_transposed, m, n, k, ldx, ldy, ldc, ldd,
                    batch, x_stride, y_stride, c_stride, d_stride, x_align, y_align, c_align, d_align, reads_c,
                    adds_bias, scales_x, scales_y);
  }
  bool operator==(const LtCall& other) const { return Tied() == other.Tied(); }
  template <typename H>
  friend H AbslHashValue(H state, const LtCall& call) {
    return H::combine(std::move(state), call.Tied());
  }
};

// An operand as the call reads it.
struct LtOperand {
  bool packed = false;
  DataType type = DataType::kInvalid;  // as multiplied
  bool k_contiguous = false;
  std::int64_t ld = 0;
  Dims strides;  // over the batch that is left
  // Of a packed operand: the copy [items, rows, k], and the source's distinct items.
  std::int64_t items = 0, rows = 0, k = 0, bytes = 0;
  Dims item_shape, item_strides;
  bool source_k_contiguous = false;
  std::int64_t source_rows = 0, source_ld = 0;
};

struct LtRecipe {
  std::string refusal;  // why this problem is not for cuBLASLt; empty: the rest holds
  LtCall call;
  LtOperand a, b;
  std::int64_t m = 0;  // of a call: may have taken in a dimension of the batch
  // The calls: offsets in elements of A, B, C and D or the sums, one entry a call.
  struct Start {
    std::int64_t a = 0, b = 0, c = 0, d = 0;
  };
  std::vector<Start> starts;
  // alpha, C, bias and scales are cuBLASLt's, and its rounding is the last.
  bool applied = false;
  bool sums_in_d = false;
  bool finish = false;  // an epilogue of our own follows
  std::int64_t sums_bytes = 0;
  double microseconds = 0;
};

// `fuse_bias`: let cuBLASLt add it where it can.
LtRecipe LtRecipeOf(const MatmulProblem& problem, const MatmulGeometry& geometry, const DeviceInfo& device,
                    bool fuse_bias);

}  // namespace kernd
