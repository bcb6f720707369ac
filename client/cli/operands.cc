#include "client/cli/operands.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <numbers>
#include <random>
#include <utility>

#include "client/cli/files/tensor_file.h"
#include "client/cli/types.h"
#include "kernels/reference/convert.h"

namespace kernd::cli {
namespace {

// Normal deviates by Box and Muller: std::normal_distribution may differ from library to library.
class Normal {
 public:
  Normal(std::uint64_t seed, std::uint32_t stream) {
    std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), stream};
    random_.seed(sequence);
  }

  double Next() {
    if (have_spare_) {
      have_spare_ = false;
      return spare_;
    }
    // The first one is never 0, whose logarithm there is none of.
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Uniform())), angle = 2.0 * std::numbers::pi * Uniform();
    spare_ = radius * std::sin(angle);
    have_spare_ = true;
    return radius * std::cos(angle);
  }

 private:
  double Uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }  // [0, 1)

  std::mt19937_64 random_;
  double spare_ = 0;
  bool have_spare_ = false;
};

}  // namespace

absl::StatusOr<std::vector<std::int64_t>> ParseDims(const std::string& text, const char* separators) {
  std::vector<std::int64_t> dims;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int64_t dim = 0;
    const auto [rest, error] = std::from_chars(at, end, dim);
    if (error != std::errc() || dim < 0) break;
    dims.push_back(dim);
    if (rest == end) return dims;
    if (std::strchr(separators, *rest) == nullptr) break;
    at = rest + 1;
  }
  return absl::InvalidArgumentError("'" + text + "' is not a list of sizes");
}

absl::StatusOr<client::Tensor> RandomTensor(client::DataType dtype, std::vector<std::int64_t> shape, std::uint64_t seed,
                                            std::uint32_t stream) {
  using client::DataType;
  if (dtype == DataType::kBool || dtype == DataType::kU8) {
    return absl::InvalidArgumentError("no random " + std::string(client::Name(dtype)));
  }
  absl::StatusOr<client::Tensor> tensor = client::Tensor::Allocate(dtype, std::move(shape));
  if (!tensor.ok()) return tensor.status();
  const bool integer = dtype == DataType::kI8 || dtype == DataType::kI32 || dtype == DataType::kI64;
  const double size = integer ? 32.0 : 1.0;
  const std::span<std::byte> bytes = tensor->mutable_bytes();
  const std::int64_t count = std::ssize(bytes) / client::ElementBytes(dtype);
  Normal normal(seed, stream);
  for (std::int64_t i = 0; i < count; ++i) {
    reference::Store(KernelType(dtype), size * normal.Next(), bytes.data(), i);
  }
  return tensor;
}

absl::StatusOr<client::TensorView> Operands::Keep(absl::StatusOr<client::Tensor> tensor) {
  if (!tensor.ok()) return tensor.status();
  return tensors_.emplace_back(*std::move(tensor)).view();
}

absl::StatusOr<client::TensorView> Operands::FromFile(const std::string& file) {
  return Keep(ReadTensor(file));
}

absl::StatusOr<client::TensorView> Operands::Random(client::DataType dtype, std::vector<std::int64_t> shape,
                                                    std::uint64_t seed) {
  return Keep(RandomTensor(dtype, std::move(shape), seed, streams_++));
}

}  // namespace kernd::cli
