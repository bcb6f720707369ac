// grpc.health.v1.Health. Own, because gRPC's built-in one runs on the callback API (which sleeps when idle) and keeps
// its watches open at shutdown, so that every drain would last its whole deadline.
#pragma once

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace kernd::rpc {

// Who is asked about: "" and the services of kernd.v1 are ready when the engine is; "liveness" is SERVING from the
// first moment to the last.
class Health {
 public:
  using Status = grpc::health::v1::HealthCheckResponse::ServingStatus;

  Health();
  ~Health();

  // Of everything but "liveness". Watchers are told of a change.
  void SetServing(bool serving) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends every watch with UNAVAILABLE, and new ones after their first answer.
  void EndWatches() ABSL_LOCKS_EXCLUDED(mutex_);

  // Checks and watches that have arrived and are not over.
  int active() const { return active_.load(std::memory_order_acquire); }

  // The gRPC service to register; then Listen on each queue once the server runs.
  grpc::Service* service();
  void Listen(grpc::ServerCompletionQueue* queue);

 private:
  class CheckCall;
  class WatchCall;
  struct Service;

  Status StatusOf(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Registers a watcher and gives the status it starts with.
  Status AddWatch(const std::shared_ptr<WatchCall>& watch, const std::string& name, bool& ending)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveWatch(const std::shared_ptr<WatchCall>& watch) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<Service> service_;
  std::atomic<int> active_ = 0;
  mutable absl::Mutex mutex_;
  bool serving_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::shared_ptr<WatchCall>, std::string> watches_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kernd::rpc
