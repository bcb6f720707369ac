// --debug-checks on the CPU: elements that are no numbers, and guards around results.
#pragma once

#include "absl/types/span.h"
#include "server/core/call.h"

namespace kernd::cpu {

// Memory for a result, aligned to 64 bytes, between two guards of at least as many. Null data where there is none to be
// had, or none needed.
core::HostBuffer AllocateGuarded(std::int64_t bytes);

// Of a buffer of AllocateGuarded.
bool GuardsAreWhole(const core::HostBuffer& result);

// Adds to the call's findings what a step's operands and results are, each tensor's name behind `prefix`. `operands` in
// the order of OperandSpecs; the results are the last of the call's, `result_names` of them, and guarded.
// INTERNAL (KERNEL_FAILED): something wrote past a result.
absl::Status Judge(absl::Span<const core::NamedSpec> specs, absl::Span<const void* const> operands,
                   absl::Span<const TensorSpec> results, absl::Span<const char* const> result_names,
                   const std::string& prefix, core::Call& call);

}  // namespace kernd::cpu
