#include "client/cli/files/file.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

namespace kernd::cli {

InputFile::InputFile(std::string path, std::ifstream stream, std::int64_t size)
    : path_(std::move(path)), stream_(std::move(stream)), size_(size) {}

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError(path + ": no such file");
  if (!std::filesystem::is_regular_file(path, error)) return absl::InvalidArgumentError(path + ": not a regular file");
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream stream(path, std::ios::binary);
  if (error || !stream) return absl::PermissionDeniedError(path + ": cannot be read");
  return InputFile(path, std::move(stream), static_cast<std::int64_t>(size));
}

absl::Status InputFile::Read(std::int64_t offset, std::span<std::byte> out) {
  stream_.clear();
  stream_.seekg(offset);
  stream_.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  if (stream_) return absl::OkStatus();
  return absl::DataLossError(path_ + ": ends before byte " + std::to_string(offset + std::ssize(out)));
}

absl::Status InputFile::Malformed(const std::string& what) const {
  return absl::InvalidArgumentError(path_ + ": " + what);
}

absl::Status WriteFile(const std::string& path, const std::string& head, std::span<const std::byte> body) {
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(head.data(), static_cast<std::streamsize>(head.size()));
  stream.write(reinterpret_cast<const char*>(body.data()), static_cast<std::streamsize>(body.size()));
  stream.close();
  return stream ? absl::OkStatus() : absl::PermissionDeniedError(path + ": cannot be written");
}

absl::Status CheckWritable(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return absl::InvalidArgumentError(path + ": is a folder");
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!std::filesystem::is_directory(folder, error)) return absl::NotFoundError(path + ": no such folder");
  const bool there = std::filesystem::exists(path, error);
  const bool allowed = ::access(there ? path.c_str() : folder.c_str(), W_OK) == 0;
  return allowed ? absl::OkStatus() : absl::PermissionDeniedError(path + ": cannot be written");
}

}  // namespace kernd::cli
