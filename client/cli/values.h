// Values on the command line as people write them. Whatever is a number, a time, a size or a text that is sent goes
// through one of these checks, so that what is used is what was typed: nothing wraps, saturates, or is cut off on its
// way. A refusal names option, value and rule: "--id: '-1' must be a whole number from 0 to 9223372036854775807".
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace kernd::cli {

// More than this can only be a slip of the pen, and less than any clock has.
inline constexpr absl::Duration kYear = absl::Hours(365 * 24);

// All of `text` in decimal digits; none where it is anything else, or more than T holds.
template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

// For Option::transform, into a field of type T: "010" is ten.
template <typename T>
CLI::Validator WholeNumber(T least, T most = std::numeric_limits<T>::max()) {
  return CLI::Validator(
      [least, most](std::string& text) {
        const std::optional<T> value = ParseWhole<T>(text);
        if (!value || *value < least || *value > most) {
          return absl::StrCat("'", text, "' must be a whole number from ", least, " to ", most);
        }
        text = absl::StrCat(*value);
        return std::string();
      },
      // For the help, which need not have the ends of a type.
      most < std::numeric_limits<std::int32_t>::max() ? absl::StrCat(least, " to ", most) : std::string());
}

// For Option::transform, into an int64_t: "4096", "64KiB", "1MiB", "2GiB", "1TiB", powers of 1024; positive.
CLI::Validator ByteCount();

// For fields of type T, double or float. What is too large for one is refused; infinities and NaN are for the command,
// or the daemon, to judge.
template <typename T>
CLI::Validator RealNumber();

// "30s", "1m30s", "250ms": from `least` to `most`. What has passed is read by DurationOf.
CLI::Validator IsDuration(absl::Duration least = absl::Nanoseconds(1), absl::Duration most = kYear);
absl::Duration DurationOf(const std::string& text);

// What the wire takes as text: UTF-8 of at most `most_bytes`. Else the library would send what no daemon can read.
CLI::Validator IsText(std::size_t most_bytes = 1024);

// HOST:PORT and the other forms of a gRPC target. A port above 65535 would be another one to the system's resolver, and
// the empty path of a socket one that the system makes up.
CLI::Validator IsTarget();

}  // namespace kernd::cli
