#include "client/cli/bench/mix.h"

#include <charconv>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/files/file.h"
#include "client/cli/operands.h"
#include "client/cli/table.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

constexpr std::size_t kMinFields = 3, kMaxFields = 5;

bool IsOperandType(client::DataType dtype) {
  return dtype != client::DataType::kUnspecified && dtype != client::DataType::kBool && dtype != client::DataType::kU8;
}

std::optional<std::int64_t> ParseWeight(std::string_view text) {
  std::int64_t weight = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  const bool legal =
      error == std::errc() && rest == text.data() + text.size() && weight >= 1 && weight <= kMaxMixWeight;
  return legal ? std::optional(weight) : std::nullopt;
}

absl::StatusOr<BenchProblem> ParseLine(const std::string& where, const std::vector<std::string>& fields) {
  const auto wrong = [&where](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", parts...));
  };
  if (fields.size() < kMinFields || fields.size() > kMaxFields) {
    return wrong(fields.size(), " words: must be WEIGHT OP SHAPE [DTYPE] [causal]");
  }
  const std::optional<std::int64_t> weight = ParseWeight(fields[0]);
  if (!weight) return wrong("weight '", fields[0], "': must be a whole number from 1 to ", kMaxMixWeight);
  if (fields[1] != "matmul" && fields[1] != "attention") {
    return wrong("operation '", fields[1], "': must be matmul or attention");
  }
  const bool causal = fields.back() == "causal";
  const std::size_t named = fields.size() - (causal ? 1 : 0);
  client::DataType dtype = client::DataType::kF16;
  if (named > kMinFields) {
    const std::optional<client::DataType> parsed = client::ParseDataType(fields[kMinFields]);
    if (!parsed || named > kMinFields + 1) return wrong("'", fields[named - 1], "': must be an element type or causal");
    dtype = *parsed;
  }
  KERND_ASSIGN_OR_RETURN(BenchProblem problem, MakeProblem(where + ":", fields[1], fields[2], dtype, causal));
  problem.weight = *weight;
  return problem;
}

using Dims = std::vector<std::int64_t>;

std::vector<Dims> ShapesOf(const MatmulDims& d) {
  const auto shape = [&d](std::int64_t rows, std::int64_t columns) {
    std::vector<std::int64_t> dims = d.batch;
    dims.insert(dims.end(), {rows, columns});
    return dims;
  };
  return {shape(d.m, d.k), shape(d.k, d.n)};
}

std::vector<Dims> ShapesOf(const AttentionDims& d) {
  return {{d.batch, d.q_heads, d.q_length, d.head_dim},
          {d.batch, d.kv_heads, d.kv_length, d.head_dim},
          {d.batch, d.kv_heads, d.kv_length, d.v_head_dim}};
}

}  // namespace

std::vector<std::vector<std::int64_t>> OperandShapes(const BenchProblem& problem) {
  return std::visit([](const auto& dims) { return ShapesOf(dims); }, problem.dims);
}

std::string BenchProblem::Name() const {
  return absl::StrCat(op(), " ", std::string(client::Name(dtype)), " ", shape, causal ? " causal" : "");
}

absl::StatusOr<BenchProblem> MakeProblem(const std::string& where, const std::string& op, const std::string& shape,
                                         client::DataType dtype, bool causal) {
  BenchProblem problem{.shape = shape, .dtype = dtype, .causal = causal};
  if (!IsOperandType(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, " ", shape, ": no operand is ", std::string(client::Name(dtype))));
  }
  if (op == "matmul") {
    if (causal) return absl::InvalidArgumentError(where + " " + shape + ": causal is for attention");
    KERND_ASSIGN_OR_RETURN(problem.dims, ParseMatmulDims(where, shape));
  } else {
    KERND_ASSIGN_OR_RETURN(problem.dims, ParseAttentionDims(where, shape));
  }
  KERND_RETURN_IF_ERROR(CheckSize(where + " " + shape, dtype, OperandShapes(problem)));
  return problem;
}

absl::StatusOr<std::vector<BenchProblem>> ParseMix(const std::string& file, std::string_view text) {
  std::vector<BenchProblem> problems;
  std::int64_t total = 0;
  int number = 0;
  for (const absl::string_view raw : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::string where = absl::StrCat(file, ":", ++number);
    const std::vector<std::string> fields =
        absl::StrSplit(raw.substr(0, raw.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (fields.empty()) continue;
    if (problems.size() == kMaxMixProblems) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": more than ", kMaxMixProblems, " problems"));
    }
    KERND_ASSIGN_OR_RETURN(problems.emplace_back(), ParseLine(where, fields));
    for (const std::vector<std::int64_t>& shape : OperandShapes(problems.back())) {
      total += *client::TensorBytes(problems.back().dtype, shape);  // MakeProblem has seen to it that there is one
    }
    if (total > kMaxOperandBytes) {
      return absl::InvalidArgumentError(where + ": up to here the operands have " + FormatBytes(total) +
                                        "; all problems together may have " + FormatBytes(kMaxOperandBytes));
    }
  }
  if (problems.empty()) return absl::InvalidArgumentError(file + ": no problem in it");
  return problems;
}

absl::StatusOr<std::vector<BenchProblem>> ReadMix(const std::string& file) {
  KERND_ASSIGN_OR_RETURN(InputFile input, InputFile::Open(file));
  if (input.size() > kMaxMixBytes) {
    return input.Malformed(FormatBytes(input.size()) + ", a mix has at most " + FormatBytes(kMaxMixBytes));
  }
  std::string text(static_cast<std::size_t>(input.size()), '\0');
  KERND_RETURN_IF_ERROR(input.Read(0, std::as_writable_bytes(std::span(text))));
  return ParseMix(file, text);
}

}  // namespace kernd::cli
