// Choices that were measured, as values: for a problem, the variant that was quickest here. And the text that keeps
// them between starts, which names what they were measured with, and is not trusted when it is read. The same for every
// kind of device.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernd/kernels/variant.h"

namespace kernd {

struct DeviceInfo;

inline constexpr std::size_t kMaxTuningBytes = 1 << 20;  // of a text
inline constexpr std::size_t kMaxTuningLine = 512;
inline constexpr std::size_t kMaxTunedChoices = 4096;

// What a choice holds for. Another device, driver, library or build has other times, and perhaps other variants.
struct TuningVersion {
  std::string device;          // "NVIDIA H200"; of a CPU its model and the instruction set that kernels use
  int processors = 0;          // multiprocessors, or threads of a kernel
  int driver = 0;              // 13000 is 13.0; 0: none
  std::string kernel_library;  // of others' kernels: "cublaslt 130200"
  std::string build;

  bool operator==(const TuningVersion&) const = default;
};

// As a text holds it: printable ASCII, not empty, cut to a line's length.
TuningVersion Printable(TuningVersion version);

TuningVersion TuningVersionOf(const DeviceInfo& device, std::string_view build);

// Everything about a validated problem that its time depends on, as one word.
std::string TuningKey(const MatmulProblem& problem, const MatmulGeometry& geometry);
std::string TuningKey(const AttentionProblem& problem, const AttentionGeometry& geometry);

struct TunedChoice {
  std::string kernel;
  double microseconds = 0;
  std::optional<Tile> tile;  // of several variants of that name, this one

  bool operator==(const TunedChoice&) const = default;
};

// By TuningKey.
using TunedChoices = std::map<std::string, TunedChoice, std::less<>>;

// What was measured for a validated problem; null: nothing, or it must not be used. A batch-invariant matmul is never
// looked up, as its variant must not depend on M; an attention's rows depend on the variant alone. `choices` may be
// null.
const TunedChoice* FindTuned(const TunedChoices* choices, const MatmulProblem& problem, const MatmulGeometry& geometry);
const TunedChoice* FindTuned(const TunedChoices* choices, const AttentionProblem& problem,
                             const AttentionGeometry& geometry);

std::string TuningText(const TuningVersion& version, const TunedChoices& choices);

// The choices of a text, all or none.
//   FAILED_PRECONDITION  it is whole, and of another version than `version`: which part
//   INVALID_ARGUMENT     it is damaged, cut off or none of ours: line and rule
absl::StatusOr<TunedChoices> ParseTuningText(std::string_view text, const TuningVersion& version);

}  // namespace kernd
