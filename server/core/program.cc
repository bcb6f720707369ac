#include "server/core/program.h"

#include <charconv>

namespace kernd::core {
namespace {

// By hand: this runs for every call, and one string that grows costs a tenth of many that are joined.
void Append(std::string& text, const char* name, const TensorSpec& spec) {
  if (!text.empty()) text += ' ';
  text += name;
  text += '=';
  text += Name(spec.dtype);
  char separator = '[';
  for (const std::int64_t dim : spec.shape) {
    char digits[24];
    text += separator;
    text.append(digits, std::to_chars(digits, digits + sizeof(digits), dim).ptr);
    separator = ',';
  }
  text += spec.shape.empty() ? "[]" : "]";
}

void Append(std::string& text, const char* name, const std::optional<TensorSpec>& spec) {
  if (spec) Append(text, name, *spec);
}

void Describe(std::string& text, const MatmulStep& step) {
  Append(text, "a", step.problem.a);
  Append(text, "b", step.problem.b);
  Append(text, "c", step.problem.c);
  Append(text, "bias", step.problem.bias);
}

void Describe(std::string& text, const AttentionStep& step) {
  Append(text, "q", step.problem.q);
  Append(text, "k", step.problem.k);
  Append(text, "v", step.problem.v);
  Append(text, "mask", step.problem.mask);
  Append(text, "bias", step.problem.bias);
}

std::optional<TensorSpec> SpecOf(const std::optional<ScaleSpec>& scale) {
  return scale ? std::optional(scale->spec) : std::nullopt;
}

}  // namespace

std::vector<NamedSpec> OperandSpecs(const MatmulStep& step) {
  const MatmulProblem& p = step.problem;
  return {{"a", p.a},
          {"b", p.b},
          {"c", p.c},
          {"bias", p.bias},
          {"a_scale", SpecOf(p.a_scale)},
          {"b_scale", SpecOf(p.b_scale)}};
}

std::vector<NamedSpec> OperandSpecs(const AttentionStep& step) {
  const AttentionProblem& p = step.problem;
  return {{"q", p.q}, {"k", p.k}, {"v", p.v}, {"mask", p.mask}, {"bias", p.bias}};
}

std::string DescribeShapes(const Program& program) {
  std::string text;
  text.reserve(128);
  for (const Step& step : program.steps) {
    std::visit([&](const auto& s) { Describe(text, s); }, step);
  }
  return text;
}

}  // namespace kernd::core
