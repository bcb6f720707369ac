// Ends calls whose client makes no progress: one that sends headers and no body, or reads nothing of its reply. gRPC
// itself waits for ever, and what such a call holds is missing to others.
#pragma once

#include <grpcpp/server_context.h>

#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/stage.h"

namespace kernd::rpc {

// Thread-safe. Looks at its calls about twice a second.
class Watchdog {
 public:
  Watchdog();
  ~Watchdog();

  // Cancels the call of `context` unless Forget, or another Expect, comes within this time. `context` must live until
  // Forget.
  void Expect(grpc::ServerContext* context, absl::Duration within) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(grpc::ServerContext* context) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::unordered_map<grpc::ServerContext*, core::SteadyTime> due_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace kernd::rpc
