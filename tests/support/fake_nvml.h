// A library with NVML's functions for one made-up GPU, to be opened by name (kFakeNvml). What it answers is set here.
#pragma once

namespace kernd::testing {

inline constexpr char kFakeNvml[] = "libkernd_fake_nvml.so";
inline constexpr char kFakeNvmlPci[] = "0000:1b:00.0";

}  // namespace kernd::testing

// The code that each function returns; 0 is success. Not thread-safe.
extern "C" void kernd_fake_nvml_set(int init, int device, int details);
// Starts without a matching end.
extern "C" int kernd_fake_nvml_open();
