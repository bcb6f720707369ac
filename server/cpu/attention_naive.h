// Textbook attention: the honest comparison for memory, and a second opinion that shares no code with the fast kernel.
#pragma once

#include <cstdint>

#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "server/cpu/team.h"

namespace kernd::cpu {

// 4 bytes for each of the call's logits; saturates at 2^63 - 1.
std::int64_t NaiveWorkspaceBytes(const AttentionGeometry& geometry);

// `logits`: NaiveWorkspaceBytes.
void RunNaiveAttention(const AttentionProblem& problem, const AttentionGeometry& geometry, const AttentionArgs& args,
                       float* logits, int threads, Stop stop);

}  // namespace kernd::cpu
