// What would fit in place of a call that never can.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/core/program.h"

namespace kernd::core {

// Says how far a program is over the limits: the bytes that it needs over those there are, so that 1 or less fits.
// Infinity where the bytes cannot be counted or the program has no plan.
using Fullness = std::function<double(const Program&)>;

// The largest problem of the same kind that fits.
struct Fit {
  std::string dimension;  // "batch", "length", "rows"; empty: there is none
  std::int64_t size = 0;  // the largest that fits
  std::string text;       // for people: "the largest batch that would fit is 12"
};

// For a program of one step that does not fit. Tried first is the batch: the first so many sequences, or items of a
// matmul's first batch dimension. Where not even one of them fits, one of them is shortened: an attention to a sequence
// length, which bounds queries and keys alike; a matmul to so many rows of D. Nothing else about the problem changes.
// Asks `fullness` at most 80 times, of problems no larger than this one and of no more sequences in all than a few of
// the largest calls have; most often four times, since memory grows evenly. The answer always fits, and is exact unless
// memory grows so unevenly that these do not suffice.
Fit FindFit(const Program& program, const Fullness& fullness);

}  // namespace kernd::core
