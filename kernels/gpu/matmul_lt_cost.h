// A rough time for cuBLASLt: the roofline of the device, and what each launch costs.
#pragma once

#include <algorithm>

#include "kernd/kernels/gpu.h"

namespace kernd {

// Of the host and of the device; measured on an H200.
inline constexpr double kLtCallMicroseconds = 8, kLtPassMicroseconds = 3;

// A pass that packs, finishes or adds reads and writes slower than large copies do: at 40 % of the memory's rate, as an
// H200 was measured, in rows of 4095 and 4097 elements and in relu's pass of 4096 x 4096 alike.
inline double PassMicroseconds(const DeviceInfo& device, double bytes) {
  return bytes / (static_cast<double>(device.memory_bytes_per_second) * 0.4e-6);
}

// Dense flops of a multiprocessor in a clock.
inline double LtFlopsPerClock(int sm, DataType type, bool tf32) {
  const bool data_center = sm == 80 || sm == 90 || sm == 100 || sm == 103;
  if (type == DataType::kF64) return data_center ? (sm == 90 ? 256 : 128) : 4;
  if (type == DataType::kF32 && !tf32) return sm == 75 || sm == 80 ? 128 : 256;
  const double half = sm >= 100 && data_center ? 8192 : sm == 90 ? 4096 : sm == 80 ? 2048 : 1024;
  if (type == DataType::kF32) return half / 2;
  return ElementBytes(type) == 1 ? 2 * half : half;
}

// `type` as multiplied; `aligned`: rows start at multiples of 16 bytes, and K is of whole ones; `bytes`: that the calls
// read and write, `pass_bytes` those of passes before and after.
inline double LtMicroseconds(const DeviceInfo& device, DataType type, bool tf32, bool aligned, double flops,
                             double bytes, double pass_bytes, int passes, int calls) {
  // Of the peak: what large problems reach, and what is left where rows cannot be copied in vectors.
  const double efficiency = aligned ? 0.75 : 0.11;
  const double rate = LtFlopsPerClock(device.sm, type, tf32) * device.multiprocessors * device.clock_khz * 1e-3;
  const double compute = flops / (rate * efficiency);
  const double per_microsecond = static_cast<double>(device.memory_bytes_per_second) * 0.85e-6;
  return kLtCallMicroseconds * calls + kLtPassMicroseconds * passes + std::max(compute, bytes / per_microsecond) +
         PassMicroseconds(device, pass_bytes);
}

}  // namespace kernd
