// Long steps as several launches. A kernel that runs cannot be stopped, so what would take longer than a blink is
// launched in slices, and a call that nobody waits for any more is given up between two of them.
//
// A slice is the same variant on a part of the problem whose results lie together: for attention, some sequences, or
// some key/value heads of one; for matmul, some items of the batch, or some rows of one. Attention's rows have the same
// bits in any slice, and so have a matmul's where its variant promises them; elsewhere they depend on the problem
// alone, as the cut does. What is not cut: a key/value head of one sequence, fewer than 256 rows of a matmul, and
// whatever would leave a slice's operands unaligned.
#pragma once

#include <cstdint>
#include <vector>

#include "kernd/kernels/gpu.h"

namespace kernd::gpu {

// Microseconds, by a variant's own estimate.
inline constexpr double kLongestLaunch = 20'000;
// A problem longer than this many of the longest launches has longer slices.
inline constexpr int kMaxSlices = 512;

struct MatmulSlice {
  MatmulProblem problem;
  MatmulGeometry geometry;
  std::int64_t a = 0, b = 0, c = 0, a_scale = 0, d = 0;  // bytes from the whole's first element to the slice's

  MatmulArgs Of(const MatmulArgs& whole) const;
};

// The problem is the whole's: launches read shapes from the geometry.
struct AttentionSlice {
  AttentionGeometry geometry;
  std::int64_t q = 0, k = 0, v = 0, mask = 0, bias = 0, o = 0, lse = 0;  // bytes, likewise
  std::int64_t sequence = 0, q_head = 0, scale = 0;                      // elements, in the tables

  AttentionArgs Of(const AttentionArgs& whole) const;
  AttentionTables Of(const AttentionTables& whole) const;
};

// Of a validated problem that `variant` runs, slices whose estimates are at most `longest` microseconds where that can
// be had, in the order of the results. Empty: launch it whole.
std::vector<MatmulSlice> SlicesOf(const MatmulProblem& problem, const MatmulGeometry& geometry,
                                  const MatmulVariant& variant, const DeviceInfo& device,
                                  double longest = kLongestLaunch);
std::vector<AttentionSlice> SlicesOf(const AttentionProblem& problem, const AttentionGeometry& geometry,
                                     const AttentionVariant& variant, const DeviceInfo& device,
                                     double longest = kLongestLaunch);

}  // namespace kernd::gpu
