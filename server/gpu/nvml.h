// What the driver's management library says of a GPU beyond what CUDA does: the driver's own version, ECC, MIG, clocks.
// Opened at run time and never required: containers are often given the compute part of a driver alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace kernd::gpu {

// Of one GPU, now. Absent: the library or this GPU does not say.
struct NvmlReading {
  std::string driver_version;  // "580.65.06"; empty: not said
  std::optional<bool> ecc;     // in effect, whatever the next reboot changes
  std::optional<bool> mig;     // likewise
  std::optional<int> sm_clock_mhz, sm_clock_max_mhz;
  std::optional<int> memory_clock_mhz, memory_clock_max_mhz;
};

// Thread-safe.
class Nvml {
 public:
  // NOT_FOUND: no such library, or it lacks a function that the others need. UNAVAILABLE: it does not start; its words.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Of the GPU at `pci_bus_id` ("0000:1b:00.0"), which also finds the whole of a GPU of which CUDA sees an instance.
  NvmlReading Read(const std::string& pci_bus_id) const;

 private:
  struct Functions;
  Nvml(void* library, std::unique_ptr<Functions> functions);

  void* const library_;
  const std::unique_ptr<const Functions> functions_;
};

}  // namespace kernd::gpu
