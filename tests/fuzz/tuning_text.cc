// The file of tuned choices.
#include "kernd/kernels/tuning.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {
namespace {

const TuningVersion kVersion = {.device = "NVIDIA H200",
                                .processors = 132,
                                .driver = 13000,
                                .kernel_library = "cublaslt 130200",
                                .build = "0.1.0 (abc)"};

}  // namespace

void Target(std::string_view input) {
  const absl::StatusOr<TunedChoices> choices = ParseTuningText(input, kVersion);
  if (!choices.ok()) {
    Require(absl::IsInvalidArgument(choices.status()) || absl::IsFailedPrecondition(choices.status()),
            "a text is damaged or stale");
    for (const char c : choices.status().message()) Require(c >= ' ' && c <= '~', "and why can be shown");
    return;
  }
  Require(choices->size() <= kMaxTunedChoices, "there are not too many choices");
  for (const auto& [key, choice] : *choices) {
    Require(!key.empty() && !choice.kernel.empty() && choice.microseconds > 0, "each says something");
  }
  const absl::StatusOr<TunedChoices> again = ParseTuningText(TuningText(kVersion, *choices), kVersion);
  Require(again.ok() && *again == *choices, "what is written of them is read as the same");
}

std::vector<std::string> Seeds() {
  TuningVersion other = kVersion;
  other.driver = 12080;
  const TunedChoices some = {{"matmul/f32/1x2x3", {"matmul_f32_sm75_simt", 12.5}},
                             {"z", {"k", 1e-300, Tile{64, 128, 32}}}};
  return {TuningText(kVersion, {}), TuningText(kVersion, some), TuningText(other, some)};
}

}  // namespace kernd::fuzz
