// The 256 values of each 8-bit floating format, as floats.
#pragma once

namespace kernd::cpu {

extern const float* const kE4M3Table;  // OCP e4m3fn
extern const float* const kE5M2Table;  // OCP e5m2

}  // namespace kernd::cpu
