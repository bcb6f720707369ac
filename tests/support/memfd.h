// Memory that can be shared by its descriptor.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace kernd::testing {

// A memfd of `bytes`, with `seals`. The caller closes it.
inline int MakeMemfd(std::int64_t bytes, int seals = F_SEAL_SHRINK) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, bytes) != 0 || fcntl(fd, F_ADD_SEALS, seals) != 0) std::abort();
  return fd;
}

}  // namespace kernd::testing
