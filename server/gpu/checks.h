// --debug-checks on the device: counts of elements that are no numbers, and guards around results. Both lie in the
// step's block, are staged with its operands and come back with its results.
#pragma once

#include <memory>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernd/kernels/dtype.h"
#include "server/core/call.h"
#include "server/gpu/driver.h"
#include "server/gpu/layout.h"

namespace kernd::gpu {

// EnqueueScan of kernd/kernels/gpu.h, or what stands for it in tests.
using Scan = absl::Status (*)(DataType type, const void* data, std::int64_t elements, std::uint64_t* counts,
                              const DeviceInfo& device, Stream stream);

// A tensor of a step, in its block.
struct CheckedTensor {
  const char* name;
  DataType type;
  std::int64_t elements, at;
};

// Of a step, where checks are on; the counts are in this order.
struct CheckedTensors {
  absl::InlinedVector<CheckedTensor, 6> operands;
  absl::InlinedVector<CheckedTensor, 2> results;
};

// One executor's.
class Checks {
 public:
  static absl::StatusOr<std::unique_ptr<Checks>> Create(Driver& driver, Scan scan);
  ~Checks();

  // What guards and counts hold before the kernel runs.
  static absl::Span<const std::byte> Guard(const DeviceLayout::Guard& guard);
  static absl::Span<const std::byte> Zeros();

  absl::Status ScanOperands(const CheckedTensors& tensors, const DeviceLayout& layout, std::byte* block, Stream stream);
  // After the kernel. Also brings counts and guards back.
  absl::Status ScanResults(const CheckedTensors& tensors, const DeviceLayout& layout, std::byte* block, Stream stream);
  // Once the stream has passed that: adds to the call's findings, each tensor's name behind `prefix`.
  // INTERNAL (KERNEL_FAILED): something wrote past a result.
  absl::Status Judge(const CheckedTensors& tensors, const DeviceLayout& layout, const std::string& prefix,
                     core::Call& call) const;

 private:
  Checks(Driver& driver, Scan scan) : driver_(driver), scan_(scan) {}

  Driver& driver_;
  const Scan scan_;
  std::byte* host_ = nullptr;  // page-locked: counts, then guards
};

}  // namespace kernd::gpu
