#include "kernels/gpu/tensor_map.h"

#include <cuda_runtime_api.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/gpu/cuda.h"

namespace kernd::gpu {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

absl::StatusOr<Encode> FindEncode() {
  constexpr unsigned kVersion = 12000;  // of CUDA that has it first
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  KERND_CUDA(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kVersion, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::InternalError("the driver has no cuTensorMapEncodeTiled");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

absl::Status MakeTensorMap(const TensorView& view, CUtensorMap& map) {
  static const auto& encode = *new absl::StatusOr<Encode>(FindEncode());
  KERND_RETURN_IF_ERROR(encode.status());
  cuuint64_t sizes[4], strides[3];
  cuuint32_t box[4];
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  for (int i = 0; i < 4; ++i) {
    sizes[i] = static_cast<cuuint64_t>(view.sizes[i]);
    box[i] = view.box[i];
    // A dimension of size 1 may have any stride, but the driver wants a lawful one.
    if (i > 0) strides[i - 1] = view.sizes[i] == 1 ? 16 : static_cast<cuuint64_t>(view.strides[i - 1]) * 2;
  }
  const CUresult result =
      (*encode)(&map, view.type == DataType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                4, const_cast<void*>(view.address), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuTensorMapEncodeTiled: error ", static_cast<int>(result), " for ", sizes[0],
                                          " x ", sizes[1], " x ", sizes[2], " x ", sizes[3], ", strides of ",
                                          strides[0], ", ", strides[1], ", ", strides[2], " bytes"));
}

}  // namespace kernd::gpu
