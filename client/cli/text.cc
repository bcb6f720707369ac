#include "client/cli/text.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace kernd::cli {
namespace {

constexpr std::size_t kMaxBytes = 2000;

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

CodePoint Decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  std::uint32_t value = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // less is an overlong form
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  return value < kLeast[length] || value > 0x10ffff || surrogate ? CodePoint{} : CodePoint{value, length};
}

// C0, DEL and C1 controls; line separators; marks that are not seen or turn the direction of writing.
bool IsPlain(std::uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool format = (c >= 0x200b && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x2069) ||
                      c == 0x61c || c == 0xfeff;
  return !control && !format;
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= kMaxBytes) return out + "...";
    const CodePoint c = Decode(text);
    const std::size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (c.bytes > 0 && IsPlain(c.value)) {
      out.append(text.substr(0, bytes));
    } else if (text.front() == '\n' || text.front() == '\t') {
      out.append(text.front() == '\n' ? "\\n" : "\\t");
    } else {
      for (const char x : text.substr(0, bytes)) absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(x));
    }
    text.remove_prefix(bytes);
  }
  return out;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = Decode(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace kernd::cli
