// Tensors that stay on the daemon's device between calls.
//
//   auto session = client.OpenSession();
//   session->Put(1, View(weights, {k, n}));
//   auto reply = session->Matmul({.a = View(x, {m, k}), .b = ResidentTensor{1, DataType::kF32, {k, n}}});
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernd/client/attention.h"
#include "kernd/client/matmul.h"
#include "kernd/client/options.h"
#include "kernd/client/result.h"
#include "kernd/client/shared_buffer.h"

namespace kernd::client {

struct SessionOptions {
  absl::Duration lease = absl::ZeroDuration();  // a wish that the daemon caps; 0: its default. Each use renews it.
  std::int64_t quota_bytes = 0;                 // a wish that the daemon caps; 0: its default
  std::string label;                            // for the daemon's logs, at most 128 bytes
};

enum class TensorState : std::uint8_t { kUnspecified = 0, kFilling = 1, kReady = 2, kFailed = 3 };

// "READY", ...
std::string_view Name(TensorState state);

struct TensorInfo {
  std::uint64_t id = 0;
  DataType dtype = DataType::kUnspecified;
  std::vector<std::int64_t> shape;
  TensorState state = TensorState::kUnspecified;
  std::int64_t bytes = 0;
  std::string device;
  std::int64_t users = 0;  // calls that use it now
};

struct SessionContents {
  std::vector<TensorInfo> tensors;
  std::int64_t used_bytes = 0, quota_bytes = 0;
  absl::Duration lease_left = absl::ZeroDuration();
};

class SessionLink;

// A session: owns the tensors that were put into it. Thread-safe, but for moving. Calls block, and take operands and
// give results as those of Client do; the daemon that owns the session is dialled, whichever the client is connected
// to.
//
// Tensor ids are the caller's choice, below 2^63: above, the client keeps tensors of its own while a call needs them
// (ClientOptions::transfer).
//
// Errors beside those of Client:
//   NOT_FOUND            no such tensor; SESSION_NOT_FOUND or SERVER_RESTARTED: open another session
//   FAILED_PRECONDITION  the tensor is still being filled, or its upload has failed
//   RESOURCE_EXHAUSTED   quota of the session, or the memory for all of them
class Session {
 public:
  // Closes the session, unless Close or Release was called; without a daemon it ends with its lease.
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // Uploads `tensor` under `id`, in place of what was there; OK: it can be used. After a failure the id may hold
  // nothing, or an upload that nobody ends, which the daemon gives up after a minute.
  absl::Status Put(std::uint64_t id, const TensorView& tensor, const CallOptions& options = {}) const;

  // All of one version of the tensor, also while others replace it.
  absl::StatusOr<Tensor> Get(std::uint64_t id, const CallOptions& options = {}) const;
  // Fills `into` with the bytes of the tensor from byte `offset_bytes` on. OUT_OF_RANGE where it has not as many.
  absl::Status Get(std::uint64_t id, std::int64_t offset_bytes, std::span<std::byte> into,
                   const CallOptions& options = {}) const;

  // Ids are free at once; the memory of a tensor that a call uses follows when the call ends.
  absl::Status Delete(const std::vector<std::uint64_t>& ids, const CallOptions& options = {}) const;
  absl::StatusOr<SessionContents> List(const CallOptions& options = {}) const;

  // Memory that the daemon, on the same host, sees as well: tensors in it do not travel. It goes with the buffer.
  //   FAILED_PRECONDITION  SHARED_MEMORY_OFF: the daemon takes none
  //   UNAVAILABLE          NOT_CONNECTED: its socket is not on this host, or not for this user
  //   RESOURCE_EXHAUSTED   beyond the daemon's limit, or this machine's
  absl::StatusOr<SharedBuffer> Share(std::int64_t bytes, const CallOptions& options = {}) const;

  absl::StatusOr<MatmulReply> Matmul(const MatmulArgs& args, const CallOptions& options = {}) const;
  absl::StatusOr<AttentionReply> Attention(const AttentionArgs& args, const CallOptions& options = {}) const;

  // Frees all that the session holds. OK also where it is gone already. The handle may only be destroyed afterwards.
  absl::Status Close(const CallOptions& options = {});
  // Lets the session live on without this handle until its lease ends; Client::AttachSession takes it up again.
  void Release();

  const std::string& id() const;  // 16 random bytes: who has them owns the session
  std::uint64_t server_epoch() const;
  const std::string& endpoint() const;
  absl::Duration lease() const;
  std::int64_t quota_bytes() const;

 private:
  friend class Client;
  explicit Session(std::shared_ptr<const SessionLink> link);

  std::shared_ptr<const SessionLink> link_;
  bool open_ = true;
};

}  // namespace kernd::client
