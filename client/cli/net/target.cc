#include "client/cli/net/target.h"

#include <string_view>
#include <utility>

namespace kernd::cli {
namespace {

bool Strip(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

Target Unix(std::string path) {
  return {.kind = Target::Kind::kUnix, .path = std::move(path)};
}

// "host:port", "host", "[::1]:port", "::1".
Target Tcp(std::string_view text) {
  Target target{.kind = Target::Kind::kTcp};
  const std::size_t bracket = text.find(']'), colon = text.rfind(':');
  if (!text.empty() && text.front() == '[' && bracket != std::string_view::npos) {
    target.host = text.substr(1, bracket - 1);
    if (bracket + 1 < text.size() && text[bracket + 1] == ':') target.port = text.substr(bracket + 2);
  } else if (colon != std::string_view::npos && text.find(':') == colon) {
    target.host = text.substr(0, colon);
    target.port = text.substr(colon + 1);
  } else {
    target.host = text;
  }
  return target;
}

}  // namespace

Target ParseTarget(const std::string& text) {
  std::string_view rest = text;
  if (Strip(rest, "unix-abstract:")) return Unix(std::string(1, '\0') + std::string(rest));
  if (Strip(rest, "unix://") || Strip(rest, "unix:")) return Unix(std::string(rest));
  const bool several = rest.find(',') != std::string_view::npos;
  if (!several && (Strip(rest, "ipv4:") || Strip(rest, "ipv6:"))) return Tcp(rest);
  if (Strip(rest, "dns:")) {
    while (Strip(rest, "/")) {
    }
    return rest.find('/') == std::string_view::npos ? Tcp(rest) : Target{};  // "dns://server/name"
  }
  if (several || rest.find('/') != std::string_view::npos) return {};
  return Tcp(rest);
}

bool IsLocal(const Target& target) {
  if (target.kind == Target::Kind::kUnix) return true;
  return target.kind == Target::Kind::kTcp &&
         (target.host == "localhost" || target.host == "::1" || target.host.rfind("127.", 0) == 0);
}

std::string HttpAddressOf(const std::string& endpoint) {
  const Target target = ParseTarget(endpoint);
  if (target.kind != Target::Kind::kTcp || target.host.empty()) return "127.0.0.1:9464";
  const bool v6 = target.host.find(':') != std::string::npos;
  return (v6 ? "[" + target.host + "]" : target.host) + ":9464";
}

}  // namespace kernd::cli
