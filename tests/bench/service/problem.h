// The call of the service bench: D [rows, 1] = A [rows, 3] B [3, 1] in F32. 12 bytes a row in and 4 out, three to one
// as in an attention call, and next to no arithmetic: what is measured is how bytes move. All values are small whole
// numbers, so that D is the same whoever computes it, in whatever order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kernd::bench {

inline constexpr std::int64_t kDepth = 3;
inline constexpr std::array<float, 3> kB = {1, 2, 3};

// Element `i` of A in row-major order.
inline float ElementOfA(std::int64_t i) {
  return static_cast<float>(i % 7 - 3);
}

inline std::vector<float> MakeA(std::int64_t rows) {
  std::vector<float> a(static_cast<std::size_t>(rows * kDepth));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = ElementOfA(static_cast<std::int64_t>(i));
  return a;
}

inline float ElementOfD(std::int64_t row) {
  float sum = 0;
  for (std::int64_t k = 0; k < kDepth; ++k) sum += ElementOfA(row * kDepth + k) * kB[static_cast<std::size_t>(k)];
  return sum;
}

// No value of D. Where a result lies in memory that was there before, its last row is set to it before a call.
inline constexpr float kNoResult = -1e30f;

// What a socket's server is told before A's bytes: it answers with these rows of D.
struct SocketHeader {
  std::int64_t first_row;
  std::int64_t rows;
};

}  // namespace kernd::bench
