#include "client/cli/values.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <type_traits>
#include <utility>

#include "client/cli/net/target.h"
#include "client/cli/text.h"

namespace kernd::cli {
namespace {

constexpr int kMaxPort = 65535;

constexpr std::array<std::pair<std::string_view, int>, 4> kUnits = {
    {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};

// Whole nanoseconds, as the wire has them.
std::optional<absl::Duration> ParseDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration)) return std::nullopt;
  return absl::Floor(duration, absl::Nanoseconds(1));
}

template <typename T>
T Parse(const char* text, char** end) {
  if constexpr (std::is_same_v<T, float>) {
    return std::strtof(text, end);
  } else {
    return std::strtod(text, end);
  }
}

}  // namespace

CLI::Validator ByteCount() {
  return CLI::Validator(
      [](std::string& text) {
        std::string_view digits = text;
        int shift = 0;
        for (const auto& [unit, bits] : kUnits) {
          if (!digits.ends_with(unit)) continue;
          shift = bits;
          digits.remove_suffix(unit.size());
          break;
        }
        const std::optional<std::int64_t> count = ParseWhole<std::int64_t>(digits);
        if (!count || *count <= 0 || *count > (std::numeric_limits<std::int64_t>::max() >> shift)) {
          return absl::StrCat("'", text, "' must be bytes, as 4096, 64MiB or 1GiB, from 1 to 2^63 - 1");
        }
        text = absl::StrCat(*count << shift);
        return std::string();
      },
      "");
}

template <typename T>
CLI::Validator RealNumber() {
  return CLI::Validator(
      [](const std::string& text) {
        char* end = nullptr;
        errno = 0;
        const T value = Parse<T>(text.c_str(), &end);
        // An embedded zero byte ends what strtod sees.
        if (text.empty() || end != text.c_str() + text.size()) return absl::StrCat("'", text, "' must be a number");
        const bool too_large = errno == ERANGE && std::isinf(value);
        return too_large ? absl::StrCat("'", text, "' must be at most ", std::numeric_limits<T>::max()) : std::string();
      },
      "");
}
template CLI::Validator RealNumber<double>();
template CLI::Validator RealNumber<float>();

CLI::Validator IsDuration(absl::Duration least, absl::Duration most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        const std::optional<absl::Duration> duration = ParseDuration(text);
        return duration && *duration >= least && *duration <= most
                   ? std::string()
                   : absl::StrCat("'", text, "' must be a time from ", absl::FormatDuration(least), " to ",
                                  absl::FormatDuration(most), ", such as 30s, 1m30s or 250ms");
      },
      "TIME");
}

absl::Duration DurationOf(const std::string& text) {
  return ParseDuration(text).value_or(absl::ZeroDuration());
}

CLI::Validator IsText(std::size_t most_bytes) {
  return CLI::Validator(
      [most_bytes](const std::string& text) {
        if (!IsUtf8(text)) return absl::StrCat("'", text, "' must be UTF-8");
        return text.size() <= most_bytes
                   ? std::string()
                   : absl::StrCat("a text of ", text.size(), " bytes must be of at most ", most_bytes);
      },
      "");
}

CLI::Validator IsTarget() {
  return CLI::Validator(
      [](const std::string& text) {
        const Target target = ParseTarget(text);
        const bool number =
            target.kind == Target::Kind::kTcp && !target.port.empty() &&
            std::all_of(target.port.begin(), target.port.end(), [](char c) { return c >= '0' && c <= '9'; });
        const std::optional<int> port = ParseWhole<int>(target.port);
        if (target.kind == Target::Kind::kUnix && target.path.empty()) return "'" + text + "' must name a socket";
        return !number || (port && *port >= 1 && *port <= kMaxPort)
                   ? std::string()
                   : absl::StrCat("'", text, "' must have a port from 1 to ", kMaxPort);
      },
      "");
}

}  // namespace kernd::cli
