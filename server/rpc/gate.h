// The headers stage: who may send a body at all. Decided before a byte of it is read, so that a refusal costs nothing.
#pragma once

#include <grpcpp/server_context.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/core/byte_budget.h"
#include "server/core/engine.h"
#include "server/rpc/method_table.h"

namespace kernd::rpc {

// Metadata in which clients say how large their body is, or the largest message of their stream.
inline constexpr char kBodyBytesKey[] = "kernd-body-bytes";

class Gate {
 public:
  struct Options {
    std::int64_t body_budget = 0;         // bytes of request bodies in flight
    std::int64_t default_body_bytes = 0;  // charged to a call that does not say; at most max_message_bytes are
    std::int64_t max_message_bytes = 0;
  };

  // The engine must outlive the gate.
  Gate(const Options& options, const core::Engine& engine)
      : options_(options), engine_(engine), bodies_(options.body_budget) {}

  // Lets a call in, with a place for its body in `lease`.
  //   UNAVAILABLE (DRAINING; STARTING for compute methods)   retry_after is set
  //   DEADLINE_EXCEEDED                                      passed already
  //   INVALID_ARGUMENT                                       kernd-body-bytes is no number
  //   RESOURCE_EXHAUSTED (TOO_LARGE)                         declares more than a message may hold
  //   RESOURCE_EXHAUSTED (BODY_BUDGET_FULL)                  not now; retry_after is set
  absl::Status Enter(const Method& method, const grpc::ServerContext& context, absl::Time deadline,
                     core::ByteBudget::Lease& lease);

  // The body has arrived and is `bytes` long: charge that instead. RESOURCE_EXHAUSTED where it does not fit, now or
  // ever.
  absl::Status Settle(const Method& method, std::int64_t bytes, core::ByteBudget::Lease& lease);

  // From now on every call is refused with UNAVAILABLE (DRAINING).
  void Close() { closed_.store(true, std::memory_order_release); }

  const core::ByteBudget& bodies() const { return bodies_; }
  // What else holds host memory for clients takes its share of it.
  core::ByteBudget& bodies() { return bodies_; }

 private:
  // Only methods that compute, or say so, bring tensors.
  std::int64_t Limit(const Method& method) const {
    if (method.compute) return options_.max_message_bytes;
    return std::min(options_.max_message_bytes,
                    method.max_message_bytes > 0 ? method.max_message_bytes : kControlBytes);
  }

  static constexpr std::int64_t kControlBytes = 1 << 20;

  const Options options_;
  const core::Engine& engine_;
  core::ByteBudget bodies_;
  std::atomic<bool> closed_ = false;
};

}  // namespace kernd::rpc
