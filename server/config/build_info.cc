#include "server/config/build_info.h"

#include "absl/strings/str_cat.h"

namespace kernd::config {

const BuildInfo& GetBuildInfo() {
  static const BuildInfo info = {.version = KERND_VERSION,
                                 .revision = KERND_REVISION,
                                 .compiler = KERND_COMPILER,
                                 .cuda_toolkit = KERND_CUDA_TOOLKIT};
  return info;
}

std::string VersionLine() {
  const BuildInfo& info = GetBuildInfo();
  return absl::StrCat("kernd ", info.version, " (", info.revision, ", ", info.compiler, ", CUDA ", info.cuda_toolkit,
                      ")");
}

}  // namespace kernd::config
