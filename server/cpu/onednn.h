// The whole use of oneDNN: plain products D = op(A) op(B), F32, BF16 (to F32) and I8 (to I32), as cached primitives.
// Its API changed between 2.x and 3.x; only onednn.cc knows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernd/kernels/dtype.h"

namespace kernd::cpu::onednn {

// What a primitive is made for. Strides in elements; D is contiguous, F32 (I32 for I8).
struct GemmShape {
  DataType dtype = DataType::kF32;
  std::int64_t batch = 1, m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0;                        // rows as stored; not below their columns
  std::int64_t a_batch_stride = 0, b_batch_stride = 0;  // 0: one matrix for the whole batch
  int threads = 1;

  auto operator<=>(const GemmShape&) const = default;
};

// "onednn 2.6.3 (52b5f107dd9c)", of the library that is loaded.
std::string Version();

// Whether this CPU multiplies the type in its hardware, and exactly for I8 (without VNNI, 16-bit sums could saturate).
bool IsNative(DataType dtype);

class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual std::int64_t scratch_bytes() const = 0;
  // Any number of calls at once, each with its own scratch (aligned to 64 bytes) and D. Uses the calling thread's team
  // of `shape.threads`. INTERNAL: oneDNN failed.
  virtual absl::Status Run(const void* a, const void* b, void* d, void* scratch) const = 0;
};

// The primitive for `shape`, made on first use and kept for as long as it is among the most recently used ones.
// Thread-safe. UNIMPLEMENTED: oneDNN has none.
absl::StatusOr<std::shared_ptr<const Gemm>> GetGemm(const GemmShape& shape);

}  // namespace kernd::cpu::onednn
