// Sizes, durations, addresses and choices as people write them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace kernd::config {

// Where to listen: host and port (0: any free one), or the path of a Unix socket and neither.
struct Address {
  std::string host;
  int port = 0;
  std::string unix_path;

  bool operator==(const Address&) const = default;
};

// All of these fail with INVALID_ARGUMENT whose message is the rule alone; the caller knows field and value.

// "64MiB", "1GiB", "4096": KiB, MiB, GiB, TiB are powers of 1024. "25%" is that part of `whole`, rounded down; refused
// where `whole` is 0.
absl::StatusOr<std::int64_t> ParseBytes(const std::string& text, std::int64_t whole = 0);
// The largest unit that keeps the number exact: "64MiB", "1536KiB", "1000".
std::string BytesText(std::int64_t bytes);

// "30s", "500ms", "1h30m". Where `off` is allowed, "off" is InfiniteDuration; nothing else is.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& text, bool off_allowed);
std::string DurationText(absl::Duration duration);

// "host:port", "[v6]:port" or "unix:/absolute/path".
absl::StatusOr<Address> ParseAddress(const std::string& text);
// As gRPC and ParseAddress read it.
std::string AddressText(const Address& address);

// Whether a file of options can hold `text`, which is in quotes there: the format has no way to write others.
bool FitsIntoQuotes(const std::string& text);
inline constexpr char kQuotesRule[] = "must have no quotes, backslashes, # and control characters";

}  // namespace kernd::config
