// Reading of whole files and parts of them, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kernd::cli {

class InputFile {
 public:
  // NOT_FOUND where there is no such file, INVALID_ARGUMENT where it is no regular one.
  static absl::StatusOr<InputFile> Open(const std::string& path);

  std::int64_t size() const { return size_; }
  // Fills `out` from byte `offset` on. DATA_LOSS where the file has not as many bytes or cannot be read.
  absl::Status Read(std::int64_t offset, std::span<std::byte> out);
  // INVALID_ARGUMENT: "<path>: <what>".
  absl::Status Malformed(const std::string& what) const;

 private:
  InputFile(std::string path, std::ifstream stream, std::int64_t size);

  std::string path_;
  std::ifstream stream_;
  std::int64_t size_;
};

// Writes `head`, then `body`, as the whole of the file, in place of what it held.
absl::Status WriteFile(const std::string& path, const std::string& head, std::span<const std::byte> body);

// Whether that may work, before there is anything to write: NOT_FOUND where the folder is none, PERMISSION_DENIED where
// this user may not write there, INVALID_ARGUMENT for a folder.
absl::Status CheckWritable(const std::string& path);

}  // namespace kernd::cli
