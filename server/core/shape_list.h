// Problems by short names, for what an operator declares: `--prewarm
// matmul:bf16:4096x4096x4096,attention:f16:1x8x1024x64`.
//
//   matmul:DTYPE:[BATCHx]MxNxK[:WORD...]           ta tb bias relu gelu silu tf32 invariant
//   attention:DTYPE:BxH[/HKV]xL[/LKV]xD[/DV][:WORD...]  causal blhd lse window=KEYS
//
// and `kernel=NAME` for both. DTYPE is the token of kernel names: f16, bf16, f32, f64, i8, f8e4m3, f8e5m2. HKV, LKV and
// DV are those of K and V, unless given those of Q. Where positions matter the last query meets the last key. A word
// may be given once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/core/program.h"

namespace kernd::core {

inline constexpr std::size_t kMaxDeclaredShapes = 256;
inline constexpr std::size_t kMaxShapeText = 256;  // bytes of one

struct DeclaredShape {
  std::string text;  // as it was given
  Step step;         // a valid problem without operands
};

// INVALID_ARGUMENT names `field`, the text and the rule, for the first that breaks one: the grammar's, or the
// operation's own. Texts are not trusted.
absl::StatusOr<DeclaredShape> ParseShape(const std::string& text, std::string_view field);
absl::StatusOr<std::vector<DeclaredShape>> ParseShapes(absl::Span<const std::string> texts, std::string_view field);

// The step's operands, all of them zeros at one place, of which each has a run; nothing is held but that place.
// RESOURCE_EXHAUSTED: there is no memory for the largest.
absl::StatusOr<Step> WithZeros(Step step);

}  // namespace kernd::core
