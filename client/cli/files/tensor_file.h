// Tensors by file name: FILE.npy, FILE.safetensors (one tensor), or FILE.safetensors:TENSOR.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernd/client/tensor.h"

namespace kernd::cli {

// Errors: those of ReadNpy and ReadSafetensors; INVALID_ARGUMENT for another ending.
absl::StatusOr<client::Tensor> ReadTensor(const std::string& file);

// Whether WriteTensor may work, before there is a tensor: errors of CheckWritable, INVALID_ARGUMENT for another ending.
absl::Status CheckOutput(const std::string& file);

// `name` is that of a tensor in a .safetensors file where `file` gives none.
absl::Status WriteTensor(const std::string& file, const std::string& name, const client::TensorView& tensor);

}  // namespace kernd::cli
