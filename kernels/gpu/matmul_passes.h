// Passes before and after a matmul: operands into a layout that a library takes, sums into the result.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernd/kernels/gpu.h"
#include "kernels/gpu/matmul_epilogue.h"

namespace kernd {

// Copies matrices into [items, to_rows, to_k], contiguous, K last; what is outside the source is zero. `to` is aligned
// to 16 bytes.
struct MatmulPack {
  const void* from = nullptr;
  DataType type = DataType::kInvalid;     // of 1, 2 or 4 bytes
  DataType to_type = DataType::kInvalid;  // the same, or F16 for F8 (exact)
  bool k_contiguous = false;              // in the source; else rows are
  std::int64_t rows = 0, k = 0, ld = 0;
  std::int64_t items = 1;
  BatchStrides batch;  // of the source
  void* to = nullptr;
  std::int64_t to_rows = 0, to_k = 0;
};
absl::Status EnqueuePack(const MatmulPack& pack, Stream stream);

// Sums [parts, batch, M, N] with rows `ld` apart, parts to be added in their order; kInvalid: all zero. One part may be
// D itself, when elements are of equal size.
struct MatmulSums {
  const void* data = nullptr;
  DataType type = DataType::kInvalid;
  std::int64_t ld = 0;
  std::int64_t parts = 1;  // more: of F32 or I32
};
absl::Status EnqueueFinish(const MatmulEpilogue& epilogue, const MatmulSums& sums, Stream stream);

// Brings the kernels to the current device.
absl::Status LoadMatmulPasses();

}  // namespace kernd
