// server/config: units, precedence, the rules of Validate, --check-config, and the limits of the machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/config/machine_limits.h"
#include "server/config/option_table.h"
#include "server/config/options.h"
#include "server/config/server_options.h"
#include "server/config/units.h"

namespace kernd::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

const MachineLimits kMachine = {.cpus = 6, .cpus_from = "test", .memory_bytes = 8 * kGiB, .memory_from = "test"};

using Variables = std::map<std::string, std::string>;

absl::StatusOr<Invocation> Parse(std::vector<std::string> args, const Variables& variables = {},
                                 const MachineLimits& machine = kMachine) {
  std::vector<const char*> argv = {"kernd"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  const auto environment = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  return ParseOptions(static_cast<int>(argv.size()), argv.data(), "kernd 1.2.3", environment, machine);
}

ServerOptions MustParse(std::vector<std::string> args, const Variables& variables = {}) {
  const auto invocation = Parse(std::move(args), variables);
  EXPECT_TRUE(invocation.ok()) << invocation.status();
  return invocation.ok() ? invocation->options : ServerOptions{};
}

std::string MessageOf(std::vector<std::string> args, const Variables& variables = {}) {
  return std::string(Parse(std::move(args), variables).status().message());
}

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kernd_config_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Units, BytesRoundTrip) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {{"0", 0},
                                                                   {"1", 1},
                                                                   {"1000", 1000},
                                                                   {"1KiB", 1024},
                                                                   {"1536KiB", 1536 * 1024},
                                                                   {"64MiB", 64 * kMiB},
                                                                   {"3GiB", 3 * kGiB},
                                                                   {"5TiB", 5120 * kGiB}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
    EXPECT_EQ(BytesText(bytes), text);
  }
  EXPECT_EQ(*ParseBytes("1024KiB"), kMiB);
  EXPECT_EQ(*ParseBytes("9223372036854775807"), INT64_MAX);
}

TEST(Units, BytesRefused) {
  for (const char* text : {"", "MiB", "-1", "+1", "1.5GiB", "64MB", "64mib", "64 MiB", " 64", "9223372036854775808",
                           "8388608TiB", "1KiBKiB", "0x10", "50%", "inf"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(Units, Percent) {
  EXPECT_EQ(*ParseBytes("50%", 1001), 500);
  EXPECT_EQ(*ParseBytes("100%", 4096 * kGiB + 1), 4096 * kGiB + 1);
  EXPECT_EQ(*ParseBytes("12.5%", 800), 100);
  for (const char* text : {"0%", "100.1%", "%", "-1%", "1e1%", "nan%", "5%%", "5 %"}) {
    EXPECT_FALSE(ParseBytes(text, kGiB).ok()) << text;
  }
}

TEST(Units, Durations) {
  EXPECT_EQ(*ParseDuration("500ms", false), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("1h30m", false), absl::Minutes(90));
  EXPECT_EQ(*ParseDuration("0", false), absl::ZeroDuration());
  EXPECT_EQ(*ParseDuration("off", true), absl::InfiniteDuration());
  EXPECT_EQ(DurationText(absl::InfiniteDuration()), "off");
  EXPECT_EQ(DurationText(absl::Milliseconds(500)), "500ms");
  for (const char* text : {"", "30", "-5s", "inf", "off", "30 s", "1d"}) {
    EXPECT_FALSE(ParseDuration(text, false).ok()) << text;
  }
  EXPECT_FALSE(ParseDuration("inf", true).ok());
}

TEST(Units, Addresses) {
  EXPECT_EQ(*ParseAddress("127.0.0.1:50051"), (Address{.host = "127.0.0.1", .port = 50051}));
  EXPECT_EQ(*ParseAddress("localhost:0"), (Address{.host = "localhost", .port = 0}));
  EXPECT_EQ(*ParseAddress("[::1]:65535"), (Address{.host = "::1", .port = 65535}));
  EXPECT_EQ(*ParseAddress("unix:/run/kernd.sock"), (Address{.unix_path = "/run/kernd.sock"}));
  for (const char* text : {"127.0.0.1:50051", "localhost:0", "[::1]:65535", "unix:/run/kernd.sock"}) {
    EXPECT_EQ(AddressText(*ParseAddress(text)), text);
  }
  const std::string longest = "unix:/" + std::string(106, 'a');
  EXPECT_TRUE(ParseAddress(longest).ok());
  EXPECT_FALSE(ParseAddress(longest + "a").ok());
  for (const char* text : {"",        ":",        "50051",   ":50051",      "host",      "host:",          "host:65536",
                           "host:-1", "host:+1",  "host:1a", "host:000001", "::1:50051", "[::1]",          "[::1:5",
                           "::1]:5",  "[host]:5", "[]:5",    "unix:",       "unix:run",  "http://host:80", "a b:1"}) {
    EXPECT_FALSE(ParseAddress(text).ok()) << text;
  }
}

TEST(Defaults, FollowTheMachine) {
  const ServerOptions options = MustParse({});
  EXPECT_EQ(options.limits.memory_bytes, 4 * kGiB);
  EXPECT_EQ(options.limits.body_budget_bytes, 2 * kGiB);
  EXPECT_EQ(options.compute.cpu_threads, 6);
  EXPECT_EQ(options.compute.io_threads, 3);
  EXPECT_THAT(options.listen.grpc, ElementsAre(Address{.host = "127.0.0.1", .port = 50051}));
  EXPECT_EQ(options.listen.http, (Address{.host = "127.0.0.1", .port = 9464}));
}

TEST(Defaults, AreValidOnEveryMachine) {
  for (const int cpus : {1, 2, 3, 64, 1024}) {
    for (const std::int64_t memory : {32 * kMiB, 128 * kMiB, 512 * kMiB, kGiB, 4096 * kGiB}) {
      const ServerOptions options = DefaultOptions({.cpus = cpus, .memory_bytes = memory});
      EXPECT_TRUE(Validate(options).ok()) << cpus << " CPUs, " << memory << " bytes: " << Validate(options);
      EXPECT_GE(options.compute.io_threads, 1);
      EXPECT_LE(options.compute.io_threads, 8);
    }
  }
}

TEST(Precedence, FlagThenVariableThenFileThenDefault) {
  const Folder folder;
  const std::string file = folder.Write("kernd.toml", "max-queued-calls = 10\nio-threads = 20\nsend-stall = \"7s\"\n");
  const Variables variables = {{"KERND_CONFIG", file}, {"KERND_MAX_QUEUED_CALLS", "11"}, {"KERND_IO_THREADS", "21"}};
  const ServerOptions options = MustParse({"--max-queued-calls", "12"}, variables);
  EXPECT_EQ(options.limits.max_queued_calls, 12);
  EXPECT_EQ(options.compute.io_threads, 21);
  EXPECT_EQ(options.lifecycle.send_stall, absl::Seconds(7));
  EXPECT_EQ(options.lifecycle.drain_timeout, absl::Seconds(30));
}

TEST(Precedence, TheFlagNamesTheFileAsWell) {
  const Folder folder;
  const std::string first = folder.Write("first.toml", "io-threads = 20\n");
  const std::string second = folder.Write("second.toml", "io-threads = 30\n");
  EXPECT_EQ(MustParse({"--config", first}, {{"KERND_CONFIG", second}}).compute.io_threads, 20);
}

TEST(Precedence, AnEmptyVariableIsNotSet) {
  EXPECT_EQ(MustParse({}, {{"KERND_MAX_QUEUED_CALLS", ""}, {"KERND_CONFIG", ""}}).limits.max_queued_calls, 256);
}

TEST(Precedence, ListsComeWholeFromOneSource) {
  const Folder folder;
  const std::string file = folder.Write("kernd.toml", "listen = [\"[::1]:1\", \"unix:/a\"]\n");
  const Address v6 = {.host = "::1", .port = 1};
  EXPECT_THAT(MustParse({"--config", file}).listen.grpc, ElementsAre(v6, Address{.unix_path = "/a"}));
  EXPECT_THAT(MustParse({"--config", file}, {{"KERND_LISTEN", "unix:/b,unix:/c"}}).listen.grpc,
              ElementsAre(Address{.unix_path = "/b"}, Address{.unix_path = "/c"}));
  EXPECT_THAT(MustParse({"--config", file, "--listen", "unix:/d", "--listen=unix:/e"}).listen.grpc,
              ElementsAre(Address{.unix_path = "/d"}, Address{.unix_path = "/e"}));
}

TEST(Parse, EveryOptionReachesItsField) {
  const ServerOptions options = MustParse({"--listen",
                                           "0.0.0.0:0",
                                           "--http-listen",
                                           "off",
                                           "--port-file",
                                           "/tmp/port",
                                           "--backend",
                                           "cpu",
                                           "--cpu-threads",
                                           "3",
                                           "--io-threads",
                                           "2",
                                           "--memory-limit",
                                           "1GiB",
                                           "--body-budget",
                                           "10%",
                                           "--default-body-bytes",
                                           "1MiB",
                                           "--max-message-bytes",
                                           "2MiB",
                                           "--max-queued-calls",
                                           "4",
                                           "--max-concurrent-streams",
                                           "5",
                                           "--drain-delay",
                                           "1s",
                                           "--drain-timeout",
                                           "2s",
                                           "--send-stall",
                                           "3s",
                                           "--handshake-timeout",
                                           "4s",
                                           "--keepalive-time",
                                           "off",
                                           "--keepalive-timeout",
                                           "6s",
                                           "--max-connection-age",
                                           "7s",
                                           "--log-level",
                                           "debug",
                                           "--log-format",
                                           "json",
                                           "--log-calls",
                                           "false"});
  EXPECT_THAT(options.listen.grpc, ElementsAre(Address{.host = "0.0.0.0", .port = 0}));
  EXPECT_EQ(options.listen.http, std::nullopt);
  EXPECT_EQ(options.listen.port_file, "/tmp/port");
  EXPECT_EQ(options.compute.backend, BackendChoice::kCpu);
  EXPECT_EQ(options.compute.cpu_threads, 3);
  EXPECT_EQ(options.compute.io_threads, 2);
  EXPECT_EQ(options.limits.memory_bytes, kGiB);
  EXPECT_EQ(options.limits.body_budget_bytes, 8 * kGiB / 10);
  EXPECT_EQ(options.limits.default_body_bytes, kMiB);
  EXPECT_EQ(options.limits.max_message_bytes, 2 * kMiB);
  EXPECT_EQ(options.limits.max_queued_calls, 4);
  EXPECT_EQ(options.limits.max_concurrent_streams, 5);
  EXPECT_EQ(options.lifecycle.drain_delay, absl::Seconds(1));
  EXPECT_EQ(options.lifecycle.drain_timeout, absl::Seconds(2));
  EXPECT_EQ(options.lifecycle.send_stall, absl::Seconds(3));
  EXPECT_EQ(options.lifecycle.handshake_timeout, absl::Seconds(4));
  EXPECT_EQ(options.lifecycle.keepalive_time, absl::InfiniteDuration());
  EXPECT_EQ(options.lifecycle.keepalive_timeout, absl::Seconds(6));
  EXPECT_EQ(options.lifecycle.max_connection_age, absl::Seconds(7));
  EXPECT_EQ(options.logging.level, "debug");
  EXPECT_TRUE(options.logging.json);
  EXPECT_FALSE(options.logging.calls);
}

TEST(Parse, ZeroThreadsAreTheDefault) {
  const ServerOptions options = MustParse({"--cpu-threads", "0", "--io-threads", "0"});
  EXPECT_EQ(options.compute.cpu_threads, 6);
  EXPECT_EQ(options.compute.io_threads, 3);
}

TEST(Parse, ErrorsNameFlagSourceValueAndRule) {
  const Folder folder;
  const std::string file = folder.Write("kernd.toml", "send-stall = \"soon\"\n");
  EXPECT_EQ(MessageOf({"--memory-limit", "64MB"}),
            "--memory-limit is 64MB: must be bytes, as 4096, 64MiB, 1GiB, or a part of the memory, as 25%");
  EXPECT_EQ(MessageOf({}, {{"KERND_BACKEND", "tpu"}}),
            "--backend (from KERND_BACKEND) is tpu: must be one of auto|cuda|cpu");
  EXPECT_EQ(MessageOf({"--config", file}),
            "--send-stall (from " + file + ") is soon: must be a duration, as 30s, 500ms, 1h");
  EXPECT_EQ(MessageOf({"--io-threads", "2.5"}), "--io-threads is 2.5: must be a whole number");
  EXPECT_EQ(MessageOf({"--io-threads", "3", "--io-threads", "4"}), "--io-threads is 3,4: must be given once");
  EXPECT_THAT(MessageOf({"--listen", "50051"}), HasSubstr("--listen is 50051: must be host:port"));
}

TEST(Parse, WhatIsNoOptionIsRefused) {
  const Folder folder;
  EXPECT_THAT(MessageOf({"--no-such-flag"}), HasSubstr("--no-such-flag"));
  EXPECT_THAT(MessageOf({"stray"}), HasSubstr("stray"));
  EXPECT_THAT(MessageOf({"--io-threads"}), HasSubstr("--io-threads"));
  EXPECT_THAT(MessageOf({"--config", folder.Write("a", "no-such-key = 1\n")}),
              HasSubstr("no-such-key is not an option"));
  EXPECT_THAT(MessageOf({"--config", folder.Write("b", "[limits]\nio-threads = 1\n")}), HasSubstr("is not an option"));
  EXPECT_THAT(MessageOf({"--config", folder.Write("c", "io-threads = 1\nsend-stall = \"1s\"\nio-threads = 2\n")}),
              HasSubstr("io-threads is given twice"));
  EXPECT_EQ(Parse({"--config", folder.path() + "/none"}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Parse({"--config", folder.path()}).status().code(), absl::StatusCode::kNotFound);
}

// Kubernetes sets these in every container that starts after a Service named kernd; one that named an option would
// stop the daemon from starting.
TEST(Parse, VariablesOfAKubernetesServiceAreNoOptions) {
  std::set<std::string> names;
  for (const Option& option : OptionTable()) names.insert(VariableOf(option));
  EXPECT_EQ(names.size(), OptionTable().size());
  EXPECT_TRUE(names.contains("KERND_MEMORY_LIMIT"));
  for (const std::string& name : names) {
    EXPECT_FALSE(name == "KERND_PORT" || name.starts_with("KERND_SERVICE_")) << name;
    EXPECT_FALSE(name.starts_with("KERND_PORT_") && name.find("_TCP") != std::string::npos) << name;
  }
  MustParse({}, {{"KERND_PORT", "tcp://10.0.0.1:50051"}, {"KERND_SERVICE_HOST", "10.0.0.1"}});
}

TEST(Print, HelpHasEveryOptionAndVersionIsALine) {
  const auto help = Parse({"--help"});
  ASSERT_TRUE(help.ok() && help->print);
  for (const Option& option : OptionTable()) {
    EXPECT_THAT(*help->print, HasSubstr("--" + std::string(option.name) + " "));
    EXPECT_THAT(*help->print, HasSubstr(std::string(option.group) + ":"));
  }
  const auto version = Parse({"--version"});
  ASSERT_TRUE(version.ok() && version->print);
  EXPECT_EQ(*version->print, "kernd 1.2.3\n");
  EXPECT_FALSE(Parse({})->print);
}

TEST(CheckConfig, PrintsValuesAndSources) {
  const Folder folder;
  const std::string file = folder.Write("kernd.toml", "# comment\nsend-stall = \"7s\"  # why\n");
  const auto checked =
      Parse({"--check-config", "--config", file, "--max-queued-calls=3"}, {{"KERND_LOG_FORMAT", "json"}});
  ASSERT_TRUE(checked.ok()) << checked.status();
  ASSERT_TRUE(checked->print);
  EXPECT_THAT(*checked->print, HasSubstr("\nmax-queued-calls = 3  # flag\n"));
  EXPECT_THAT(*checked->print, HasSubstr("\nlog-format = \"json\"  # KERND_LOG_FORMAT\n"));
  EXPECT_THAT(*checked->print, HasSubstr("\nsend-stall = \"7s\"  # " + file + "\n"));
  EXPECT_THAT(*checked->print, HasSubstr("\nmemory-limit = \"4GiB\"  # default\n"));
  EXPECT_THAT(*checked->print, HasSubstr("# CPUs: 6 (test), memory: 8GiB (test)\n"));
}

TEST(CheckConfig, RefusesWhatAStartWouldRefuse) {
  EXPECT_FALSE(Parse({"--check-config", "--io-threads", "257"}).ok());
}

TEST(CheckConfig, TheOutputIsAFileThatMeansTheSame) {
  const Folder folder;
  const std::vector<std::string> flags = {"--listen=[::1]:1,unix:/a",   "--http-listen=off", "--backend=cuda",
                                          "--max-connection-age=1h30m", "--log-calls=false", "--memory-limit=33%"};
  std::vector<std::string> check = flags;
  check.push_back("--check-config");
  const auto printed = Parse(check);
  ASSERT_TRUE(printed.ok()) << printed.status();
  const std::string file = folder.Write("effective.toml", *printed->print);
  // Another machine, so that a value which did not come from the file would show.
  const auto again = Parse({"--config", file}, {}, {.cpus = 64, .memory_bytes = 512 * kGiB});
  ASSERT_TRUE(again.ok()) << again.status();
  for (const Option& option : OptionTable()) {
    EXPECT_EQ(option.print(again->options), option.print(printed->options)) << option.name;
  }
}

struct BadCase {
  const char* message;  // beginning
  std::function<void(ServerOptions&)> spoil;
};

TEST(Validate, EveryRule) {
  const std::vector<BadCase> cases = {
      {"--listen is empty", [](auto& o) { o.listen.grpc.clear(); }},
      {"--listen is unix:/a: must not be given twice",
       [](auto& o) {
         o.listen.grpc = {{.unix_path = "/a"}, {.unix_path = "/a"}};
       }},
      {"--http-listen is 127.0.0.1:50051", [](auto& o) { o.listen.http->port = 50051; }},
      {"--http-listen is unix:/a", [](auto& o) { o.listen.http = Address{.unix_path = "/a"}; }},
      {"--memory-limit is 1: must be from 1MiB", [](auto& o) { o.limits.memory_bytes = 1; }},
      {"--memory-limit is 2097152TiB", [](auto& o) { o.limits.memory_bytes = std::int64_t{1} << 61; }},
      {"--body-budget is 0", [](auto& o) { o.limits.body_budget_bytes = 0; }},
      {"--max-message-bytes is 2147418113: must be from 4KiB to 2097088KiB",
       [](auto& o) { o.limits.max_message_bytes = kMaxMessageBytes + 1; }},
      {"--max-message-bytes is 2GiB", [](auto& o) { o.limits.max_message_bytes = 2 * kGiB; }},
      {"--max-message-bytes is 1: must be from 4KiB", [](auto& o) { o.limits.max_message_bytes = 1; }},
      {"--default-body-bytes is 0", [](auto& o) { o.limits.default_body_bytes = 0; }},
      {"--default-body-bytes is 64MiB: must be at most --body-budget, 32MiB",
       [](auto& o) { o.limits.body_budget_bytes = 32 * kMiB; }},
      {"--max-queued-calls is 0", [](auto& o) { o.limits.max_queued_calls = 0; }},
      {"--max-queued-calls is 1000001", [](auto& o) { o.limits.max_queued_calls = 1000001; }},
      {"--max-concurrent-streams is 0", [](auto& o) { o.limits.max_concurrent_streams = 0; }},
      {"--drain-delay is 1h0.001s: must be from 0 to 1h",
       [](auto& o) { o.lifecycle.drain_delay = absl::Hours(1) + absl::Milliseconds(1); }},
      {"--drain-timeout is off", [](auto& o) { o.lifecycle.drain_timeout = absl::InfiniteDuration(); }},
      {"--send-stall is 0", [](auto& o) { o.lifecycle.send_stall = absl::ZeroDuration(); }},
      {"--handshake-timeout is 0", [](auto& o) { o.lifecycle.handshake_timeout = absl::ZeroDuration(); }},
      {"--keepalive-time is 10ms", [](auto& o) { o.lifecycle.keepalive_time = absl::Milliseconds(10); }},
      {"--keepalive-timeout is off", [](auto& o) { o.lifecycle.keepalive_timeout = absl::InfiniteDuration(); }},
      {"--max-connection-age is 10ms", [](auto& o) { o.lifecycle.max_connection_age = absl::Milliseconds(10); }},
      {"--cpu-threads is 0", [](auto& o) { o.compute.cpu_threads = 0; }},
      {"--cpu-threads is 4097", [](auto& o) { o.compute.cpu_threads = 4097; }},
      {"--io-threads is -1", [](auto& o) { o.compute.io_threads = -1; }},
      {"--log-level is loud: must be debug, info, warning or error", [](auto& o) { o.logging.level = "loud"; }},
  };
  for (const BadCase& bad : cases) {
    ServerOptions options = DefaultOptions(kMachine);
    ASSERT_TRUE(Validate(options).ok()) << Validate(options);
    bad.spoil(options);
    const absl::Status status = Validate(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.message;
    EXPECT_TRUE(std::string(status.message()).starts_with(bad.message)) << status << "\n" << bad.message;
  }
}

TEST(Validate, Allows) {
  ServerOptions options = DefaultOptions(kMachine);
  options.listen.grpc = {{.host = "h", .port = 0}, {.host = "h", .port = 0}};
  options.listen.http = Address{.host = "h", .port = 0};
  options.lifecycle.keepalive_time = absl::InfiniteDuration();
  options.lifecycle.drain_timeout = absl::ZeroDuration();
  options.limits.max_message_bytes = kMaxMessageBytes;
  EXPECT_TRUE(Validate(options).ok()) << Validate(options);
}

TEST(Machine, CgroupV2WalksUpwards) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  root.Write("proc/self/cgroup", "0::/pods/kernd\n");
  root.Write("sys/fs/cgroup/pods/memory.max", "2147483648\n");
  root.Write("sys/fs/cgroup/pods/kernd/memory.max", "max\n");
  root.Write("sys/fs/cgroup/pods/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/pods/kernd/cpu.max", "350000 100000\n");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, 2 * kGiB);
  EXPECT_EQ(limits.memory_from, "cgroup memory.max");
  EXPECT_EQ(limits.cpus, 3);
  EXPECT_EQ(limits.cpus_from, "cgroup cpu.max");
}

TEST(Machine, AContainerSeesItsGroupAtTheMount) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal: 16777216 kB\n");
  root.Write("proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
  root.Write("sys/fs/cgroup/memory.max", "1073741824\n");
  root.Write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, kGiB);
  EXPECT_EQ(limits.cpus, 1);
}

TEST(Machine, CgroupV1) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal: 16777216 kB\n");
  root.Write("proc/self/cgroup", "12:memory:/a\n4:cpu,cpuacct:/b\n1:name=systemd:/x\n0::/x\n");
  root.Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "536870912\n");
  root.Write("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "200000\n");
  root.Write("sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, 512 * kMiB);
  EXPECT_EQ(limits.memory_from, "cgroup memory.limit_in_bytes");
  EXPECT_EQ(limits.cpus, 2);
  EXPECT_EQ(limits.cpus_from, "cgroup cpu.cfs_quota_us");
}

TEST(Machine, NoLimits) {
  const Folder root;
  root.Write("proc/meminfo", "MemTotal: 16777216 kB\n");
  root.Write("proc/self/cgroup", "12:memory:/a\n4:cpu,cpuacct:/\nnonsense\n0::/\n");
  root.Write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/memory.max", "garbage\n");
  root.Write("sys/fs/cgroup/cpu.max", "");
  const MachineLimits limits = ReadMachineLimits(root.path(), 16);
  EXPECT_EQ(limits.memory_bytes, 16 * kGiB);
  EXPECT_EQ(limits.memory_from, "MemTotal");
  EXPECT_EQ(limits.cpus, 16);
  EXPECT_EQ(limits.cpus_from, "affinity");
}

TEST(Machine, NothingToReadIsASmallMachine) {
  const Folder root;
  const MachineLimits limits = ReadMachineLimits(root.path(), 0);
  EXPECT_EQ(limits.memory_bytes, kGiB);
  EXPECT_EQ(limits.cpus, 1);
}

TEST(Machine, ThisOne) {
  const MachineLimits limits = ReadMachineLimits();
  EXPECT_GE(limits.cpus, 1);
  EXPECT_LE(limits.cpus, AffinityCpus());
  EXPECT_GT(limits.memory_bytes, 32 * kMiB);
}

}  // namespace
}  // namespace kernd::config
