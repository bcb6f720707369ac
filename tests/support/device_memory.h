// Device memory for kernel tests: every buffer lies between guards, and nothing in it is ever left to chance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernd/kernels/gpu.h"
#include "tests/support/operand.h"

namespace kernd::testing {

// All bytes 0xff: NaN in every floating type, "visible" in a mask, -1 in integers.
inline constexpr std::byte kPoison{0xff};

// The first device, as its own driver describes it; nothing where there is none (then `why` says so, for GTEST_SKIP).
// Tests use it and no other device.
std::optional<DeviceInfo> TestDevice(std::string* why);

// Bytes on the device, aligned to kDeviceAlignment, between guards of poison. Every call waits for the device. A CUDA
// error fails the test at hand (ADD_FAILURE) and leaves the buffer as it was.
//
// With KERND_EXACT_BUFFERS set in the environment there are no guards, and each buffer is an allocation of exactly its
// size: then memcheck sees the first byte read or written past its end.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::int64_t bytes, std::byte fill = kPoison);
  // A copy of `bytes` bytes at `from`, on the host.
  DeviceBuffer(const void* from, std::int64_t bytes);
  // The operand with its gaps.
  explicit DeviceBuffer(const Operand& operand) : DeviceBuffer(operand.data(), operand.bytes()) {}
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  // Never null in a buffer that was made with a size, 0 included.
  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

  void Fill(std::byte value);
  void Upload(std::int64_t at, const void* from, std::int64_t bytes);
  std::vector<std::byte> Download() const;
  // Fails the test, naming `what`, unless the guards still hold poison.
  void ExpectGuardsIntact(const char* what) const;

 private:
  std::byte* allocation_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0, allocated_ = 0;
};

// Waits for the device. Fails the test with `what` if something enqueued before has failed.
void ExpectDeviceFine(const char* what);

}  // namespace kernd::testing
