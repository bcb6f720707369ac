#include "server/tune/tuning_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::tune {
namespace {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

absl::Status SystemError(const std::string& what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write " + path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return fsync(fd) == 0 ? absl::OkStatus() : SystemError("cannot write " + path);
}

// So that the name's new meaning outlives a crash too. Some file systems have no way to ask for that.
void SyncFolder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const File file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.fd() >= 0) (void)fsync(file.fd());
}

// Who may write the file chooses what the daemon runs. A group may: a volume that is mounted for one gives it that.
absl::Status CheckOwner(const struct stat& status, const std::string& path) {
  const bool ours = status.st_uid == geteuid() || status.st_uid == 0;
  if (ours && (status.st_mode & S_IWOTH) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path, ours ? " may be written by everybody" : absl::StrCat(" belongs to user ", status.st_uid),
                   ": it must belong to the daemon's user or to root, and nobody else may write to it"));
}

}  // namespace

absl::StatusOr<TunedChoices> ReadTuningFile(const std::string& path, const TuningVersion& version) {
  // Without O_NONBLOCK a pipe would hold the start until somebody writes to it.
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.fd() < 0) {
    return errno == ENOENT ? absl::NotFoundError(path + " is not there") : SystemError("cannot open " + path);
  }
  struct stat status {};
  if (fstat(file.fd(), &status) != 0) return SystemError("cannot read " + path);
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError(path + " is no regular file");
  KERND_RETURN_IF_ERROR(CheckOwner(status, path));
  std::string text(kMaxTuningBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.fd(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("cannot read " + path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  absl::StatusOr<TunedChoices> choices = ParseTuningText(text, version);
  if (choices.ok()) return choices;
  return absl::Status(choices.status().code(), absl::StrCat(path, ": ", choices.status().message()));
}

absl::Status WriteTuningFile(const std::string& path, const TuningVersion& version, const TunedChoices& choices) {
  const std::string text = TuningText(version, choices);
  if (const absl::Status readable = ParseTuningText(text, version).status(); !readable.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("these choices cannot be kept: ", readable.message()));
  }
  // Two daemons may share a path. What one left behind when it crashed goes first.
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  unlink(temporary.c_str());
  absl::Status status;
  {
    const File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.fd() < 0) return SystemError("cannot write " + temporary);
    status = WriteAll(file.fd(), text, temporary);
  }
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) status = SystemError("cannot replace " + path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  SyncFolder(path);
  return absl::OkStatus();
}

}  // namespace kernd::tune
