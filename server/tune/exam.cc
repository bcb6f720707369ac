#include "server/tune/exam.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/non_finite.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/random.h"
#include "kernels/reference/tolerance.h"

namespace kernd::tune {
namespace {

constexpr std::int64_t kItems = 3, kRows = 16, kColumns = 256;  // of a matmul
constexpr std::int64_t kMatmulElements = 1 << 22;               // of A, and of B, in one item
constexpr std::int64_t kAttentionRows = 24;
constexpr std::int64_t kAttentionElements = 1 << 23;  // of K and V, in all rows

// As many of [0, n) as `count`, rising, the first and the last among them.
std::vector<std::int64_t> Some(std::int64_t n, std::int64_t count, std::uint32_t stream) {
  std::set<std::int64_t> chosen;
  if (n > 0) chosen = {0, n - 1};
  reference::Uniform uniform(1, stream);
  for (std::int64_t i = 2; i < std::min(n, count); ++i) {
    chosen.insert(static_cast<std::int64_t>(uniform.Next() * static_cast<double>(n)));
  }
  return {chosen.begin(), chosen.end()};
}

// Elements that are put together, one after the other.
class Gathered {
 public:
  Gathered(const core::Operand& from, DataType dtype)
      : from_(from.runs.empty() ? nullptr : from.runs.front().data()), size_(ElementBytes(dtype)) {}

  void Add(std::int64_t at, std::int64_t count = 1) {
    const std::byte* const begin = from_ + at * size_;
    bytes_.insert(bytes_.end(), begin, begin + count * size_);
  }
  const void* data() const { return bytes_.data(); }

 private:
  const std::byte* const from_;
  const std::int64_t size_;
  std::vector<std::byte> bytes_;
};

struct Row {
  std::int64_t b, h, i;
};

std::vector<Row> SomeRows(const AttentionGeometry& g) {
  const std::int64_t keys = std::max<std::int64_t>(g.max_kv_length * (g.head_dim + g.v_head_dim), 1);
  const std::int64_t count = std::clamp<std::int64_t>(kAttentionElements / keys, 2, kAttentionRows);
  std::vector<Row> rows = {{0, 0, 0}, {g.batch - 1, g.q_heads - 1, g.sequences.back().q_rows - 1}};
  reference::Uniform uniform(2);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(uniform.Next() * static_cast<double>(n)); };
  while (static_cast<std::int64_t>(rows.size()) < count) {
    const std::int64_t b = below(g.batch);
    rows.push_back({b, below(g.q_heads), below(g.sequences[static_cast<std::size_t>(b)].q_rows)});
  }
  return rows;
}

}  // namespace

absl::Status Exam::Add(const core::MatmulStep& step) {
  const MatmulProblem& p = step.problem;
  KERND_ASSIGN_OR_RETURN(const MatmulGeometry g, Validate(p));
  results_.push_back({.name = core::kMatmulResults[0], .spec = g.d});
  if (g.d.elements() == 0) return absl::OkStatus();
  const std::int64_t most = std::max<std::int64_t>(kMatmulElements / std::max<std::int64_t>(g.k, 1), 1);
  const std::vector<std::int64_t> rows = Some(g.m, std::min(kRows, most), 1);
  const std::vector<std::int64_t> columns = Some(g.n, std::min(kColumns, most), 2);
  // The same problem of the rows and columns alone.
  MatmulProblem small = p;
  small.a = {.dtype = p.a.dtype, .shape = {std::ssize(rows), g.k}};
  small.b = {.dtype = p.b.dtype, .shape = {g.k, std::ssize(columns)}};
  small.transpose_a = small.transpose_b = false;
  Gathered bias(step.bias, p.bias ? p.bias->dtype : DataType::kF32);
  if (p.bias) {
    small.bias->shape = {std::ssize(columns)};
    for (const std::int64_t column : columns) bias.Add(column);
  }
  for (const std::int64_t item : Some(g.batch, kItems, 3)) {
    Gathered a(step.a, p.a.dtype), b(step.b, p.b.dtype);
    for (const std::int64_t row : rows) {
      for (std::int64_t k = 0; k < g.k; ++k) {
        a.Add(g.AOffset(item) + (p.transpose_a ? k * g.lda + row : row * g.lda + k));
      }
    }
    for (std::int64_t k = 0; k < g.k; ++k) {
      for (const std::int64_t column : columns) {
        b.Add(g.BOffset(item) + (p.transpose_b ? column * g.ldb + k : k * g.ldb + column));
      }
    }
    KERND_ASSIGN_OR_RETURN(
        reference::Values d,
        reference::MatmulValues(small, {.a = a.data(), .b = b.data(), .bias = p.bias ? bias.data() : nullptr}));
    Sample sample{.bounds = reference::MatmulBounds(small, d)};
    sample.expected = std::move(d.value);
    for (const std::int64_t row : rows) {
      for (const std::int64_t column : columns) sample.at.push_back((item * g.m + row) * g.n + column);
    }
    samples_.push_back(std::move(sample));
  }
  return absl::OkStatus();
}

absl::Status Exam::Add(const core::AttentionStep& step) {
  const AttentionProblem& p = step.problem;
  KERND_ASSIGN_OR_RETURN(const AttentionGeometry g, Validate(p));
  results_.push_back({.name = core::kAttentionResults[0], .spec = g.o_spec});
  // A row that sees no key has minus infinity.
  if (g.lse_spec) results_.push_back({.name = core::kAttentionResults[1], .spec = *g.lse_spec, .finite = false});
  if (g.o_spec.elements() == 0) return absl::OkStatus();
  const DataType dtype = p.q.dtype;
  for (const Row& row : SomeRows(g)) {
    const AttentionSequence& s = g.sequences[static_cast<std::size_t>(row.b)];
    const std::int64_t at = row.i + s.diagonal, kv_head = row.h / g.heads_per_kv;
    std::int64_t begin = g.window_left ? std::clamp<std::int64_t>(at - *g.window_left, 0, s.kv_length) : 0;
    std::int64_t end =
        g.window_right ? std::clamp<std::int64_t>(at + *g.window_right + 1, 0, s.kv_length) : s.kv_length;
    if (row.i >= s.q_length || end < begin) end = begin;
    // One row, over the keys that it sees.
    AttentionProblem small{.q = {.dtype = dtype, .shape = {1, 1, 1, g.head_dim}},
                           .k = {.dtype = dtype, .shape = {1, 1, end - begin, g.head_dim}},
                           .v = {.dtype = dtype, .shape = {1, 1, end - begin, g.v_head_dim}},
                           .scale = g.scale,
                           .want_lse = g.lse_spec.has_value(),
                           .output_dtype = g.output_dtype};
    Gathered q(step.q, dtype), k(step.k, dtype), v(step.v, dtype);
    q.Add(row.b * g.q.batch + row.h * g.q.head + (s.q_start + row.i) * g.q.row, g.head_dim);
    for (std::int64_t j = begin; j < end; ++j) {
      k.Add(row.b * g.k.batch + kv_head * g.k.head + (s.kv_start + j) * g.k.row, g.head_dim);
      v.Add(row.b * g.v.batch + kv_head * g.v.head + (s.kv_start + j) * g.v.row, g.v_head_dim);
    }
    KERND_ASSIGN_OR_RETURN(reference::AttentionResult result,
                           reference::AttentionValues(small, {.q = q.data(), .k = k.data(), .v = v.data()}));
    Sample o{.bounds = reference::OutputBounds(small, result)};
    if (g.lse_spec) {
      samples_.push_back({.result = 1,
                          .at = {row.b * g.lse.batch + row.h * g.lse.head + s.q_start + row.i},
                          .expected = result.lse.value,
                          .bounds = reference::LseBounds(small, result)});
    }
    o.expected = std::move(result.o.value);
    const std::int64_t first = row.b * g.o.batch + row.h * g.o.head + (s.q_start + row.i) * g.o.row;
    for (std::int64_t d = 0; d < g.v_head_dim; ++d) o.at.push_back(first + d);
    samples_.push_back(std::move(o));
  }
  return absl::OkStatus();
}

absl::StatusOr<Exam> Exam::Prepare(const core::Step& step) {
  Exam exam;
  KERND_RETURN_IF_ERROR(std::visit([&](const auto& s) { return exam.Add(s); }, step));
  return exam;
}

std::string Exam::Judge(absl::Span<const core::HostBuffer> results) const {
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Result& result = results_[i];
    if (i >= results.size() || results[i].size() != result.spec.bytes()) {
      return absl::StrCat(result.name, " is not there, or not as large as it must be");
    }
    const NonFinite found = CountNonFinite(result.spec.dtype, results[i].data(), result.spec.elements());
    if (found.nan > 0 || (result.finite && found.inf > 0)) {
      return absl::StrCat(result.name, " has ", found.nan, " NaN and ", found.inf, " infinities");
    }
  }
  for (const Sample& sample : samples_) {
    const Result& result = results_[sample.result];
    const std::int64_t size = ElementBytes(result.spec.dtype);
    std::vector<std::byte> elements(sample.at.size() * static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < sample.at.size(); ++i) {
      std::memcpy(elements.data() + i * static_cast<std::size_t>(size),
                  results[sample.result].data() + sample.at[i] * size, static_cast<std::size_t>(size));
    }
    const reference::Comparison comparison =
        reference::Compare(result.spec.dtype, elements.data(), sample.expected, sample.bounds);
    if (!comparison.ok()) return absl::StrCat("of sampled elements of ", result.name, " ", comparison.ToString());
  }
  return "";
}

}  // namespace kernd::tune
