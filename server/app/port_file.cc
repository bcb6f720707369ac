#include "server/app/port_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace kernd {

absl::Status WritePortFile(const std::string& path, const std::string& text) {
  struct stat there {};
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return absl::UnavailableError("cannot write --port-file " + path + ": it is there and no regular file");
  }
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary) << text << std::flush;
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status =
        absl::UnavailableError("cannot write --port-file " + path + ": " + std::strerror(errno));
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace kernd
