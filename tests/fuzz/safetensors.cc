// .safetensors files.
#include "client/cli/files/safetensors.h"

#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace kernd::fuzz {
namespace {

// The length of `header`, `header`, and `data` zeros.
std::string FileOf(const std::string& header, std::size_t data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data, '\0');
}

}  // namespace

void Target(std::string_view input) {
  const MemoryFile file(input);
  for (const std::string name : {"", "x"}) {
    const absl::StatusOr<client::Tensor> tensor = cli::ReadSafetensors(file.path(), name);
    if (!tensor.ok()) {
      Require(!tensor.status().message().empty(), "a refusal says why");
      continue;
    }
    Require(client::TensorBytes(tensor->dtype(), tensor->shape()) == static_cast<std::int64_t>(tensor->bytes().size()),
            "a tensor has the bytes of its shape");
    const MemoryFile copy;
    Require(cli::WriteSafetensors(copy.path(), "y", tensor->view()).ok(), "what was read can be written");
    const absl::StatusOr<client::Tensor> again = cli::ReadSafetensors(copy.path(), "y");
    Require(again.ok() && again->dtype() == tensor->dtype() && again->shape() == tensor->shape() &&
                std::ranges::equal(again->bytes(), tensor->bytes()),
            "what was written is read as it was");
  }
}

std::vector<std::string> Seeds() {
  const auto tensor = client::Tensor::Allocate(client::DataType::kBF16, {2, 2});
  MemoryFile file;
  Require(cli::WriteSafetensors(file.path(), "x", tensor->view()).ok(), "a seed can be written");
  return {file.Read(),
          FileOf(R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                 R"("z":{"dtype":"I64","shape":[0,7],"data_offsets":[4,4]}})",
                 4),
          FileOf(R"({"x":{"dtype":"F8_E5M2","shape":[],"data_offsets":[0,1]}}   )", 1), FileOf("{}", 0)};
}

}  // namespace kernd::fuzz
