// What the tests of choosing a GPU's kernel share: a device, and problems in few words.
#pragma once

#include <cstdint>
#include <utility>

#include "kernd/kernels/gpu.h"

namespace kernd {

// As much of an H200 as choices of fake rows look at.
inline const DeviceInfo kDevice = [] {
  DeviceInfo device;
  device.sm = 90;
  device.multiprocessors = 132;
  device.clock_khz = 1'980'000;
  device.memory_bytes_per_second = 4'800'000'000'000;
  return device;
}();

inline TensorSpec Spec(DataType type, Dims shape, Dims strides = {}) {
  return {.dtype = type, .shape = std::move(shape), .strides = std::move(strides)};
}

inline MatmulProblem Plain(DataType type, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.a = Spec(type, {m, k}), .b = Spec(type, {k, n})};
}

}  // namespace kernd
