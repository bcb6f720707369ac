// One tile of D, computed by one thread from packed panels: the seam between the driver (matmul.cc) and the kernel that
// is compiled once per instruction set (matmul_tile.cc). Plain data only; strides in elements; pointers need not be
// aligned but for the scratch.
#pragma once

#include <cstdint>

#include "kernd/kernels/dtype.h"
#include "server/cpu/isa.h"

namespace kernd::cpu {

enum class TileActivation : std::uint8_t { kNone, kRelu, kGelu, kSilu };

// What the sums are: float; double (F64 operands); or int32 (I8 operands without block scales), where each block of K
// is summed exactly in float (kBlockK * 2^14 <= 2^24) and the blocks in int32, modulo 2^32.
enum class TileSum : std::uint8_t { kF32, kF64, kI32 };

inline constexpr std::int64_t kBlockK = 256;  // a sum's order: in turn within a block of K, then block by block

// Scales of an operand X [R, K]: values[r / block_rows * row_stride + k / block_k * k_stride].
struct TileScale {
  const float* values = nullptr;  // null: none
  std::int64_t row_stride = 0, k_stride = 0;
  std::int64_t block_rows = 1, block_k = 1;
  bool along_k = false;  // kBlock: multiplies operands while they are packed; else the sums, in the epilogue
};

struct MatmulJob {
  TileSum sum = TileSum::kF32;
  DataType a_type{}, b_type{}, d_type{}, bias_type{};  // C has D's
  bool transpose_a = false, transpose_b = false;
  std::int64_t k = 0, n = 0;  // n: row stride of D
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  double alpha = 1, beta = 0;
  const void* bias = nullptr;  // [N], or null
  TileScale a_scale, b_scale;
  TileActivation activation = TileActivation::kNone;
};

// Rows [m0, m0 + rows) and columns [n0, n0 + cols) of one batch item, whose first elements the pointers name.
struct MatmulTile {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // null where beta is 0
  void* d = nullptr;
  std::int64_t m0 = 0, rows = 0, n0 = 0, cols = 0;
};

struct MatmulKernel {
  std::int64_t panel_rows, panel_cols;  // tiles are best multiples of these
  // Bytes of scratch for tiles up to `rows` x `cols`.
  std::int64_t (*scratch_bytes)(TileSum sum, std::int64_t rows, std::int64_t cols);
  // D = epilogue(op(A) op(B)); with k = 0, epilogue(0).
  void (*run)(const MatmulJob& job, const MatmulTile& tile, void* scratch);
  // D = epilogue(sums), `sums` [rows, cols] of the job's sum type with that row stride; may be D itself where the
  // elements are of one size.
  void (*epilogue)(const MatmulJob& job, const MatmulTile& tile, const void* sums, std::int64_t row_stride);
};

const MatmulKernel& MatmulKernelFor(Isa isa);

namespace baseline {
extern const MatmulKernel kMatmulKernel;
}
namespace avx2 {
extern const MatmulKernel kMatmulKernel;
}
namespace avx512 {
extern const MatmulKernel kMatmulKernel;
}

}  // namespace kernd::cpu
