#include "server/core/shared_region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::core {
namespace {

constexpr std::string_view kField = "size_bytes";

absl::Status OutOfRange(std::string_view field, std::int64_t offset, std::int64_t bytes, std::int64_t size) {
  return WithDetail(
      absl::OutOfRangeError(absl::StrCat(std::string(field), " is ", offset, ": ", bytes,
                                         " bytes from there are not inside the region of ", size, " bytes")),
      {.reason = std::string(reason::kOutOfRange), .field = std::string(field)});
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::Map(int fd, std::int64_t bytes) {
  if (bytes <= 0) return InvalidField(kField, absl::StrCat(bytes), "must be positive");
  // Huge pages are memory that may turn out not to be there, and other file systems anything at all.
  struct statfs system {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC || seals < 0) {
    return InvalidField("name", "another kind of file", "must be a memfd of ordinary pages");
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return InvalidField("name", "a memfd that may shrink", "must be sealed with F_SEAL_SHRINK");
  }
  // After the seal, so that it holds for good.
  struct stat file {};
  if (fstat(fd, &file) != 0 || file.st_size < bytes) {
    return InvalidField(kField, absl::StrCat(bytes), absl::StrCat("the memfd has ", file.st_size, " bytes"));
  }
  void* const data = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    if (error == EACCES || error == EPERM) {
      return InvalidField("name", "a memfd that cannot be written", "results are written into the region");
    }
    return WithDetail(absl::ResourceExhaustedError(
                          absl::StrCat("the region of ", bytes, " bytes cannot be mapped: ", std::strerror(error))),
                      {.reason = std::string(reason::kMemoryFull)});
  }
  madvise(data, static_cast<std::size_t>(bytes), MADV_DONTFORK);
  return std::shared_ptr<SharedRegion>(new SharedRegion(static_cast<std::byte*>(data), bytes));
}

SharedRegion::~SharedRegion() {
  registration_.reset();
  munmap(data_, static_cast<std::size_t>(bytes_));
}

absl::StatusOr<absl::Span<std::byte>> SharedRegion::Range(std::int64_t offset, std::int64_t bytes,
                                                          std::string_view field) const {
  if (offset < 0 || bytes < 0 || offset > bytes_ || bytes > bytes_ - offset) {
    return OutOfRange(field, offset, bytes, bytes_);
  }
  return absl::MakeSpan(data_ + offset, static_cast<std::size_t>(bytes));
}

}  // namespace kernd::core
