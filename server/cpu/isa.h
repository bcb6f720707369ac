// Which instruction set the kernels of this folder use. The sources *_tile.cc are compiled once for each
// (CMakeLists.txt gives the flags), in a namespace of that name; everything else is compiled for the baseline of the
// target.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace kernd::cpu {

enum class Isa : std::uint8_t {
  kBaseline,  // SSE2 on x86-64, NEON on arm64
  kAvx2,      // AVX2, FMA, F16C
  kAvx512,    // AVX-512 F, BW, DQ, VL
};

// The best that both this build and this machine have. Read once.
Isa BestIsa();

// All that both have, the worst first: for tests, which run each of them.
std::vector<Isa> AvailableIsas();

constexpr std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "baseline";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "invalid";
}

}  // namespace kernd::cpu
