#include "server/core/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kernd::core {
namespace {

constexpr int kMaxQuestions = 40;  // of one dimension
// A plan costs time for each sequence: a refusal costs at most as much as a few of the largest plans.
constexpr std::int64_t kMaxSequencesAsked = 4 * kMaxSequences;

// Sizes 1..size() of one dimension of a step, and the step at each.
struct Dimension {
  const char* name;
  const char* text;  // before the number
  std::int64_t size;
  std::function<Step(std::int64_t)> at;
  std::int64_t budget = std::numeric_limits<std::int64_t>::max();  // of sizes asked about, added up
};

void Shorten(std::vector<std::int64_t>& values, std::int64_t count) {
  if (!values.empty()) values.resize(static_cast<std::size_t>(count));
}
void Cap(std::vector<std::int64_t>& values, std::int64_t most) {
  for (std::int64_t& value : values) value = std::min(value, most);
}
// Dimension `index` of a tensor, unless it is broadcast.
void Resize(std::optional<TensorSpec>& spec, int index, std::int64_t size) {
  if (spec && spec->shape[index] != 1) spec->shape[index] = size;
}

std::int64_t BatchOf(const AttentionProblem& p) {
  return p.layout == AttentionLayout::kPacked ? static_cast<std::int64_t>(p.q_offsets.size()) - 1 : p.q.shape[0];
}

AttentionStep FirstSequences(const AttentionStep& step, std::int64_t batch) {
  AttentionStep smaller = step;
  AttentionProblem& p = smaller.problem;
  // Scales may be for each sequence and head, for each head, or one for all.
  const int head = p.layout == AttentionLayout::kBHLD ? 1 : p.k.rank() - 2;
  const std::size_t heads = static_cast<std::size_t>(p.k.shape[head]), all = static_cast<std::size_t>(BatchOf(p));
  for (std::vector<float>* scales : {&p.q_scale, &p.k_scale, &p.v_scale}) {
    if (scales->size() == all * heads) scales->resize(static_cast<std::size_t>(batch) * heads);
  }
  if (p.layout == AttentionLayout::kPacked) {
    Shorten(p.q_offsets, batch + 1);
    Shorten(p.kv_offsets, batch + 1);
    p.q.shape[0] = p.q_offsets.back();
    p.k.shape[0] = p.v.shape[0] = p.kv_offsets.back();
  } else {
    p.q.shape[0] = p.k.shape[0] = p.v.shape[0] = batch;
    Resize(p.mask, 0, batch);
    Resize(p.bias, 0, batch);
    Shorten(p.q_lengths, batch);
    Shorten(p.kv_lengths, batch);
  }
  return smaller;
}

AttentionStep ShorterSequences(const AttentionStep& step, std::int64_t length) {
  AttentionStep smaller = step;
  AttentionProblem& p = smaller.problem;
  if (p.layout == AttentionLayout::kPacked) {  // of one sequence
    Cap(p.q_offsets, length);
    Cap(p.kv_offsets, length);
    p.q.shape[0] = p.q_offsets.back();
    p.k.shape[0] = p.v.shape[0] = p.kv_offsets.back();
    return smaller;
  }
  const int row = p.layout == AttentionLayout::kBHLD ? 2 : 1;
  std::int64_t& q_length = p.q.shape[row];
  q_length = std::min(q_length, length);
  p.k.shape[row] = p.v.shape[row] = std::min(p.k.shape[row], length);
  for (std::optional<TensorSpec>* spec : {&p.mask, &p.bias}) {
    Resize(*spec, 2, q_length);
    if (*spec) (*spec)->shape[3] = p.k.shape[row];
  }
  Cap(p.q_lengths, length);
  Cap(p.kv_lengths, length);
  return smaller;
}

std::vector<Dimension> DimensionsOf(const AttentionStep& step) {
  const AttentionProblem& p = step.problem;
  const AttentionStep one = FirstSequences(step, 1);
  const int row = p.layout == AttentionLayout::kBHLD ? 2 : p.layout == AttentionLayout::kBLHD ? 1 : 0;
  return {{"batch", "the largest batch that would fit is ", BatchOf(p),
           [&step](std::int64_t size) { return FirstSequences(step, size); }, kMaxSequencesAsked},
          {"length", "the longest sequence that would fit, alone in its batch, is ",
           std::max(one.problem.q.shape[row], one.problem.k.shape[row]),
           [one](std::int64_t size) { return ShorterSequences(one, size); }}};
}

// The first batch dimension of D is dimension 0 of each operand that is not broadcast along it.
MatmulStep FirstItems(const MatmulStep& step, int rank, std::int64_t batch) {
  MatmulStep smaller = step;
  MatmulProblem& p = smaller.problem;
  const auto resize = [&](TensorSpec& spec) {
    if (spec.rank() == rank && spec.shape[0] != 1) spec.shape[0] = batch;
  };
  resize(p.a);
  resize(p.b);
  if (p.c) resize(*p.c);
  return smaller;
}

MatmulStep FirstRows(const MatmulStep& step, std::int64_t rows) {
  MatmulStep smaller = step;
  MatmulProblem& p = smaller.problem;
  p.a.shape[p.a.rank() - (p.transpose_a ? 1 : 2)] = rows;
  if (p.c) p.c->shape[p.c->rank() - 2] = rows;
  if (p.a_scale && p.a_scale->kind == ScaleSpec::Kind::kRow) p.a_scale->spec.shape[0] = rows;
  if (p.a_scale && p.a_scale->kind == ScaleSpec::Kind::kBlock) {
    p.a_scale->spec.shape[0] = (rows - 1) / p.a_scale->block_rows + 1;
  }
  return smaller;
}

std::vector<Dimension> DimensionsOf(const MatmulStep& step) {
  const MatmulProblem& p = step.problem;
  const int rank = std::max(p.a.rank(), p.b.rank());
  const auto first = [&](const TensorSpec& spec) { return spec.rank() == rank ? spec.shape[0] : 1; };
  const std::int64_t batch = rank > 2 ? std::max(first(p.a), first(p.b)) : 1;
  const MatmulStep one = batch > 1 ? FirstItems(step, rank, 1) : step;
  return {{"batch", "the largest first dimension of the batch that would fit is ", batch,
           [&step, rank](std::int64_t size) { return FirstItems(step, rank, size); }},
          {"rows",
           batch > 1 ? "the most rows that would fit, with 1 as the first dimension of the batch, are "
                     : "the most rows that would fit are ",
           p.a.shape[p.a.rank() - (p.transpose_a ? 1 : 2)], [one](std::int64_t size) { return FirstRows(one, size); }}};
}

// The largest size in [1, high) for which fullness(size) <= 1; 0 where there is none. `high` does not fit.
std::int64_t Largest(std::int64_t high, std::int64_t budget, const std::function<double(std::int64_t)>& fullness) {
  if (high <= 1) return 0;
  double at_low = fullness(1), at_high = fullness(high);
  if (at_low > 1) return 0;
  budget -= high;
  std::int64_t low = 1;
  bool low_moved = true;
  for (int question = 2; high - low > 1 && question < kMaxQuestions && budget > 0; ++question) {
    // In turns. Where memory grows evenly, the line between the ends meets 1 at the answer or beside it; whether it did
    // shows the neighbour; where it did not, halving the gap, in proportion while that says more, ends the search.
    const double gap = static_cast<double>(high - low);
    std::int64_t next = low + (high - low) / 2;
    if (question % 3 == 2 && std::isfinite(at_high)) {
      next = low + static_cast<std::int64_t>(gap * (1 - at_low) / (at_high - at_low));
    } else if (question % 3 == 0 && std::isfinite(at_high)) {
      next = low_moved ? low + 1 : high - 1;
    } else if (high / low > 4) {
      next = static_cast<std::int64_t>(std::sqrt(static_cast<double>(low) * static_cast<double>(high)));
    }
    next = std::clamp(next, low + 1, high - 1);
    budget -= next;
    const double at_next = fullness(next);
    low_moved = at_next <= 1;
    (low_moved ? low : high) = next;
    (low_moved ? at_low : at_high) = at_next;
  }
  return low;
}

}  // namespace

Fit FindFit(const Program& program, const Fullness& fullness) {
  if (program.steps.size() != 1) return {};
  const std::vector<Dimension> dimensions =
      std::visit([](const auto& step) { return DimensionsOf(step); }, program.steps.front());
  for (const Dimension& dimension : dimensions) {
    const std::int64_t size = Largest(dimension.size, dimension.budget, [&](std::int64_t n) {
      Program smaller;
      smaller.steps.push_back(dimension.at(n));
      return fullness(smaller);
    });
    if (size > 0) return {dimension.name, size, absl::StrCat(dimension.text, size)};
  }
  return {};
}

}  // namespace kernd::core
