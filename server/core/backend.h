// The seam between the service and a kind of device. The CPU and, where a toolkit is, CUDA stand behind it.
//
// A backend does two things. As a planner it turns a step into an exact plan, without side effects. As an executor it
// runs batches of admitted calls: the engine's workers hand it one batch each, it may return before the work is done,
// and it finishes every call exactly once, from any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/core/call.h"
#include "server/core/program.h"
#include "server/core/tensor_memory.h"
#include "server/core/tuned_table.h"

namespace kernd::core {

struct DeviceDescription {
  enum class Tier { kUnsupported, kBasic, kFull, kAdvanced, kCpu };
  std::string uuid;
  std::string name;
  Tier tier = Tier::kCpu;
  std::string compute_capability;  // GPU only
  int processors = 0;              // SMs, or threads that kernels may use
  std::int64_t memory_total = 0;   // bytes
  std::vector<std::string> hardware_has, build_has, kernels_use;
  // GPU only.
  std::string pci, driver, runtime;
  std::string driver_version;    // the driver's own; empty: not known
  std::optional<bool> ecc, mig;  // absent: not known, as below
  std::optional<int> sm_clock_mhz, sm_clock_max_mhz, memory_clock_mhz, memory_clock_max_mhz;
  std::int64_t shared_memory_per_block = 0, l2 = 0;  // bytes
};

// Memory that a backend keeps for calls, beside the engine's reservations.
struct PoolUse {
  std::string pool;           // "device", "pinned"
  std::int64_t used = 0;      // bytes in use
  std::int64_t peak = 0;      // most that ever was
  std::int64_t reserved = 0;  // bytes held, used or not
  std::int64_t limit = 0;
};

struct DtypeSupport {
  OpKind op = OpKind::kMatmul;
  DataType dtype = DataType::kInvalid;
  std::string why_not;  // empty: supported
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "cpu", "cuda"
  // The device that PlanStep plans for.
  virtual std::string_view device_id() const = 0;
  virtual std::vector<DeviceDescription> Devices() const = 0;
  virtual std::vector<VariantInfo> Variants() const = 0;
  virtual std::vector<DtypeSupport> Support() const = 0;

  // Validates, chooses the variant and gives the exact bytes. Pure and thread-safe; reads no operand's bytes.
  // INVALID_ARGUMENT or UNIMPLEMENTED with field, value and rule.
  virtual absl::StatusOr<StepPlan> PlanStep(const Step& step) const = 0;

  // Choices that were measured: PlanStep takes them where they run and the step lets it (kernd/kernels/tuning.h).
  TunedTable& tuned() { return tuned_; }
  const TunedTable& tuned() const { return tuned_; }
  // What such choices hold for here, with a build of this name.
  virtual TuningVersion TuningVersionFor(std::string_view build) const {
    return Printable(TuningVersion{.device = std::string(device_id()), .build = std::string(build)});
  }

  // Loads and runs once whatever the first call would otherwise wait for. `progress` is called now and then.
  using Progress = std::function<void(int done, int total, std::string_view what)>;
  virtual absl::Status Prewarm(const Progress& progress) = 0;

  // Batches that may be handed over at once: the number of the engine's workers.
  virtual int Executors() const = 0;

  // True where running the plan costs less than waking a worker: it then runs on the thread that brought the call, by
  // ExecuteInline, beside the workers' batches.
  virtual bool RunsInline(const Plan& plan) const = 0;
  virtual void ExecuteInline(Call& call) = 0;

  // Runs the calls of one batch and finishes each. Called by one worker at a time per `executor` in [0, Executors()).
  virtual void Execute(int executor, absl::Span<const CallPtr> batch) = 0;

  // Gives memory that is cached but unused back to the system. Bytes freed.
  virtual std::int64_t Trim() = 0;

  virtual std::vector<PoolUse> Pools() const { return {}; }

  // Of the first element of a resident operand that kernels read in place; a power of two. Others are copied first.
  virtual std::int64_t OperandAlignment() const { return 1; }

  // Whether kernels read and write memory of the host: shared regions are then used as they are, else copied from and
  // to.
  virtual bool UsesHostMemory() const { return true; }
  // Makes memory of the host such that the device copies from and to it by itself, until what is returned has gone,
  // which must be before the memory goes. Null where there is nothing to be made. Thread-safe.
  //   RESOURCE_EXHAUSTED (MEMORY_FULL)  the system lets no more be page-locked
  virtual absl::StatusOr<std::shared_ptr<void>> RegisterHost(absl::Span<std::byte> /*memory*/) {
    return std::shared_ptr<void>();
  }

  // Memory for a tensor that outlives calls, all of which must go before the backend does. Thread-safe.
  //   RESOURCE_EXHAUSTED (MEMORY_FULL)  none to be had; retry_after is set
  virtual absl::StatusOr<std::unique_ptr<TensorMemory>> AllocateTensor(std::int64_t /*bytes*/) {
    return absl::UnimplementedError("this backend keeps no tensors");
  }

 private:
  TunedTable tuned_;
};

}  // namespace kernd::core
