#include "tests/support/device_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

namespace kernd::testing {
namespace {

constexpr std::int64_t kGuard = 1024;  // a multiple of kDeviceAlignment

std::int64_t GuardBytes() {
  static const bool exact = std::getenv("KERND_EXACT_BUFFERS") != nullptr;
  return exact ? 0 : kGuard;
}

bool Succeeded(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  ADD_FAILURE() << call << ": " << cudaGetErrorName(error) << " (" << cudaGetErrorString(error) << ")";
  return false;
}

int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  Succeeded(cudaDeviceGetAttribute(&value, attribute, 0), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

std::optional<DeviceInfo> TestDevice(std::string* why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    *why = error == cudaSuccess ? "no CUDA device" : cudaGetErrorString(error);
    (void)cudaGetLastError();
    return std::nullopt;
  }
  static const DeviceInfo device = [] {
    cudaDeviceProp properties{};
    Succeeded(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    DeviceInfo info;
    info.name = properties.name;
    info.sm = properties.major * 10 + properties.minor;
    info.multiprocessors = properties.multiProcessorCount;
    info.shared_memory_optin = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
    info.l2_bytes = properties.l2CacheSize;
    info.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    info.clock_khz = Attribute(cudaDevAttrClockRate);
    // Two transfers a clock, in kHz and bits.
    info.memory_bytes_per_second =
        std::int64_t{2000} * Attribute(cudaDevAttrMemoryClockRate) * (properties.memoryBusWidth / 8);
    Succeeded(cudaDriverGetVersion(&info.driver_version), "cudaDriverGetVersion");
    Succeeded(cudaRuntimeGetVersion(&info.runtime_version), "cudaRuntimeGetVersion");
    return info;
  }();
  return device;
}

DeviceBuffer::DeviceBuffer(std::int64_t bytes, std::byte fill) {
  const std::int64_t guard = GuardBytes();
  void* memory = nullptr;
  const std::int64_t total = std::max<std::int64_t>(bytes + 2 * guard, 1);
  if (!Succeeded(cudaMalloc(&memory, static_cast<std::size_t>(total)), "cudaMalloc")) return;
  allocation_ = static_cast<std::byte*>(memory);
  allocated_ = total;
  data_ = allocation_ + guard;
  bytes_ = bytes;
  if (guard > 0) {
    Succeeded(cudaMemset(allocation_, static_cast<int>(kPoison), static_cast<std::size_t>(total)), "cudaMemset");
  }
  // Without guards, and asked for poison, memory stays unset as far as initcheck knows: only Fill and copies set it.
  if (guard == 0 && fill == kPoison) return;
  Fill(fill);
}

DeviceBuffer::DeviceBuffer(const void* from, std::int64_t bytes) : DeviceBuffer(bytes) {
  Upload(0, from, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  if (allocation_ != nullptr) Succeeded(cudaFree(allocation_), "cudaFree");
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(allocation_, other.allocation_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(allocated_, other.allocated_);
  return *this;
}

void DeviceBuffer::Fill(std::byte value) {
  if (data_ == nullptr || bytes_ == 0) return;
  Succeeded(cudaMemset(data_, static_cast<int>(value), static_cast<std::size_t>(bytes_)), "cudaMemset");
  ExpectDeviceFine("cudaMemset");
}

void DeviceBuffer::Upload(std::int64_t at, const void* from, std::int64_t bytes) {
  if (data_ == nullptr || bytes == 0) return;
  Succeeded(cudaMemcpy(data_ + at, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "cudaMemcpy");
}

std::vector<std::byte> DeviceBuffer::Download() const {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes_));
  if (data_ == nullptr || bytes_ == 0) return out;
  Succeeded(cudaMemcpy(out.data(), data_, out.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return out;
}

void DeviceBuffer::ExpectGuardsIntact(const char* what) const {
  if (allocation_ == nullptr || data_ == allocation_) return;
  std::vector<std::byte> all(static_cast<std::size_t>(allocated_));
  if (!Succeeded(cudaMemcpy(all.data(), allocation_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy")) return;
  const std::int64_t begin = data_ - allocation_;
  for (std::int64_t i = 0; i < allocated_; ++i) {
    if (i == begin) i += bytes_;
    if (i >= allocated_) break;
    if (all[static_cast<std::size_t>(i)] == kPoison) continue;
    ADD_FAILURE() << what << ": byte " << i - begin << " of " << bytes_ << " was written";
    return;
  }
}

void ExpectDeviceFine(const char* what) {
  Succeeded(cudaDeviceSynchronize(), what);
}

}  // namespace kernd::testing
