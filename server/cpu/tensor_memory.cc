#include "server/cpu/tensor_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::cpu {
namespace {

// Above this, pages of its own, not the heap's: the heap keeps what it is given back, and a large tensor that is
// deleted must leave the machine as it was. Below, the heap's: a process may have 65,530 mappings, and sessions more
// tensors.
constexpr std::int64_t kOwnPages = std::int64_t{4} << 20;
constexpr std::size_t kAlignment = 64;

class HostTensor final : public core::TensorMemory {
 public:
  HostTensor(std::byte* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  ~HostTensor() override {
    if (bytes_ >= kOwnPages) {
      munmap(data_, static_cast<std::size_t>(bytes_));
    } else {
      std::free(data_);
    }
  }

  std::int64_t bytes() const override { return bytes_; }
  std::byte* data() const override { return data_; }

  absl::Status Write(std::int64_t offset, absl::Span<const absl::Span<const std::byte>> runs) override {
    for (const absl::Span<const std::byte> run : runs) {
      if (!run.empty()) std::memcpy(data_ + offset, run.data(), run.size());
      offset += static_cast<std::int64_t>(run.size());
    }
    return absl::OkStatus();
  }
  absl::Status Settle() override { return absl::OkStatus(); }
  absl::StatusOr<core::HostBuffer> Read(std::int64_t offset, std::int64_t bytes) override {
    return core::HostBuffer(bytes == 0 ? nullptr : data_ + offset, bytes, nullptr, nullptr);
  }

 private:
  std::byte* const data_;
  const std::int64_t bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<core::TensorMemory>> AllocateTensor(std::int64_t bytes) {
  if (bytes == 0) return std::make_unique<HostTensor>(nullptr, 0);
  const auto size = static_cast<std::size_t>(bytes);
  void* data = nullptr;
  if (bytes >= kOwnPages) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) data = nullptr;
  } else {
    data = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  }
  if (data == nullptr) {
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes, " bytes for the tensor; try again")),
        {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Milliseconds(50)});
  }
  if (bytes >= kOwnPages) madvise(data, size, MADV_HUGEPAGE);  // 512 times fewer faults; where there are none, no loss
  return std::make_unique<HostTensor>(static_cast<std::byte*>(data), bytes);
}

}  // namespace kernd::cpu
