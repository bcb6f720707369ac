// Several connections to one daemon, and threads to keep them busy: one core serves a connection, so one connection
// moves only what a core can.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "client/src/connection.h"
#include "client/src/crew.h"
#include "client/src/stream.h"
#include "kernd/client/options.h"

namespace kernd::client {

// In one message of a transfer. Servers and clients of gRPC take 4 MiB by default; a larger message waits longer before
// the other side can begin with it, a smaller one costs more for each byte.
inline constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

// Thread-safe.
class Stripes {
 public:
  // `options` are valid.
  explicit Stripes(const ClientOptions& options) : options_(options), crew_(options.stripe_channels - 1) {}

  // Streams for a transfer of `bytes`.
  int Lanes(std::int64_t bytes) const;

  // Runs `work` on `lanes` connections at once, with the terms for its streams. The first failure stops the others, and
  // is what comes back.
  absl::Status Run(int lanes, const CallTerms& terms,
                   const std::function<absl::Status(int lane, const Stripe& stripe, const CallTerms& terms)>& work);

  Crew& crew() { return crew_; }

 private:
  const ClientOptions options_;
  std::once_flag dialled_;
  std::vector<Stripe> stripes_;  // constant after `dialled_`
  std::atomic<std::size_t> turn_ = 0;
  Crew crew_;
};

}  // namespace kernd::client
