// One compute call from admission to its results.
//
// Who may touch what: the thread that has the call (the submitter until Submit, then a worker or the backend, then
// `done`) owns every field without a note. `Abandon` may come from any thread at any time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/byte_budget.h"
#include "server/core/finding.h"
#include "server/core/program.h"
#include "server/core/stage.h"
#include "server/core/tensor_memory.h"

namespace kernd::core {

class Call;
using CallPtr = std::shared_ptr<Call>;

class Call : public std::enable_shared_from_this<Call> {
 public:
  // `done` runs once, on any thread, when `status` and `results` are final. It must not block.
  using Done = std::function<void(Call&)>;

  Call(Program program, absl::Time deadline, int priority, Done done)
      : program(std::move(program)), deadline(deadline), priority(priority), done_(std::move(done)) {}

  // Ends the call. The first caller wins, later ones change nothing; results of a failed call are dropped.
  void Finish(absl::Status status);

  // The client has gone, or its deadline has passed: nobody waits for the results any more.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }

  // For kernels that run: set once nobody waits any more.
  const std::atomic<bool>& abandoned() const { return abandoned_; }

  // OK, or why computing would be in vain: CANCELLED, DEADLINE_EXCEEDED.
  absl::Status CheckWanted() const;

  // May be set: runs when the plan is known, before anything is reserved for the call. Its error ends the call.
  std::function<absl::Status(Call&)> on_planned;

  Program program;  // its operands' bytes are let go when the call finishes
  const absl::Time deadline;
  const int priority;  // higher first

  // Where result i, counted over all steps, is to stay; null: it goes into the reply.
  TensorMemory* KeptAt(std::size_t i) const { return i < kept.size() ? kept[i].get() : nullptr; }

  // The same, of memory that the client shares.
  std::byte* SharedAt(std::size_t i) const { return i < shared.size() ? shared[i] : nullptr; }

  Plan plan;
  StageTimes stages;
  std::int64_t copied_bytes = 0;    // of tensors, by the CPU, from one host buffer to another
  std::vector<Finding> findings;    // with --debug-checks
  std::vector<HostBuffer> results;  // in the order of the plan's results, step by step
  // In the same order, the memory of results that stay on the device, whose `results` are of no use; null for the
  // others. Empty: none stays.
  std::vector<std::shared_ptr<TensorMemory>> kept;
  // In the same order, where results are written that go into shared memory, which the program holds and has room for
  // them; null for the others. Empty: none does.
  std::vector<std::byte*> shared;
  absl::Status status;

 private:
  friend class Engine;
  Done done_;  // empty once it has run
  std::atomic<bool> abandoned_ = false;
  std::atomic<bool> finished_ = false;

  // The engine's: what the call holds until it is destroyed.
  ByteBudget::Lease memory_;
  ByteBudget::Lease place_;
  SteadyTime queued_at_;
  std::atomic<std::uint64_t> sequence_ = 0;  // in the queue; 0: never queued
};

}  // namespace kernd::core
