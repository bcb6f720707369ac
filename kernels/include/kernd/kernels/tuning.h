// Choices that were measured, as values: for a problem, the variant that was quickest here. And the text that keeps
// them between starts, which names what they were measured with, and is not trusted when it is read.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernd/kernels/gpu.h"

namespace kernd {

inline constexpr std::size_t kMaxTuningBytes = 1 << 20;  // of a text
inline constexpr std::size_t kMaxTuningLine = 512;
inline constexpr std::size_t kMaxTunedChoices = 4096;

// What a choice holds for. Another GPU, driver, cuBLASLt or build has other times, and perhaps other variants.
struct TuningVersion {
  std::string gpu;  // "NVIDIA H200"
  int multiprocessors = 0;
  int driver = 0;    // 13000 is 13.0
  int cublaslt = 0;  // 0: none
  std::string build;

  bool operator==(const TuningVersion&) const = default;
};

TuningVersion TuningVersionOf(const DeviceInfo& device, std::string_view build);

// Everything about a validated problem that its time depends on, as one word.
std::string TuningKey(const MatmulProblem& problem, const MatmulGeometry& geometry);
std::string TuningKey(const AttentionProblem& problem, const AttentionGeometry& geometry);

struct TunedChoice {
  std::string kernel;
  double microseconds = 0;

  bool operator==(const TunedChoice&) const = default;
};

// By TuningKey.
using TunedChoices = std::map<std::string, TunedChoice, std::less<>>;

std::string TuningText(const TuningVersion& version, const TunedChoices& choices);

// The choices of a text, all or none.
//   FAILED_PRECONDITION  it is whole, and of another version than `version`: which part
//   INVALID_ARGUMENT     it is damaged, cut off or none of ours: line and rule
absl::StatusOr<TunedChoices> ParseTuningText(std::string_view text, const TuningVersion& version);

}  // namespace kernd
