// NumPy's .npy format (versions 1 to 3): one array.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
//
// Element types: BOOL, U8, I8, I32, I64, F16, F32, F64. The format has no name for BF16 and the 8-bit floats:
// .safetensors has. Files are taken for hostile: every length is checked before it is believed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernd/client/tensor.h"

namespace kernd::cli {

// INVALID_ARGUMENT: no .npy, another element type, big-endian, Fortran order, or a size other than the shape's.
absl::StatusOr<client::Tensor> ReadNpy(const std::string& path);

// Writes version 1. INVALID_ARGUMENT for an element type that the format does not have.
absl::Status WriteNpy(const std::string& path, const client::TensorView& tensor);

}  // namespace kernd::cli
