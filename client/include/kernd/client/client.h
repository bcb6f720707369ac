// The client of kernd: matmul and attention on a daemon, from any thread.
//
//   auto client = kernd::client::Client::Connect({.endpoint = "127.0.0.1:50051"});
//   auto reply = client->Matmul({.a = View(a, {m, k}), .b = View(b, {k, n})});
//   if (!reply.ok()) { ... DetailsOf(reply.status()).reason ... }
//   std::span<const float> d = reply->d.values<float>();
//
// Large tensors go over several connections at once where that is faster (ClientOptions::transfer). Tensors that are
// used more than once can stay at the daemon: see session.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernd/client/attention.h"
#include "kernd/client/autotune.h"
#include "kernd/client/device.h"
#include "kernd/client/error.h"
#include "kernd/client/matmul.h"
#include "kernd/client/options.h"
#include "kernd/client/result.h"
#include "kernd/client/session.h"

namespace kernd::client {

// Thread-safe, but for moving. Calls block. Operands stay in the caller's memory and must stay there unchanged until
// the call has returned, whatever it returned; replies own their data.
//
// Errors of every call, with ErrorDetails:
//   INVALID_ARGUMENT     a rule is broken: field, value and rule are in the message; also found before sending
//   UNIMPLEMENTED        legal, but the daemon does not offer it
//   RESOURCE_EXHAUSTED   TOO_LARGE: can never fit (2 GiB is the most for a message); other reasons: not now
//   UNAVAILABLE          NOT_CONNECTED, or the daemon is starting or draining; came back after the retries
//   DEADLINE_EXCEEDED    the call's timeout has passed, retries included
//   CANCELLED            CallOptions.stop
//   INTERNAL             a kernel failed, or BAD_REPLY
class Client {
 public:
  // Does not wait for the daemon: the first call does, or AwaitConnection. INVALID_ARGUMENT names the option that is
  // wrong.
  static absl::StatusOr<Client> Connect(const ClientOptions& options);

  // Connects now, so that the first call need not: waits at most `timeout`. UNAVAILABLE where the daemon cannot be
  // reached at the moment, DEADLINE_EXCEEDED where it did not answer in time, both NOT_CONNECTED. Calls may be made
  // whatever this returned.
  absl::Status AwaitConnection(absl::Duration timeout) const;

  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;
  ~Client();

  absl::StatusOr<MatmulReply> Matmul(const MatmulArgs& args, const CallOptions& options = {}) const;
  absl::StatusOr<AttentionReply> Attention(const AttentionArgs& args, const CallOptions& options = {}) const;

  // What the call would run and cost. Reads no data: views without bytes will do.
  absl::StatusOr<PlanReply> Plan(const MatmulArgs& args, const CallOptions& options = {}) const;
  absl::StatusOr<PlanReply> Plan(const AttentionArgs& args, const CallOptions& options = {}) const;

  absl::StatusOr<Session> OpenSession(const SessionOptions& session = {}, const CallOptions& options = {}) const;
  // A session that was opened before, by its id and, so that a restart of the daemon can be told from an id that never
  // was, its epoch; 0: not known. Asks nobody: the first call does. lease() and quota_bytes() are 0.
  Session AttachSession(const std::string& id, std::uint64_t server_epoch = 0) const;

  absl::StatusOr<Capabilities> GetCapabilities(const CallOptions& options = {}) const;
  absl::StatusOr<std::vector<KernelInfo>> ListKernels(const CallOptions& options = {}) const;

  // Lets the daemon measure which kernels are the quickest, and choose them from then on, for all its clients. Blocks
  // until it has; `on_progress` is called on this thread with each thing that the daemon tells, and may be empty.
  // Stopping (CallOptions::stop) ends it, and what was found until then stays in effect. Without a timeout of its own
  // the call takes a minute more than the budget, and a day where there is none.
  //   FAILED_PRECONDITION  TUNING_OFF: the daemon's operator has not let clients tune
  //   RESOURCE_EXHAUSTED   TUNING_BUSY: another tuning is on
  absl::Status Autotune(const AutotuneArgs& args, const AutotuneCallback& on_progress,
                        const CallOptions& options = {}) const;

  // Of a service by its full name; "": of the daemon as a whole. NOT_FOUND for an unknown one.
  absl::StatusOr<HealthStatus> Health(std::string_view service = {}, const CallOptions& options = {}) const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Version of the library, "0.1.0".
std::string_view Version();

}  // namespace kernd::client
