#include "client/cli/files/tensor_file.h"

#include <string_view>

#include "client/cli/files/file.h"
#include "client/cli/files/npy.h"
#include "client/cli/files/safetensors.h"

namespace kernd::cli {
namespace {

constexpr std::string_view kNpy = ".npy", kSafetensors = ".safetensors";

struct Place {
  std::string path, tensor;
  bool npy = false;
};

absl::StatusOr<Place> Parse(const std::string& file) {
  const std::size_t colon = file.rfind(std::string(kSafetensors) + ":");
  if (colon != std::string::npos) {
    const std::size_t end = colon + kSafetensors.size();
    return Place{file.substr(0, end), file.substr(end + 1)};
  }
  if (file.ends_with(kSafetensors)) return Place{file, ""};
  if (file.ends_with(kNpy)) return Place{file, "", true};
  return absl::InvalidArgumentError(file + ": must end in .npy, .safetensors, or .safetensors:TENSOR");
}

}  // namespace

absl::StatusOr<client::Tensor> ReadTensor(const std::string& file) {
  const absl::StatusOr<Place> place = Parse(file);
  if (!place.ok()) return place.status();
  return place->npy ? ReadNpy(place->path) : ReadSafetensors(place->path, place->tensor);
}

absl::Status CheckOutput(const std::string& file) {
  const absl::StatusOr<Place> place = Parse(file);
  return place.ok() ? CheckWritable(place->path) : place.status();
}

absl::Status WriteTensor(const std::string& file, const std::string& name, const client::TensorView& tensor) {
  const absl::StatusOr<Place> place = Parse(file);
  if (!place.ok()) return place.status();
  if (place->npy) return WriteNpy(place->path, tensor);
  return WriteSafetensors(place->path, place->tensor.empty() ? name : place->tensor, tensor);
}

}  // namespace kernd::cli
