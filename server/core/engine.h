// The service without a network: validate, admit, queue, execute.
//
//   Submit --> plan (backend) --> admit (memory, places) --> queue --> worker --> backend --> Call::Finish
//                  |                   |                                             ^
//                  +-- refuse ---------+-- refuse       tiny calls skip the queue ---+
//
// Nothing here blocks the submitter, and every call is finished exactly once, whatever happens. All memory that a call
// holds is given back when its last reference goes, so whoever sends the results keeps the call until they are sent.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/backend.h"
#include "server/core/byte_budget.h"
#include "server/core/call.h"
#include "server/core/shape_list.h"
#include "server/core/work_queue.h"

namespace kernd::core {

class Engine {
 public:
  struct Options {
    std::int64_t memory_limit = 0;      // bytes that calls may hold together
    std::int64_t max_queued_calls = 0;  // calls admitted and not yet finished
    std::int64_t max_reply_bytes = 0;   // results of one call
  };

  struct Load {
    std::int64_t memory_used, memory_peak, memory_limit;
    std::int64_t calls, queued;
  };

  Engine(const Options& options, std::unique_ptr<Backend> backend);
  // Finishes what was admitted, then stops the workers.
  ~Engine();

  // Prewarms the backend, runs each declared shape once on every executor, and starts the workers. Calls are refused
  // with UNAVAILABLE until it has returned OK. A shape that cannot be run here (a plan's error, or memory) is told to
  // `refused` and is no failure; any other error of a kernel is.
  using Refused = std::function<void(const DeclaredShape& shape, const absl::Status& why)>;
  absl::Status Start(const Backend::Progress& progress, absl::Span<const DeclaredShape> declared = {},
                     const Refused& refused = {});

  // The plan of a program: variants, result shapes, exact bytes. Runs nothing. Thread-safe.
  //   INVALID_ARGUMENT, UNIMPLEMENTED  a rule of the operation, with field, value and rule
  //   RESOURCE_EXHAUSTED (TOO_LARGE)   could never fit: needed and limit in the metadata and, for a program of one
  //   step,
  //                                    largest_batch, largest_length or largest_rows that would (server/core/fit.h)
  absl::StatusOr<Plan> MakePlan(const Program& program) const;

  // Takes a call through all stages. `call->Finish` runs exactly once, perhaps before Submit returns. Besides
  // MakePlan's:
  //   UNAVAILABLE (STARTING)
  //   RESOURCE_EXHAUSTED (MEMORY_FULL, QUEUE_FULL)  not now; retry_after is set
  //   DEADLINE_EXCEEDED, CANCELLED                  noticed before it ran
  //   INTERNAL (KERNEL_FAILED)
  void Submit(CallPtr call);

  // The client has gone: a waiting call is finished now, a running one when its kernel ends.
  void Abandon(const CallPtr& call);

  bool ready() const { return ready_.load(std::memory_order_acquire); }
  const Backend& backend() const { return *backend_; }
  Backend& backend() { return *backend_; }
  Load load() const;
  // Of the device: reserved for calls, and for tensors of sessions.
  ByteBudget& memory() { return memory_; }
  const Options& options() const { return options_; }

 private:
  // `countable`: whether the bytes of the plan are less than 2^63.
  absl::StatusOr<Plan> PlanSteps(const Program& program, bool& countable) const;
  // The larger of memory and results over their limits.
  double Fullness(const Program& program) const;
  absl::Status TooLarge(const Program& program, std::string message, std::map<std::string, std::string> metadata) const;
  absl::Status Admit(Call& call);
  absl::Status WarmUp(const DeclaredShape& shape);
  void Work(int executor);

  const Options options_;
  const std::unique_ptr<Backend> backend_;
  ByteBudget memory_;
  ByteBudget places_;  // one "byte" a call
  WorkQueue queue_;
  std::atomic<bool> ready_ = false;
  std::atomic<std::uint64_t> next_sequence_ = 1;
  std::vector<std::thread> workers_;
};

}  // namespace kernd::core
