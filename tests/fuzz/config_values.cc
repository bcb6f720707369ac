// Sizes, durations and addresses as people write them; and each line as a flag or, as NAME=value, as a variable.
#include <map>
#include <sstream>

#include "server/config/options.h"
#include "server/config/units.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {
namespace {

constexpr std::int64_t kWhole = std::int64_t{8} << 30;

void CheckUnits(const std::string& text) {
  if (const auto bytes = config::ParseBytes(text, kWhole); bytes.ok()) {
    Require(*bytes >= 0 && config::ParseBytes(config::BytesText(*bytes)).value() == *bytes,
            "bytes are read as written");
    Require(!text.ends_with('%') || *bytes <= kWhole, "a part is not more than the whole");
  }
  if (const auto duration = config::ParseDuration(text, true); duration.ok()) {
    Require(*duration >= absl::ZeroDuration(), "no duration is negative");
    Require(config::ParseDuration(config::DurationText(*duration), true).value() == *duration,
            "durations are read as written");
  }
  if (const auto address = config::ParseAddress(text); address.ok()) {
    Require(address->port >= 0 && address->port <= 65535, "a port is one");
    Require(config::ParseAddress(config::AddressText(*address)).value() == *address, "addresses are read as written");
  }
}

// The name and value of KERND_NAME=value.
std::optional<std::pair<std::string, std::string>> Variable(const std::string& line) {
  const std::size_t equals = line.find('=');
  if (!line.starts_with("KERND_") || equals == std::string::npos) return std::nullopt;
  return std::pair{line.substr(0, equals), line.substr(equals + 1)};
}

}  // namespace

void Target(std::string_view input) {
  std::vector<std::string> args = {"kernd"};
  std::map<std::string, std::string> variables;
  std::istringstream lines{std::string(input.substr(0, input.find('\0')))};
  for (std::string line; std::getline(lines, line);) {
    CheckUnits(line);
    if (const auto variable = Variable(line))
      variables.insert(*variable);
    else
      args.push_back(line);
  }
  // Files are another target's, and this one's outcome is its input's alone.
  variables.erase("KERND_CONFIG");
  for (const std::string& arg : args) {
    if (arg.starts_with("--config")) return;
  }
  std::vector<const char*> argv;
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  const auto environment = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  const config::MachineLimits machine = {.cpus = 6, .cpus_from = "test", .memory_bytes = kWhole, .memory_from = "test"};
  const auto parsed =
      config::ParseOptions(static_cast<int>(argv.size()), argv.data(), "kernd 1.2.3", environment, machine);
  Require(parsed.ok() || parsed.status().code() == absl::StatusCode::kInvalidArgument, "what is refused is invalid");
}

std::vector<std::string> Seeds() {
  return {"--memory-limit\n25%\n--listen=127.0.0.1:0,[::1]:50051\n--log-level\ndebug\nKERND_SEND_STALL=1h30m",
          "KERND_IO_THREADS=3\n--default-body-bytes=64MiB\nunix:/run/kernd.sock\n500ms\noff\n1TiB\n[::1]:0",
          "--check-config", "--help"};
}

}  // namespace kernd::fuzz
