// Declared shapes: --prewarm.
#include "server/core/shape_list.h"

#include "kernd/kernels/error.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {

void Target(std::string_view input) {
  const std::string text(input);
  const absl::StatusOr<core::DeclaredShape> shape = core::ParseShape(text, "--prewarm");
  if (!shape.ok()) {
    Require(absl::IsInvalidArgument(shape.status()) && DetailOf(shape.status()).field == "--prewarm",
            "a refusal names the option");
    Require(shape.status().message().size() < 1024, "and is short");
    return;
  }
  Require(shape->text == text, "the text is kept");
  Require(std::visit([](const auto& step) { return Validate(step.problem).ok(); }, shape->step),
          "what is accepted is a valid problem");
}

std::vector<std::string> Seeds() {
  return {"matmul:bf16:4096x4096x4096", "matmul:f8e4m3:7x2x3x5:ta:tb:bias:relu", "matmul:f32:0x3x5:tf32:kernel=name",
          "attention:f16:1x8x1024x64", "attention:bf16:2x32/8x1/8192x192/128:causal:blhd:lse:window=4096"};
}

}  // namespace kernd::fuzz
