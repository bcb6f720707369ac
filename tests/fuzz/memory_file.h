// A regular file that is in memory and has a path, for readers that want one.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {

class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes = {})
      : fd_(memfd_create("kernd-fuzz", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    Require(fd_ >= 0, "a file in memory can be made");
    Require(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "it takes its bytes");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

  std::string Read() const {
    std::string bytes(static_cast<std::size_t>(lseek(fd_, 0, SEEK_END)), '\0');
    Require(pread(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "it gives them back");
    return bytes;
  }

 private:
  int fd_;
  std::string path_;
};

}  // namespace kernd::fuzz
