#include "server/config/units.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kernd::config {
namespace {

constexpr std::array<std::pair<std::string_view, int>, 4> kUnits = {
    {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};

// sockaddr_un.sun_path has 108 bytes, the last of them the terminating zero.
constexpr std::size_t kMaxUnixPath = 107;

absl::Status Rule(absl::string_view rule) {
  return absl::InvalidArgumentError(rule);
}

bool IsDigits(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

}  // namespace

absl::StatusOr<std::int64_t> ParseBytes(const std::string& text, std::int64_t whole) {
  const char* const rule = whole > 0 ? "must be bytes, as 4096, 64MiB, 1GiB, or a part of the memory, as 25%"
                                     : "must be bytes, as 4096, 64MiB, 1GiB";
  absl::string_view digits = text;
  if (absl::ConsumeSuffix(&digits, "%")) {
    double percent = 0;
    if (whole <= 0 || digits.find_first_not_of("0123456789.") != absl::string_view::npos ||
        !absl::SimpleAtod(digits, &percent) || !(percent > 0 && percent <= 100)) {
      return Rule(rule);
    }
    return static_cast<std::int64_t>(std::floor(static_cast<long double>(whole) * percent / 100));
  }
  int shift = 0;
  for (const auto& [unit, bits] : kUnits) {
    if (absl::ConsumeSuffix(&digits, absl::string_view(unit.data(), unit.size()))) shift = bits;
  }
  std::int64_t count = 0;
  if (!IsDigits(digits) || !absl::SimpleAtoi(digits, &count) || count > (INT64_MAX >> shift)) return Rule(rule);
  return count << shift;
}

std::string BytesText(std::int64_t bytes) {
  std::string text = absl::StrCat(bytes);
  for (const auto& [unit, bits] : kUnits) {
    const std::int64_t count = bytes >> bits;
    if (count > 0 && count << bits == bytes) text = absl::StrCat(count, absl::string_view(unit.data(), unit.size()));
  }
  return text;
}

absl::StatusOr<absl::Duration> ParseDuration(const std::string& text, bool off_allowed) {
  if (off_allowed && text == "off") return absl::InfiniteDuration();
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return Rule(off_allowed ? "must be a duration, as 30s, 500ms, 1h, or off"
                            : "must be a duration, as 30s, 500ms, 1h");
  }
  return duration;
}

std::string DurationText(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? "off" : absl::FormatDuration(duration);
}

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  Address address;
  if (!FitsIntoQuotes(text)) return Rule(kQuotesRule);
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (!absl::StartsWith(rest, "/") || rest.size() > kMaxUnixPath) {
      return Rule("the path after unix: must begin with / and have at most 107 bytes");
    }
    address.unix_path = std::string(rest);
    return address;
  }
  const std::size_t colon = rest.rfind(':');
  const absl::string_view port = colon == absl::string_view::npos ? "" : rest.substr(colon + 1);
  absl::string_view host = rest.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  // Outside brackets a colon belongs to a bare IPv6 address, and which of its groups is the port is anyone's guess.
  if (host.empty() || host.find_first_of("[]/, ") != absl::string_view::npos ||
      bracketed != (host.find(':') != absl::string_view::npos) || port.size() > 5 || !IsDigits(port) ||
      !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return Rule("must be host:port, [v6 address]:port or unix:/path, with a port of 0 to 65535 (0: any free one)");
  }
  address.host = std::string(host);
  return address;
}

std::string AddressText(const Address& address) {
  if (!address.unix_path.empty()) return absl::StrCat("unix:", address.unix_path);
  const bool v6 = address.host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", address.host, v6 ? "]:" : ":", address.port);
}

bool FitsIntoQuotes(const std::string& text) {
  return std::none_of(text.begin(), text.end(), [](unsigned char c) {
    return c < 0x20 || c == 0x7f || c == '"' || c == '\'' || c == '`' || c == '\\' || c == '#';
  });
}

}  // namespace kernd::config
