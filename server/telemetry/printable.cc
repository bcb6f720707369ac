#include "server/telemetry/printable.h"

namespace kernd::telemetry {

std::string Printable(std::string_view text, std::size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const unsigned char c : text.substr(0, max_bytes)) {
    if (c >= 0x20 && c < 0x7f) {
      out += static_cast<char>(c);
    } else {
      out += {'\\', 'x', kHex[c >> 4], kHex[c & 15]};
    }
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace kernd::telemetry
