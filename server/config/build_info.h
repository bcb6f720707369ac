// What this binary was built from.
#pragma once

#include <string>

namespace kernd::config {

struct BuildInfo {
  std::string version;       // "0.1.0"
  std::string revision;      // short commit id, or "unknown" outside a checkout
  std::string compiler;      // "GNU 12.2.0"
  std::string cuda_toolkit;  // "13.0.88", or "none"
};

const BuildInfo& GetBuildInfo();

// "kernd 0.1.0 (1a2b3c4, GNU 12.2.0, CUDA none)".
std::string VersionLine();

}  // namespace kernd::config
