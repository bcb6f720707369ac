// GPU kernels as values. A variant is one row of a table: what it is called, what it needs, and four verbs. Everything
// here is host code without CUDA's headers; the `.cu` files stand in kernels/gpu.
//
//   choose   a pure function from problem and device to a row
//   plan     WorkspaceBytes, exact, before anything is allocated
//   load     once for each device: modules, shared-memory limits, handles
//   launch   enqueues on a stream and returns
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernd/kernels/variant.h"

struct CUstream_st;

namespace kernd {

// cudaStream_t, without its header.
using Stream = CUstream_st*;

// Every buffer that a GPU kernel gets starts at a multiple of this.
inline constexpr std::int64_t kDeviceAlignment = 256;

// What a device is, read from it once. Limits come from the device, never from a table of names.
struct DeviceInfo {
  int ordinal = 0;
  std::string uuid;  // "GPU-8f7a...": the driver's own name for it
  std::string name, pci;
  int sm = 0;  // compute capability, major * 10 + minor
  int multiprocessors = 0;
  std::int64_t shared_memory_optin = 0;  // bytes a block may ask for
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t memory_bytes_per_second = 0;  // theoretical
  int clock_khz = 0;                         // highest of the multiprocessors
  bool ecc = false, integrated = false;
  int driver_version = 0, runtime_version = 0;  // 13000 is 13.0
  int cublaslt_version = 0;                     // as the library counts; 0: none
};

// The small arrays of an attention problem, on the device.
struct AttentionTables {
  const AttentionSequence* sequences = nullptr;                            // [B]
  const float* alibi_slopes = nullptr;                                     // [Hq], or null
  const float* sinks = nullptr;                                            // [Hq], or null
  const float *q_scale = nullptr, *k_scale = nullptr, *v_scale = nullptr;  // [B, Hkv], or null
};

// Packs those arrays into one buffer, so that one copy brings them to the device.
class AttentionTableLayout {
 public:
  AttentionTableLayout(const AttentionProblem& problem, const AttentionGeometry& geometry);
  std::int64_t bytes() const { return bytes_; }  // a multiple of kDeviceAlignment
  // Writes the whole buffer; `to` holds bytes().
  void Write(const AttentionProblem& problem, const AttentionGeometry& geometry, std::byte* to) const;
  // Where the arrays are in a copy of the buffer that starts at `base`, aligned to kDeviceAlignment.
  AttentionTables At(const std::byte* base) const;

 private:
  std::int64_t sequences_ = 0, slopes_ = -1, sinks_ = -1, q_scale_ = -1, k_scale_ = -1, v_scale_ = -1;  // offsets
  std::int64_t bytes_ = 0;
};

struct AttentionVariant {
  VariantInfo info;
  int min_sm = 0;
  // Why it does not run a validated problem on the device ("head_dim is 512: at most 256"); empty: it does.
  std::string (*why_not)(const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&);
  // Rough time in microseconds, to choose by. Only for problems that it runs.
  double (*estimate)(const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&);
  // Exact bytes beside operands, tables and results; a multiple of kDeviceAlignment. Negative: past 2^63.
  std::int64_t (*workspace_bytes)(const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&);
  // Idempotent. Errors: INTERNAL with CUDA's words.
  absl::Status (*load)(const DeviceInfo&);
  // Enqueues everything on `stream`; O (and LSE) are whole when the stream gets there. Nothing is launched for empty
  // results. INTERNAL: CUDA refused.
  // The geometry may be a slice of the problem's: some of its sequences, or some kv heads of one (server/gpu/slices.h).
  // So lengths, strides and numbers of heads are read from it alone, packed sequences need not begin at row 0, and
  // mask, bias, LSE and tables start at a multiple of their elements only.
  absl::Status (*launch)(const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&, const AttentionArgs&,
                         const AttentionTables&, void* workspace, Stream stream);
};

struct MatmulVariant {
  VariantInfo info;
  int min_sm = 0;
  std::string (*why_not)(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&);
  double (*estimate)(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&);
  std::int64_t (*workspace_bytes)(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&);
  absl::Status (*load)(const DeviceInfo&);
  absl::Status (*launch)(const MatmulProblem&, const MatmulGeometry&, const DeviceInfo&, const MatmulArgs&,
                         void* workspace, Stream stream);
};

// For --debug-checks. Adds to counts[0] the NaN and to counts[1] the infinities among `elements` at `data`; both on the
// device, aligned as a buffer is. Enqueued. INTERNAL: CUDA refused.
absl::Status EnqueueScan(DataType type, const void* data, std::int64_t elements, std::uint64_t* counts,
                         const DeviceInfo& device, Stream stream);

// Of the cuBLASLt that variants use, as the library counts; 0: there is none. Opens it on the first call.
int CublasLtVersion();

// All variants of the build, whatever the device.
absl::Span<const AttentionVariant> AttentionVariants();
absl::Span<const MatmulVariant> MatmulVariants();

template <typename Variant>
struct Choice {
  const Variant* variant = nullptr;
  ChoiceReason reason = ChoiceReason::kModel;
};

struct TunedChoice;
using TunedChoices = std::map<std::string, TunedChoice, std::less<>>;  // kernd/kernels/tuning.h

// Of a table of variants, the one for a validated problem: the one asked for, or the one that `tuned` has for it, if it
// still runs there, or the quickest by its own estimate; ties go to the first. A problem that is to be batch-invariant
// is not looked up, as its variant must not depend on M. Pure.
//   INVALID_ARGUMENT  "<op>.kernel.name" or "<op>.kernel.tile" names none, or one that cannot run this problem
//   UNIMPLEMENTED     no variant of the build runs it on this device: the reason of each
absl::StatusOr<Choice<AttentionVariant>> Choose(absl::Span<const AttentionVariant> variants,
                                                const AttentionProblem& problem, const AttentionGeometry& geometry,
                                                const KernelRequest& request, const DeviceInfo& device,
                                                const TunedChoices* tuned = nullptr);
absl::StatusOr<Choice<MatmulVariant>> Choose(absl::Span<const MatmulVariant> variants, const MatmulProblem& problem,
                                             const MatmulGeometry& geometry, const KernelRequest& request,
                                             const DeviceInfo& device, const TunedChoices* tuned = nullptr);

}  // namespace kernd
