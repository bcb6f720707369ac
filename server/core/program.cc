#include "server/core/program.h"

#include "absl/strings/str_cat.h"

namespace kernd::core {
namespace {

void Append(std::string& text, const char* name, const TensorSpec& spec) {
  absl::StrAppend(&text, text.empty() ? "" : " ", name, "=", spec.ToString());
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

}  // namespace

std::string DescribeShapes(const Program& program) {
  std::string text;
  for (const Step& step : program.steps) {
    std::visit([&](const auto& s) { Describe(text, s); }, step);
  }
  return text;
}

}  // namespace kernd::core
