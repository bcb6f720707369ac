#include "server/cpu/tensor_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::cpu {
namespace {

// Pages of its own, not the heap's: the heap keeps what it is given back, and a tensor that is deleted must leave the
// machine as it was. They are whole pages, so they are aligned, and zeros until they are written.
class HostTensor final : public core::TensorMemory {
 public:
  HostTensor(std::byte* data, std::int64_t bytes) : data_(data), bytes_(bytes) {}
  ~HostTensor() override {
    if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
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
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return WithDetail(
        absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes, " bytes for the tensor; try again")),
        {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Milliseconds(50)});
  }
  madvise(data, size, MADV_HUGEPAGE);  // 512 times fewer faults; where the system has none, nothing is lost
  return std::make_unique<HostTensor>(static_cast<std::byte*>(data), bytes);
}

}  // namespace kernd::cpu
