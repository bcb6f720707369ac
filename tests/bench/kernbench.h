// What a backend gives to kernbench: a problem with operands of its own, ready to be run again and again.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernd/kernels/variant.h"

namespace kernd::bench {

class Runnable {
 public:
  virtual ~Runnable() = default;
  // The variant that runs.
  virtual std::string_view kernel() const = 0;
  // Runs once, from the choice of the variant to the last byte of the result. Seconds, by the backend's own clock.
  virtual absl::StatusOr<double> Run() = 0;
};

// A backend, or a peer on the same device: a library that kernels are compared with.
class Target {
 public:
  virtual ~Target() = default;
  virtual std::string_view name() const = 0;                        // "cpu"; "onednn-primitive"
  virtual std::string gpu() const { return ""; }                    // name of the GPU, for the report
  virtual std::string driver() const { return ""; }                 // its driver's version
  virtual std::vector<VariantInfo> Variants() const { return {}; }  // none: a peer
  // Operands are random: normal numbers; 8-bit integers fill their range. `request` may name a variant.
  // UNIMPLEMENTED: not by this target.
  virtual absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const MatmulProblem& problem,
                                                            const KernelRequest& request) = 0;
  virtual absl::StatusOr<std::unique_ptr<Runnable>> Prepare(const AttentionProblem& problem,
                                                            const KernelRequest& request) = 0;
};

// The CPU backend's kernels, each on at most `threads` threads, and oneDNN's primitives alone: F32, BF16 to F32, and
// I8 to I32, made once.
std::unique_ptr<Target> MakeCpuTarget(int threads);
std::unique_ptr<Target> MakeOnednnTarget(int threads);

// The GPU's kernels (the first device's), and cuBLASLt with the quickest of its candidates: "cublaslt-best".
//   UNIMPLEMENTED  a build without CUDA
//   FAILED_PRECONDITION, NOT_FOUND, INTERNAL  no device to be had: gpu::OpenDevice
absl::StatusOr<std::unique_ptr<Target>> MakeGpuTarget();
absl::StatusOr<std::unique_ptr<Target>> MakeCublasLtTarget();

}  // namespace kernd::bench
