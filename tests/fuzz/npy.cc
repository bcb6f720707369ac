// .npy files.
#include "client/cli/files/npy.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace kernd::fuzz {
namespace {

std::string Written(client::DataType dtype, std::vector<std::int64_t> shape) {
  const absl::StatusOr<client::Tensor> tensor = client::Tensor::Allocate(dtype, std::move(shape));
  MemoryFile file;
  Require(cli::WriteNpy(file.path(), tensor->view()).ok(), "a seed can be written");
  return file.Read();
}

}  // namespace

void Target(std::string_view input) {
  const MemoryFile file(input);
  const absl::StatusOr<client::Tensor> tensor = cli::ReadNpy(file.path());
  if (!tensor.ok()) {
    Require(!tensor.status().message().empty(), "a refusal says why");
    return;
  }
  Require(client::TensorBytes(tensor->dtype(), tensor->shape()) == static_cast<std::int64_t>(tensor->bytes().size()),
          "a tensor has the bytes of its shape");
  const MemoryFile copy;
  Require(cli::WriteNpy(copy.path(), tensor->view()).ok(), "what was read can be written");
  const absl::StatusOr<client::Tensor> again = cli::ReadNpy(copy.path());
  Require(again.ok() && again->dtype() == tensor->dtype() && again->shape() == tensor->shape() &&
              std::ranges::equal(again->bytes(), tensor->bytes()),
          "what was written is read as it was");
}

std::vector<std::string> Seeds() {
  std::string version2 = Written(client::DataType::kF32, {2, 3});
  version2[6] = 2;
  version2.insert(10, 2, '\0');
  return {Written(client::DataType::kF32, {2, 3}), Written(client::DataType::kI8, {5}),
          Written(client::DataType::kF64, {}), Written(client::DataType::kBool, {3, 0, 2}), version2};
}

}  // namespace kernd::fuzz
