// The operands of a call: read from files or made up.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernd/client/session.h"
#include "kernd/client/tensor.h"

namespace kernd::cli {

// "1x8x128x64" with any of `separators` between the numbers. INVALID_ARGUMENT where it is not that.
absl::StatusOr<std::vector<std::int64_t>> ParseDims(const std::string& text, const char* separators);

// Normal deviates of mean 0 and variance 1, rounded to `dtype`; for I8, I32 and I64 32 times as large, so that rounding
// leaves something of them. The same for the same seed and stream on every machine with IEEE doubles and the same libm.
// INVALID_ARGUMENT for BOOL and U8, which no operand of an operation is.
absl::StatusOr<client::Tensor> RandomTensor(client::DataType dtype, std::vector<std::int64_t> shape, std::uint64_t seed,
                                            std::uint32_t stream);

// Refuses operands that no call could carry, before they are made: INVALID_ARGUMENT where the tensors of `dtype` and
// `shapes`, that `flag` asked for, have 2 GiB and more together.
absl::Status CheckSize(const std::string& flag, client::DataType dtype,
                       const std::vector<std::vector<std::int64_t>>& shapes);

// Owns tensors that views point to.
class Operands {
 public:
  // The tensors of the session that "resident:ID" is in; without, there is none.
  void SetResident(std::vector<client::TensorInfo> tensors) { resident_ = std::move(tensors); }

  // "resident:ID": NOT_FOUND where the session has no such tensor.
  absl::StatusOr<client::Operand> FromFile(const std::string& file);
  // Each call has a stream of its own.
  absl::StatusOr<client::TensorView> Random(client::DataType dtype, std::vector<std::int64_t> shape,
                                            std::uint64_t seed);

 private:
  absl::StatusOr<client::TensorView> Keep(absl::StatusOr<client::Tensor> tensor);

  std::deque<client::Tensor> tensors_;
  std::optional<std::vector<client::TensorInfo>> resident_;
  std::uint32_t streams_ = 0;
};

}  // namespace kernd::cli
