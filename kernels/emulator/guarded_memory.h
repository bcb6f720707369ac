// Device memory for emulated kernels: a buffer ends, to within 15 bytes, where a page begins that nobody may touch, and
// begins behind another one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kernd::emulator {

// Bytes aligned to 16. All of them 0xff at first, NaN in every floating type, like the bytes around them; but 0, and
// not yet in memory, where there is more than a GiB.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  explicit GuardedMemory(std::int64_t bytes);
  GuardedMemory(const void* from, std::int64_t bytes);
  ~GuardedMemory();
  GuardedMemory(GuardedMemory&& other) noexcept { *this = std::move(other); }
  GuardedMemory& operator=(GuardedMemory&& other) noexcept;

  void* data() const { return data_; }  // not null for 0 bytes
  std::int64_t bytes() const { return bytes_; }
  std::vector<std::byte> Copy() const { return {data_, data_ + bytes_}; }
  // Whether no byte between the buffer and its guard pages was written.
  bool GuardsIntact() const;

 private:
  std::byte* mapping_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0, mapped_ = 0;
  std::byte fill_{0xff};
};

}  // namespace kernd::emulator
