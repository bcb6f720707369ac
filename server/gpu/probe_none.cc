#include "server/gpu/probe.h"

namespace kernd::gpu {

std::vector<std::string> Probe() {
  return {"no GPU: this build has no CUDA"};
}

}  // namespace kernd::gpu
