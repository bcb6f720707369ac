#include "server/app/layer_options.h"

#include <algorithm>

#include "server/rpc/handover.h"
#include "server/telemetry/http_server.h"

namespace kernd {

rpc::TransportOptions TransportOf(const config::ServerOptions& options) {
  rpc::TransportOptions transport;
  for (const config::Address& address : options.listen.grpc) transport.listen.push_back(config::AddressText(address));
  transport.io_threads = options.compute.io_threads;
  transport.max_message_bytes = options.limits.max_message_bytes;
  transport.quota_bytes = options.limits.body_budget_bytes + options.limits.body_budget_bytes / 2;
  transport.max_concurrent_streams = options.limits.max_concurrent_streams;
  transport.handshake_timeout = options.lifecycle.handshake_timeout;
  transport.keepalive_time = options.lifecycle.keepalive_time;
  transport.keepalive_timeout = options.lifecycle.keepalive_timeout;
  transport.max_connection_age = options.lifecycle.max_connection_age;
  transport.receive_stall = options.lifecycle.receive_stall;
  transport.send_stall = options.lifecycle.send_stall;
  return transport;
}

core::SessionStore::Options SessionsOf(const config::SessionOptions& options, std::int64_t resident_limit,
                                       std::int64_t shared_limit) {
  return {.resident_limit = resident_limit,
          .session_quota = std::min(options.quota.Of(resident_limit), resident_limit),
          .max_sessions = options.max_sessions,
          .shared_limit = shared_limit,
          .default_lease = options.lease,
          .max_lease = config::kMaxSessionLease,
          .fill_timeout = options.fill_timeout};
}

absl::Duration SweepEvery(const config::SessionOptions& options) {
  return std::min(absl::Seconds(1), std::min(options.lease, options.fill_timeout) / 4);
}

std::int64_t NeededDescriptors(const config::ServerOptions& options) {
  return 64 + 4 * options.compute.io_threads + static_cast<std::int64_t>(options.listen.grpc.size()) +
         static_cast<std::int64_t>(options.listen.http ? telemetry::HttpServer::kMaxConnections : 0) +
         static_cast<std::int64_t>(
             options.shared_memory.socket.empty() ? 0 : rpc::Handover::kMaxConnections + rpc::Handover::kMaxWaiting);
}

}  // namespace kernd
