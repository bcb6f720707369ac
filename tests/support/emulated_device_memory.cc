// tests/support/device_memory.h for kernels in the emulator: the device is the host, and says that it is an H200.
#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/emulator/guarded_memory.h"
#include "tests/support/device_memory.h"

namespace kernd::testing {
namespace {

using emulator::GuardedMemory;

// What DeviceBuffer points into, by where it begins.
std::map<const std::byte*, GuardedMemory>& Allocations() {
  static auto& all = *new std::map<const std::byte*, GuardedMemory>;
  return all;
}

}  // namespace

std::optional<DeviceInfo> TestDevice(std::string*) {
  return DeviceInfo{.name = "emulated H200",
                    .sm = 90,
                    .multiprocessors = 132,
                    .shared_memory_optin = 227 << 10,
                    .l2_bytes = 60 << 20,
                    .memory_bytes = std::int64_t{140} << 30,
                    .memory_bytes_per_second = 4'800'000'000'000,
                    .clock_khz = 1'980'000};
}

DeviceBuffer::DeviceBuffer(std::int64_t bytes, std::byte fill) {
  GuardedMemory memory(bytes);
  data_ = allocation_ = static_cast<std::byte*>(memory.data());
  bytes_ = allocated_ = bytes;
  Allocations().emplace(data_, std::move(memory));
  if (fill != kPoison) Fill(fill);
}

DeviceBuffer::DeviceBuffer(const void* from, std::int64_t bytes) : DeviceBuffer(bytes) {
  Upload(0, from, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) Allocations().erase(data_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(allocation_, other.allocation_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(allocated_, other.allocated_);
  return *this;
}

void DeviceBuffer::Fill(std::byte value) {
  if (data_ != nullptr) std::fill_n(data_, bytes_, value);
}

void DeviceBuffer::Upload(std::int64_t at, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(data_ + at, from, static_cast<std::size_t>(bytes));
}

std::vector<std::byte> DeviceBuffer::Download() const {
  return {data_, data_ + bytes_};
}

void DeviceBuffer::ExpectGuardsIntact(const char* what) const {
  if (data_ != nullptr && !Allocations().at(data_).GuardsIntact()) ADD_FAILURE() << what << ": a guard was written";
}

void ExpectDeviceFine(const char*) {}

}  // namespace kernd::testing
