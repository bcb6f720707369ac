#include "tests/bench/kernbench.h"

namespace kernd::bench {

absl::StatusOr<std::unique_ptr<Target>> MakeGpuTarget() {
  return absl::UnimplementedError("this build has no CUDA");
}

absl::StatusOr<std::unique_ptr<Target>> MakeCublasLtTarget() {
  return MakeGpuTarget();
}

}  // namespace kernd::bench
