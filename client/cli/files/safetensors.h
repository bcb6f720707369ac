// The .safetensors format: named tensors. https://huggingface.co/docs/safetensors
//
//   8 bytes: length of the header, little-endian · the header, JSON: name -> dtype, shape, [begin, end) · the data
//
// Element types: all of client::DataType. Files are taken for hostile: a header of 100 MB at most, tensors that cover
// the data without gap and overlap, no name twice.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernd/client/tensor.h"

namespace kernd::cli {

// The tensor `name`; "": the only one of the file. NOT_FOUND lists what there is. INVALID_ARGUMENT: a rule is broken,
// or the tensor has an element type of which kernd knows nothing (others of the file may have).
absl::StatusOr<client::Tensor> ReadSafetensors(const std::string& path, const std::string& name);

// Writes a file with one tensor.
absl::Status WriteSafetensors(const std::string& path, const std::string& name, const client::TensorView& tensor);

}  // namespace kernd::cli
