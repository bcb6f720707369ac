#include "client/cli/verify/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/operation.h"
#include "client/cli/types.h"
#include "client/cli/verify/client_args.h"
#include "kernd/kernels/error.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"

namespace kernd::cli {
namespace {

using reference::AttentionCase;
using reference::MatmulCase;

// --- what is expected
// -------------------------------------------------------------------------------------------------

absl::StatusOr<std::vector<Expected>> ExpectedOf(const MatmulCase& c) {
  KERND_ASSIGN_OR_RETURN(const MatmulGeometry geometry, Validate(c.problem));
  KERND_ASSIGN_OR_RETURN(reference::Values values, reference::MatmulValues(c.problem, c.Args()));
  std::vector<double> bounds = reference::MatmulBounds(c.problem, values);
  return std::vector<Expected>{{"D", geometry.d, std::move(values.value), std::move(bounds)}};
}

absl::StatusOr<std::vector<Expected>> ExpectedOf(const AttentionCase& c) {
  KERND_ASSIGN_OR_RETURN(const AttentionGeometry geometry, Validate(c.problem));
  KERND_ASSIGN_OR_RETURN(reference::AttentionResult result, reference::AttentionValues(c.problem, c.Args()));
  std::vector<double> o_bounds = reference::OutputBounds(c.problem, result);
  std::vector<double> lse_bounds = reference::LseBounds(c.problem, result);
  std::vector<Expected> expected = {{"O", geometry.o_spec, std::move(result.o.value), std::move(o_bounds)}};
  if (c.problem.want_lse) {
    expected.push_back({"LSE", *geometry.lse_spec, std::move(result.lse.value), std::move(lse_bounds)});
  }
  return expected;
}

// Calls `visit(b, h, sequence, first element)` for each row `i` of each sequence and head of a tensor; `range` says
// which rows of a sequence there are.
template <typename Range, typename Visit>
void ForEachRow(const AttentionGeometry& g, std::int64_t heads, const HeadStrides& strides, const Range& range,
                const Visit& visit) {
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const auto [start, rows] = range(b);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < rows; ++i) visit(b * strides.batch + h * strides.head + (start + i) * strides.row);
    }
  }
}

// Other keys and values from the middle of each sequence on.
void SetOtherFuture(const AttentionCase& c, const AttentionGeometry& g, std::uint64_t seed, Exam& exam) {
  reference::Source source(seed + 1);
  AttentionCase& other = exam.other_future.emplace(c);
  other.k = source.Tensor(c.problem.k);
  other.v = source.Tensor(c.problem.v);
  for (const AttentionSequence& s : g.sequences) exam.kept.push_back(s.kv_length / 2);
  const auto kept = [&](std::int64_t b) { return std::pair(g.sequences[b].kv_start, exam.kept[b]); };
  const auto keep = [&](const HeadStrides& strides, std::int64_t width, const reference::Elements& from,
                        reference::Elements& to) {
    const std::int64_t element = ElementBytes(c.problem.k.dtype);
    ForEachRow(g, g.kv_heads, strides, kept, [&](std::int64_t at) {
      std::copy_n(from.begin() + at * element, width * element, to.begin() + at * element);
    });
  };
  keep(g.k, g.head_dim, c.k, other.k);
  keep(g.v, g.v_head_dim, c.v, other.v);
}

// --- what is answered
// -------------------------------------------------------------------------------------------------

struct Answer {
  std::vector<client::Tensor> tensors;  // in the order of Exam::results
  client::KernelUsed kernel;
};

absl::StatusOr<Answer> Ask(const client::Client& client, const MatmulCase& c, const std::string& kernel,
                           const client::CallOptions& options) {
  client::MatmulArgs args = ClientArgs(c.problem, c.Args());
  args.kernel.name = kernel;
  KERND_ASSIGN_OR_RETURN(client::MatmulReply reply, client.Matmul(args, options));
  Answer answer{.kernel = std::move(reply.kernel)};
  answer.tensors.push_back(std::move(reply.d));
  return answer;
}

absl::StatusOr<Answer> Ask(const client::Client& client, const AttentionCase& c, const std::string& kernel,
                           const client::CallOptions& options) {
  client::AttentionArgs args = ClientArgs(c.problem, c.Args());
  args.kernel.name = kernel;
  KERND_ASSIGN_OR_RETURN(client::AttentionReply reply, client.Attention(args, options));
  Answer answer{.kernel = std::move(reply.kernel)};
  answer.tensors.push_back(std::move(reply.o));
  if (c.problem.want_lse) answer.tensors.push_back(std::move(reply.lse));
  return answer;
}

// Empty where the answer has the kernel, element types and shapes that it must have.
std::string WrongForm(const Answer& answer, const std::vector<Expected>& results, const std::string& kernel) {
  if (!kernel.empty() && answer.kernel.name != kernel) return "ran " + answer.kernel.name + " instead";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const client::Tensor& tensor = answer.tensors[i];
    const TensorSpec& spec = results[i].spec;
    const bool same = tensor.dtype() == ClientType(spec.dtype) &&
                      std::equal(tensor.shape().begin(), tensor.shape().end(), spec.shape.begin(), spec.shape.end());
    if (!same) {
      return absl::StrCat(results[i].tensor, " is ", client::ToString(tensor.dtype(), tensor.shape()), ", not ",
                          spec.ToString());
    }
  }
  return "";
}

// --- judgement
// --------------------------------------------------------------------------------------------------------

std::vector<std::int64_t> IndexOf(std::int64_t element, const Dims& shape) {
  std::vector<std::int64_t> index(shape.size());
  for (std::size_t i = shape.size(); i-- > 0; element /= shape[i]) index[i] = element % shape[i];
  return index;
}

// How far from `e` a kernel was before it stored `a`, at the least, as a part of the bound: 0 for the correctly rounded
// value, at most 1 where it passes reference::Compare.
double PartOfTolerance(DataType dtype, double a, double e, double bound) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr int kSteps = 16;  // of a bisection: to 2^-16 of |a - e|
  const double rounded = reference::Round(dtype, e);
  if (a == rounded || (std::isnan(a) && std::isnan(rounded))) return 0;
  if (!std::isfinite(a) || !std::isfinite(e)) return kInfinity;
  double outside = e, inside = a;  // of the numbers that are stored as `a`
  for (int i = 0; i < kSteps; ++i) {
    const double middle = outside + (inside - outside) / 2;
    (reference::Round(dtype, middle) == a ? inside : outside) = middle;
  }
  const double error = std::abs(outside - e);
  return bound > 0 ? error / bound : kInfinity;
}

void Compare(const Expected& expected, const client::Tensor& tensor, Result& result) {
  const DataType dtype = expected.spec.dtype;
  const void* data = tensor.bytes().data();
  const reference::Comparison c = reference::Compare(dtype, data, expected.values, expected.bounds);
  const std::vector<double> actual = reference::LoadAll(dtype, data, c.count);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double part = PartOfTolerance(dtype, actual[i], expected.values[i], expected.bounds[i]);
    result.of_tolerance = std::max(result.of_tolerance, part);
  }
  if (result.elements == 0) {  // the main result comes first
    result.max_abs = LargestError(actual, expected.values);
    result.mean_abs = c.mean_abs;
  }
  result.elements += c.count;
  result.mismatches += c.mismatches;
  if (!c.ok() && !result.first_wrong) {
    result.first_wrong = {expected.tensor, IndexOf(c.first_mismatch, expected.spec.shape), c.first_actual,
                          c.first_expected, c.first_bound};
  }
}

// Where the bits of the two differ first, "D[3,17]"; empty where they do not.
std::string FirstDifference(const std::vector<Expected>& results, const Answer& a, const Answer& b) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::span<const std::byte> x = a.tensors[i].bytes(), y = b.tensors[i].bytes();
    const auto at = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first - x.begin();
    if (at == std::ssize(x)) continue;
    const std::int64_t element = at / ElementBytes(results[i].spec.dtype);
    return absl::StrCat(results[i].tensor, "[", absl::StrJoin(IndexOf(element, results[i].spec.shape), ","), "]");
  }
  return "";
}

// The first element of a row that sees none of the changed keys, and changed all the same; empty where there is none.
std::string FirstThatSawTheFuture(const Exam& exam, const AttentionGeometry& g, const Answer& a, const Answer& b) {
  // Rows up to kept - diagonal - right - 1 see only keys that were kept.
  const auto rows = [&](std::int64_t seq) {
    const AttentionSequence& s = g.sequences[seq];
    return std::pair(s.q_start, std::clamp<std::int64_t>(exam.kept[seq] - s.diagonal - *g.window_right, 0, s.q_rows));
  };
  std::string found;
  for (std::size_t i = 0; i < exam.results.size(); ++i) {
    const TensorSpec& spec = exam.results[i].spec;
    const bool is_o = i == 0;
    const std::int64_t element = ElementBytes(spec.dtype), width = is_o ? g.v_head_dim : 1;
    const HeadStrides strides = is_o ? g.o : HeadStrides{g.lse.batch, g.lse.head, 1};
    ForEachRow(g, g.q_heads, strides, rows, [&](std::int64_t at) {
      const std::byte* x = a.tensors[i].bytes().data() + at * element;
      const std::byte* y = b.tensors[i].bytes().data() + at * element;
      const std::int64_t same = std::mismatch(x, x + width * element, y).first - x;
      if (same == width * element || !found.empty()) return;
      found =
          absl::StrCat(exam.results[i].tensor, "[", absl::StrJoin(IndexOf(at + same / element, spec.shape), ","), "]");
    });
  }
  return found;
}

// The daemon knows the call and the kernel, but does not offer the one or the other for it.
bool IsNotOffered(const absl::Status& status, const std::string& kernel) {
  const bool of_kernel = client::DetailsOf(status).field.find("kernel") != std::string::npos;
  return absl::IsUnimplemented(status) || (!kernel.empty() && absl::IsInvalidArgument(status) && of_kernel);
}

bool IsGone(const absl::Status& status) {
  return absl::IsUnavailable(status) || client::DetailsOf(status).reason == client::reason::kNotConnected;
}

std::string Text(const WrongElement& wrong) {
  return absl::StrFormat("%s[%s] is %.9g, must be %.9g +- %.3g", wrong.tensor, absl::StrJoin(wrong.index, ","),
                         wrong.actual, wrong.expected, wrong.bound);
}

}  // namespace

absl::StatusOr<Exam> Prepare(const Case& c, std::uint64_t seed) {
  reference::Source source(seed);
  Exam exam{.call = c.make(source)};
  KERND_ASSIGN_OR_RETURN(exam.results, std::visit([](const auto& call) { return ExpectedOf(call); }, exam.call));
  if (!c.known.empty()) exam.results[0].values = c.known;
  if (const auto* attention = std::get_if<AttentionCase>(&exam.call)) {
    KERND_ASSIGN_OR_RETURN(const AttentionGeometry geometry, Validate(attention->problem));
    if (geometry.window_right) SetOtherFuture(*attention, geometry, seed, exam);
  }
  return exam;
}

absl::StatusOr<Result> Check(const client::Client& client, const Exam& exam, const std::string& kernel,
                             const client::CallOptions& options) {
  Result result{.kernel = kernel};
  const auto fail = [&result](const std::string& why) {
    result.verdict = Verdict::kFailed;
    if (!result.why.empty()) result.why += "; ";
    result.why += why;
  };
  const auto ask = [&](const auto& call) { return Ask(client, call, kernel, options); };

  const absl::StatusOr<Answer> answer = std::visit(ask, exam.call);
  if (!answer.ok()) {
    if (IsGone(answer.status())) return answer.status();
    const std::string message(answer.status().message());
    fail(absl::StrCat(absl::StatusCodeToString(answer.status().code()), ": ", message));
    if (!IsNotOffered(answer.status(), kernel)) return result;
    result.verdict = Verdict::kNotSupported;
    result.why = message;
    return result;
  }
  result.kernel = answer->kernel.name;
  if (const std::string wrong = WrongForm(*answer, exam.results, kernel); !wrong.empty()) {
    fail(wrong);
    return result;
  }
  result.compared = true;
  for (std::size_t i = 0; i < exam.results.size(); ++i) Compare(exam.results[i], answer->tensors[i], result);
  if (result.first_wrong) {
    fail(
        absl::StrFormat("%s; %d of %d elements differ", Text(*result.first_wrong), result.mismatches, result.elements));
  }

  // The same again, and another future: `differs` says where the answers do.
  const auto compare = [&](const absl::StatusOr<Answer>& other, const std::string& what, const auto& differs) {
    std::string wrong = other.ok() ? WrongForm(*other, exam.results, kernel)
                                   : absl::StrCat(absl::StatusCodeToString(other.status().code()), ": ",
                                                  std::string(other.status().message()));
    if (wrong.empty()) wrong = differs(*answer, *other);
    if (!wrong.empty()) fail(what + wrong);
    return wrong.empty();
  };
  const absl::StatusOr<Answer> again = std::visit(ask, exam.call);
  if (IsGone(again.status())) return again.status();
  result.repeated = compare(again, "the same call again: ", [&](const Answer& a, const Answer& b) {
    return FirstDifference(exam.results, a, b);
  });
  if (exam.other_future) {
    const AttentionGeometry geometry = *Validate(exam.other_future->problem);
    const absl::StatusOr<Answer> future = ask(*exam.other_future);
    if (IsGone(future.status())) return future.status();
    result.causal = compare(future, "other keys after it changed a row: ", [&](const Answer& a, const Answer& b) {
      return FirstThatSawTheFuture(exam, geometry, a, b);
    });
  }
  return result;
}

}  // namespace kernd::cli
