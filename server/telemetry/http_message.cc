#include "server/telemetry/http_message.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kernd::telemetry {
namespace {

constexpr std::size_t kMaxMethodBytes = 16;

bool IsCapital(char c) {
  return c >= 'A' && c <= 'Z';
}
bool IsVisible(char c) {
  return c > 0x20 && c < 0x7f;
}

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    default: return "Unknown";
  }
}

}  // namespace

RequestHead ParseRequestHead(std::string_view bytes) {
  constexpr RequestHead kMalformed = {.state = RequestHead::State::kMalformed};
  const std::size_t line_end = bytes.find('\n');
  std::string_view line = bytes.substr(0, line_end);
  const bool line_is_whole = line_end != std::string_view::npos;
  if (line_is_whole && line.ends_with('\r')) line.remove_suffix(1);

  const std::string_view method = line.substr(0, line.find(' '));
  if (method.size() > kMaxMethodBytes || !std::all_of(method.begin(), method.end(), IsCapital)) return kMalformed;
  if (!line_is_whole) return {};
  // METHOD SP target SP HTTP/1.x
  if (method.empty() || method.size() == line.size()) return kMalformed;
  line.remove_prefix(method.size() + 1);
  const std::string_view target = line.substr(0, line.find(' '));
  if (target.empty() || target.size() == line.size() || !std::all_of(target.begin(), target.end(), IsVisible)) {
    return kMalformed;
  }
  const std::string_view version = line.substr(target.size() + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return kMalformed;

  const std::string_view rest = bytes.substr(line_end);
  if (rest.find("\n\r\n") == std::string_view::npos && rest.find("\n\n") == std::string_view::npos) return {};
  return {.state = RequestHead::State::kWhole, .method = method, .path = target.substr(0, target.find('?'))};
}

std::string Render(const HttpResponse& response, bool with_body) {
  std::string bytes =
      absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
                   "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                   "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
                   response.status == 405 ? "Allow: GET, HEAD\r\n" : "");
  if (!response.content_security_policy.empty()) {
    absl::StrAppend(&bytes, "Content-Security-Policy: ", response.content_security_policy,
                    "\r\nReferrer-Policy: no-referrer\r\n");
  }
  absl::StrAppend(&bytes, "Connection: close\r\n\r\n");
  if (with_body) bytes += response.body;
  return bytes;
}

}  // namespace kernd::telemetry
