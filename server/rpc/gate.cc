#include "server/rpc/gate.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernd/kernels/error.h"

namespace kernd::rpc {
namespace {

constexpr absl::Duration kRetryWhenFull = absl::Milliseconds(50);
constexpr absl::Duration kRetryWhenAway = absl::Seconds(1);

// What gRPC and the daemon keep for a call, whatever its body (measured: 15.2 KiB): charged for the smallest. A client
// that does not acknowledge gRPC's settings has no limit of concurrent streams, so calls are bounded by the budget
// alone.
constexpr std::int64_t kCallBytes = 16 << 10;

absl::Status BodiesFull(std::int64_t bytes, const core::ByteBudget& bodies) {
  return WithDetail(
      absl::ResourceExhaustedError(absl::StrCat("a body of ", bytes, " bytes does not fit now: ", bodies.used(), " of ",
                                                bodies.limit(), " bytes for bodies in flight are taken; try again")),
      {.reason = std::string(reason::kBodyBudget),
       .retry_after = kRetryWhenFull,
       .metadata = {{"needed_bytes", absl::StrCat(bytes)},
                    {"available_bytes", absl::StrCat(bodies.limit() - bodies.used())},
                    {"limit_bytes", absl::StrCat(bodies.limit())}}});
}

absl::Status TooLarge(std::int64_t bytes, std::int64_t limit) {
  return WithDetail(
      absl::ResourceExhaustedError(absl::StrCat("a body of ", bytes, " bytes can never be taken: at most ", limit)),
      {.reason = std::string(reason::kTooLarge),
       .metadata = {{"needed_bytes", absl::StrCat(bytes)}, {"limit_bytes", absl::StrCat(limit)}}});
}

}  // namespace

absl::Status Gate::Enter(const Method& method, const grpc::ServerContext& context, absl::Time deadline,
                         core::ByteBudget::Lease& lease) {
  if (closed_.load(std::memory_order_acquire)) {
    return WithDetail(absl::UnavailableError("kernd is draining; another replica may take the call"),
                      {.reason = std::string(reason::kDraining), .retry_after = kRetryWhenAway});
  }
  if (method.compute && !engine_.ready()) {
    return WithDetail(absl::UnavailableError("kernd is starting"),
                      {.reason = std::string(reason::kStarting), .retry_after = kRetryWhenAway});
  }
  if (deadline != absl::InfiniteFuture() && deadline <= absl::Now()) {
    return WithDetail(absl::DeadlineExceededError("the deadline had passed when the call arrived"),
                      {.reason = std::string(reason::kDeadline)});
  }

  std::int64_t bytes = std::min(options_.default_body_bytes, Limit(method));
  const auto it = context.client_metadata().find(kBodyBytesKey);
  if (it != context.client_metadata().end()) {
    const std::string text(it->second.data(), it->second.size());
    if (!absl::SimpleAtoi(text, &bytes) || bytes < 0) {
      return InvalidField(kBodyBytesKey, text.substr(0, 32), "must be the body's size in bytes, a decimal number");
    }
    if (bytes > Limit(method)) return TooLarge(bytes, Limit(method));
  }
  if (!bodies_.Reserve(std::max(bytes, kCallBytes), lease)) {
    return bytes > bodies_.limit() ? TooLarge(bytes, bodies_.limit()) : BodiesFull(bytes, bodies_);
  }
  return absl::OkStatus();
}

absl::Status Gate::Settle(const Method& method, std::int64_t bytes, core::ByteBudget::Lease& lease) {
  if (bytes > Limit(method)) return TooLarge(bytes, Limit(method));
  if (lease.Resize(std::max(bytes, kCallBytes))) return absl::OkStatus();
  return BodiesFull(bytes, bodies_);
}

}  // namespace kernd::rpc
