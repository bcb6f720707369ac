// How a step lies in device memory: one block, operands first and side by side, so that a small call is one copy in.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "server/core/program.h"

namespace kernd::gpu {

struct DeviceLayout {
  static constexpr std::int64_t kAbsent = -1;
  static constexpr std::int64_t kCountsBytes = 256;  // two for each of at most 16 tensors

  // From a result's last byte to the next result's first, before the first one and behind the last: at least
  // kDeviceAlignment bytes.
  struct Guard {
    std::int64_t at, bytes;
  };

  // Offsets in the block, each a multiple of kDeviceAlignment; kAbsent for what the step does not have.
  absl::InlinedVector<std::int64_t, 6> operand_at;  // in the order given
  std::int64_t tables_at = kAbsent;
  absl::InlinedVector<std::int64_t, 2> result_at;
  std::int64_t workspace_at = 0;
  // With --debug-checks; they count as workspace.
  absl::InlinedVector<Guard, 3> guards;
  std::int64_t counts_at = kAbsent;

  // Each a multiple of kDeviceAlignment; together the block.
  std::int64_t input_bytes = 0;  // operands and tables
  std::int64_t output_bytes = 0, workspace_bytes = 0;
  std::int64_t bytes() const { return input_bytes + output_bytes + workspace_bytes; }
};

enum class Guarded { kNo, kYes };

// Nullopt: more than 2^62 bytes. An operand or a result of negative size is absent, or lives
// elsewhere.
std::optional<DeviceLayout> LayOut(absl::Span<const std::int64_t> operand_bytes, std::int64_t table_bytes,
                                   absl::Span<const std::int64_t> result_bytes, std::int64_t workspace_bytes,
                                   Guarded guarded = Guarded::kNo);

}  // namespace kernd::gpu
