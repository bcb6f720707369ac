// Runs calls on one stream of the device, one at a time:
//
//   operands --memcpy--> pinned chunks --h2d--> block --kernel--> block --d2h--> pinned results --> the reply's slices
//
// Memory that a client shares, and that is registered with the driver, needs no chunks and no pinned results: it is
// copied from and to as it is. A chunk starts its copy when it is full, so a large operand is on its way while the rest
// is still being staged. Calls overlap through the executors: one's copies run beside another's kernel, as each has a
// stream of its own and the device has copy engines of its own. A second stream inside an executor would buy nothing: a
// call's own stages depend on each other.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/call.h"
#include "server/gpu/device_pool.h"
#include "server/gpu/driver.h"
#include "server/gpu/pinned_pool.h"
#include "server/gpu/prepared.h"

namespace kernd::gpu {

// What the executors of a device share. Outlives them.
struct ExecutorEnvironment {
  Driver& driver;
  DevicePool& memory;
  PinnedPool& pinned;
  // How long a finished kernel is looked for before the thread sleeps: waking costs tens of microseconds.
  absl::Duration spin;
  std::int64_t chunk_bytes;  // of staging; each executor has kChunks
  Scan scan = nullptr;       // set: every step is planned with guards and counts, and checked
};

class Executor {
 public:
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const ExecutorEnvironment& environment);
  ~Executor();

  // Runs the call's steps, filling `results` and `stages`. On the calling thread; one call at a time.
  //   CANCELLED, DEADLINE_EXCEEDED       nobody waits any more
  //   RESOURCE_EXHAUSTED (MEMORY_FULL)   the device or the system has none
  //   INTERNAL (KERNEL_FAILED)           CUDA's words
  // Whatever it returns, the stream is idle and no memory of the call is in use.
  absl::Status Run(core::Call& call);

 private:
  static constexpr int kChunks = 3;

  struct Piece {
    std::int64_t at;  // in the block
    absl::Span<const std::byte> bytes;
  };

  explicit Executor(const ExecutorEnvironment& environment) : env_(environment) {}
  absl::Status RunStep(core::MatmulStep& step, const core::StepPlan& plan, core::Call& call);
  absl::Status RunStep(core::AttentionStep& step, const core::StepPlan& plan, core::Call& call);
  // Where the tensors of a step are on the device, in the layout's order; null where there is none.
  struct Pointers {
    std::array<const std::byte*, 6> operands = {};
    std::array<std::byte*, 2> results = {};
    std::byte* block = nullptr;
  };
  static Pointers PointersOf(const DeviceLayout& layout, absl::Span<core::Operand* const> operands,
                             const core::StepPlan& plan, const core::Call& call, std::byte* block);
  // Everything around the kernel. `operands` in the layout's order; what came with the call is let go once it is
  // staged. `launch` is given the pointers.
  template <typename Launch>
  absl::Status Around(const Prepared& prepared, absl::Span<core::Operand* const> operands,
                      absl::Span<const std::byte> tables, const core::StepPlan& plan, core::Call& call, Launch launch);
  // Enqueues slice after slice, two at a time, for as long as somebody waits for the call.
  template <typename Launch>
  absl::Status InSlices(std::size_t count, const core::Call& call, Launch launch);
  static std::vector<Piece> PiecesOf(const DeviceLayout& layout, absl::Span<core::Operand* const> operands,
                                     absl::Span<const std::byte> tables);
  absl::Status StageIn(std::byte* block, absl::Span<const Piece> pieces, core::Call& call);
  absl::Status AwaitEnd();

  const ExecutorEnvironment env_;
  Stream stream_ = nullptr;
  Event begin_ = nullptr, copied_in_ = nullptr, computed_ = nullptr, ended_ = nullptr;
  std::byte* staging_ = nullptr;  // kChunks chunks
  std::array<Event, kChunks> chunk_free_ = {};
  std::array<Event, 2> slice_done_ = {};
  std::unique_ptr<Checks> checks_;  // null: off
};

}  // namespace kernd::gpu
