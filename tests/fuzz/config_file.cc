// The daemon's configuration file, and what --check-config prints of it.
#include "server/config/option_table.h"
#include "server/config/options.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_file.h"

namespace kernd::fuzz {
namespace {

const config::MachineLimits kMachine = {
    .cpus = 6, .cpus_from = "test", .memory_bytes = std::int64_t{8} << 30, .memory_from = "test"};

absl::StatusOr<config::Invocation> Read(std::string_view text) {
  const MemoryFile file(text);
  const char* const argv[] = {"kernd", "--config", file.path().c_str(), "--check-config"};
  const auto none = [](const std::string&) -> std::optional<std::string> { return std::nullopt; };
  return config::ParseOptions(std::size(argv), argv, "kernd 1.2.3", none, kMachine);
}

std::string Print(const config::ServerOptions& options) {
  std::string text;
  for (const config::Option& option : config::OptionTable()) {
    text += std::string(option.name) + " = " + option.print(options) + "\n";
  }
  return text;
}

}  // namespace

void Target(std::string_view input) {
  const absl::StatusOr<config::Invocation> read = Read(input);
  if (!read.ok()) {
    Require(read.status().code() == absl::StatusCode::kInvalidArgument && !read.status().message().empty(),
            "a file that can be read and is refused is invalid, and the message says why");
    return;
  }
  Require(read->print.has_value(), "--check-config prints");
  const absl::StatusOr<config::Invocation> again = Read(*read->print);
  Require(again.ok(), "what it prints is a file that can be read");
  Require(Print(again->options) == Print(read->options), "and means the same");
}

std::vector<std::string> Seeds() {
  const std::string all = Print(config::DefaultOptions(kMachine));
  return {all, "# a comment\nlog-level = \"debug\"\nmemory-limit=25%\n\nsend-stall = '1h30m'\n",
          "listen = [\"127.0.0.1:0\", \"unix:/run/kernd.sock\"]\n"};
}

}  // namespace kernd::fuzz
