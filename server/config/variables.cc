#include "server/config/variables.h"

#include <algorithm>
#include <numeric>
#include <regex>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/config/option_table.h"

namespace kernd::config {
namespace {

constexpr std::string_view kPrefix = "KERND_";
constexpr std::size_t kMaxSlips = 3;        // between a variable and the option that it may stand for
constexpr std::size_t kMaxNameBytes = 256;  // longer ones are not compared: the pattern below is matched by recursion

// What Kubernetes sets for a Service. KERND_X_PORT alone could be a slip for an option, but for its value.
bool IsOfKubernetes(const std::string& name, std::string_view value) {
  static const std::regex service(
      "KERND_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)");
  const bool is_url = value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://");
  return (name.ends_with("_PORT") && is_url) || std::regex_match(name, service);
}

// Insertions, deletions and replacements that make `b` of `a`.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> KnownVariables() {
  std::vector<std::string> known = {"KERND_CONFIG", "KERND_ENDPOINT"};
  for (const Option& option : OptionTable()) known.push_back(VariableOf(option));
  return known;
}

}  // namespace

std::vector<std::string> UnknownVariables(const char* const* environment) {
  const std::vector<std::string> known = KnownVariables();
  std::vector<std::string> lines;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry = *environment;
    if (!entry.starts_with(kPrefix)) continue;
    const std::string name(entry.substr(0, entry.find('=')));
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (name.size() > kMaxNameBytes) {
      lines.push_back(absl::StrCat(name.substr(0, kMaxNameBytes), "... is not an option and sets nothing"));
      continue;
    }
    if (IsOfKubernetes(name, entry.substr(std::min(entry.size(), name.size() + 1)))) continue;
    const auto slips = [&](const std::string& other) { return Distance(name, other); };
    const auto nearest =
        std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) { return slips(a) < slips(b); });
    lines.push_back(absl::StrCat(name, " is not an option and sets nothing",
                                 slips(*nearest) <= kMaxSlips ? absl::StrCat("; did you mean ", *nearest, "?") : ""));
  }
  return lines;
}

}  // namespace kernd::config
