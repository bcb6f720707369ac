// What bulk copies of a tensor's boxes need to know (TMA), made on the host for each launch: a microsecond or two.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "kernd/kernels/dtype.h"

namespace kernd::gpu {

// A view of F16 or BF16 elements, innermost dimension first; the first stride is 1 element.
struct TensorView {
  DataType type = DataType::kInvalid;
  const void* address = nullptr;             // aligned to 16 bytes
  std::array<std::int64_t, 4> sizes = {};    // 1 to 2^32 each
  std::array<std::int64_t, 3> strides = {};  // elements: multiples of 8 below 2^39; of dimensions of size 1: ignored
  std::array<std::uint32_t, 4> box = {};     // 1 to 256 each; the first at most 64
};

// The most elements that a stride may have.
inline constexpr std::int64_t kMaxTensorStride = (std::int64_t{1} << 39) - 8;

// For loads with a swizzle of 128 bytes; elements outside of the view are 0. cuTensorMapEncodeTiled is asked of the
// driver at run time, so that programs start where there is none. INTERNAL: CUDA refused, with its words.
absl::Status MakeTensorMap(const TensorView& view, CUtensorMap& map);

}  // namespace kernd::gpu
