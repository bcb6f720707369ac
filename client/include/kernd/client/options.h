// How the client connects, waits and tries again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/time/time.h"

namespace kernd::client {

// What to do when the daemon cannot be reached, or answers UNAVAILABLE (starting, draining). Every RPC of the client
// may be repeated safely: it computes from its own operands alone, and an upload carries a number by which the daemon
// knows what it has already.
struct RetryPolicy {
  int max_attempts = 4;  // in all; 1: never again
  // Wait before attempt n + 1: initial_backoff * multiplier^(n - 1), at most max_backoff, give or take `jitter` of it.
  // Where the daemon says when to come back, it is that, and up to `jitter` more. Before the last attempt at least a
  // second where a connection got lost, rather than refused: a packet dropped by a busy machine comes again after as
  // long. A wait that would pass the deadline is not begun: the error comes back at once.
  absl::Duration initial_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  double multiplier = 2.0;  // at least 1
  double jitter = 0.2;      // 0 to 1
  // Also on RESOURCE_EXHAUSTED where the daemon says when to come back. Off: a full daemon is a fact that callers may
  // want to act upon, and tensors are dear to send in vain.
  bool on_resource_exhausted = false;
};

// How tensors of the caller's memory travel.
enum class Transfer : std::uint8_t {
  // Striped where it pays (ClientOptions::stripe_threshold_bytes) and the daemon lets tensors be resident, else inline.
  kAuto,
  kInline,   // in the request and the reply, on one connection
  kStriped,  // over several connections at once, from 4 KiB on; an error where the daemon does not let them
};

struct ClientOptions {
  // "host:port", "unix:/path", "unix-abstract:name", or any other gRPC target. Plain text: there is no TLS.
  std::string endpoint = "127.0.0.1:50051";
  // Of each call, retries included, unless the call says otherwise. Positive.
  absl::Duration timeout = absl::Seconds(60);
  RetryPolicy retry;
  // Connections, used in turn: one connection moves 1 to 3 GB/s, as one core serves it. 1 to 64.
  int channels = 1;
  // A TCP connection whose peer takes nothing of what it was sent for so long is given up (TCP_USER_TIMEOUT). Calls
  // hold the operands until then: this is how much later than its deadline a call may return, in that case alone. From
  // 1 ms to 1 h.
  absl::Duration stall_timeout = absl::Seconds(10);

  // Striped, a tensor goes in chunks of 1 MiB over `stripe_channels` connections (made when first needed, 1 to 64) into
  // a session that the client keeps for itself, and is deleted there when the call is over; results come back likewise.
  Transfer transfer = Transfer::kAuto;
  int stripe_channels = 8;
  // kAuto: so many bytes of operands and results together are striped. A session's Put and Get use one connection below
  // it. Not negative. The default is where the two ways took equal time over the loopback of a machine with two cores
  // (client/README.md); with more cores it lies lower: kernctl bench --place inline and striped say where.
  std::int64_t stripe_threshold_bytes = std::int64_t{16} << 20;

  // Where the daemon takes shared memory, for Session::Share; empty: where it says. Differs in containers of their own,
  // whose mounts give the socket another path.
  std::string shared_memory_socket;
};

// All optional.
struct CallOptions {
  std::optional<absl::Duration> timeout;
  std::optional<RetryPolicy> retry;
  std::string request_id;  // for the daemon's logs, at most 128 bytes of printable ASCII; empty: the daemon makes one
  int priority = 0;        // -100..100; higher runs first among queued calls
  std::string device;      // UUID as GetCapabilities reports it, or "cpu"; empty: any
  // Sent as gRPC metadata, for example for a proxy. Keys: lower-case letters, digits, "-", "_", "."; values: printable
  // ASCII.
  std::map<std::string, std::string> metadata;
  std::stop_token stop;  // a request to stop ends the call, and a wait between attempts, with CANCELLED
};

}  // namespace kernd::client
