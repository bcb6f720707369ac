#include "client/cli/operands.h"

#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "client/cli/files/tensor_file.h"
#include "client/cli/session.h"
#include "client/cli/table.h"
#include "client/cli/types.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/random.h"

namespace kernd::cli {
namespace {

// The most that a message holds.
constexpr std::int64_t kMaxCallBytes = std::numeric_limits<std::int32_t>::max();

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
  reference::Normal normal(seed, stream);
  for (std::int64_t i = 0; i < count; ++i) {
    reference::Store(KernelType(dtype), size * normal.Next(), bytes.data(), i);
  }
  return tensor;
}

absl::Status CheckSize(const std::string& flag, client::DataType dtype,
                       const std::vector<std::vector<std::int64_t>>& shapes) {
  std::int64_t total = 0;
  for (const std::vector<std::int64_t>& shape : shapes) {
    const std::optional<std::int64_t> bytes = client::TensorBytes(dtype, shape);
    if (!bytes || __builtin_add_overflow(total, *bytes, &total) || total > kMaxCallBytes) {
      const std::string size = bytes ? FormatBytes(*bytes) : "2^63 bytes and more";
      return absl::InvalidArgumentError(flag + ": " + client::ToString(dtype, shape) + " has " + size +
                                        "; the operands of a call have less than 2 GiB together");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<client::TensorView> Operands::Keep(absl::StatusOr<client::Tensor> tensor) {
  if (!tensor.ok()) return tensor.status();
  return tensors_.emplace_back(*std::move(tensor)).view();
}

absl::StatusOr<client::Operand> Operands::FromFile(const std::string& file) {
  const absl::StatusOr<std::optional<std::uint64_t>> id = ParseResident(file);
  if (!id.ok()) return id.status();
  if (!*id) {
    absl::StatusOr<client::TensorView> view = Keep(ReadTensor(file));
    if (!view.ok()) return view.status();
    return *std::move(view);
  }
  if (!resident_) return absl::InvalidArgumentError(file + " needs --session");
  for (const client::TensorInfo& tensor : *resident_) {
    if (tensor.id == **id) return client::ResidentTensor{tensor.id, tensor.dtype, tensor.shape};
  }
  return absl::NotFoundError("the session has no tensor " + std::to_string(**id));
}

absl::StatusOr<client::TensorView> Operands::Random(client::DataType dtype, std::vector<std::int64_t> shape,
                                                    std::uint64_t seed) {
  return Keep(RandomTensor(dtype, std::move(shape), seed, streams_++));
}

}  // namespace kernd::cli
