// server/config: from flags, variables and a file to options, and back by --check-config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>
#include <string>
#include <vector>

#include "server/config/option_table.h"
#include "server/config/options.h"
#include "server/config/variables.h"
#include "tests/unit/config_support.h"

namespace kernd::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
                                           "--advertise",
                                           "10.0.0.7:50051",
                                           "--backend",
                                           "cpu",
                                           "--resident-memory",
                                           "30%",
                                           "--session-quota",
                                           "4MiB",
                                           "--max-sessions",
                                           "8",
                                           "--session-lease",
                                           "90s",
                                           "--fill-timeout",
                                           "9s",
                                           "--shared-memory-socket",
                                           "/run/kernd/memory",
                                           "--shared-memory-limit",
                                           "5MiB",
                                           "--cpu-threads",
                                           "3",
                                           "--io-threads",
                                           "2",
                                           "--prewarm",
                                           "matmul:f32:1x2x3,attention:f16:1x2x3x4:causal",
                                           "--prewarm",
                                           "matmul:f16:4x5x6",
                                           "--debug-checks",
                                           "true",
                                           "--tuning-file",
                                           "/var/lib/kernd/tuning",
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
  EXPECT_EQ(options.shared_memory.socket, "/run/kernd/memory");
  EXPECT_EQ(options.shared_memory.limit_bytes, std::int64_t{5} << 20);
  EXPECT_EQ(options.listen.advertise, "10.0.0.7:50051");
  EXPECT_EQ(options.compute.backend, BackendChoice::kCpu);
  EXPECT_EQ(options.sessions.resident, (Share{.percent = 30}));
  EXPECT_EQ(options.sessions.quota, (Share{.bytes = 4 * kMiB}));
  EXPECT_EQ(options.sessions.max_sessions, 8);
  EXPECT_EQ(options.sessions.lease, absl::Seconds(90));
  EXPECT_EQ(options.sessions.fill_timeout, absl::Seconds(9));
  EXPECT_EQ(options.compute.cpu_threads, 3);
  EXPECT_EQ(options.compute.io_threads, 2);
  EXPECT_THAT(options.compute.prewarm,
              ElementsAre("matmul:f32:1x2x3", "attention:f16:1x2x3x4:causal", "matmul:f16:4x5x6"));
  EXPECT_TRUE(options.compute.debug_checks);
  EXPECT_EQ(options.compute.tuning_file, "/var/lib/kernd/tuning");
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

TEST(Parse, ShapesToPrewarmAreAListLikeAnyOther) {
  const Folder folder;
  const std::string file = folder.Write("kernd.toml", "prewarm = [\"matmul:f32:1x2x3\", \"matmul:f32:4x5x6\"]\n");
  EXPECT_THAT(MustParse({"--config", file}).compute.prewarm, ElementsAre("matmul:f32:1x2x3", "matmul:f32:4x5x6"));
  EXPECT_THAT(MustParse({"--config", file, "--prewarm", ""}).compute.prewarm, IsEmpty());
  EXPECT_THAT(MustParse({"--config", folder.Write("none", "prewarm = \"\"\n")}).compute.prewarm, IsEmpty());
  EXPECT_THAT(MustParse({}).compute.prewarm, IsEmpty());
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
  // Of the rules that are looked at one option at a time, and of those that are looked at when all are known.
  EXPECT_EQ(MessageOf({}, {{"KERND_IO_THREADS", "257"}}),
            "--io-threads (from KERND_IO_THREADS) is 257: must be from 1 to 256");
  EXPECT_EQ(MessageOf({"--config", folder.Write("zero", "max-queued-calls = 0\n")}),
            "--max-queued-calls (from " + folder.path() + "/zero) is 0: must be from 1 to 1000000");
  EXPECT_EQ(MessageOf({}, {{"KERND_LOG_LEVEL", "loud"}}),
            "--log-level (from KERND_LOG_LEVEL) is loud: must be one of debug|info|warning|error");
  EXPECT_EQ(MessageOf({"--log-format", "xml"}), "--log-format is xml: must be one of text|json");
  EXPECT_EQ(MessageOf({"--port-file", "a#b"}), "--port-file is a#b: " + std::string(kQuotesRule));
  EXPECT_EQ(MessageOf({"--io-threads", "257"}), "--io-threads is 257: must be from 1 to 256");
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

// Reading any of these would take for ever, or all memory; opening the pipe would wait for a writer.
TEST(Parse, OnlyRegularFilesOfBoundedSizeAreRead) {
  const Folder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/zero"), pipe, folder.path()}) {
    EXPECT_EQ(MessageOf({"--config", path}), "--config is " + path + ": must be a regular file that can be read");
  }
  const std::string line = "io-threads = 3\n";
  const std::string most = line + "#" + std::string((1 << 20) - line.size() - 1, 'x');
  EXPECT_EQ(MustParse({"--config", folder.Write("most", most)}).compute.io_threads, 3);
  const std::string more = folder.Write("more", most + "x");
  EXPECT_EQ(MessageOf({"--config", more}), "--config is " + more + ": must be a file of at most 1MiB");
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

TEST(Variables, OnesThatSetNothingAreTold) {
  const char* const environment[] = {"KERND_LOGLEVEL=debug", "PATH=/bin", "KERND_IO_THREDS=2",
                                     "KERND_FROBNICATE=1",   "KERND_",    "KERN_X=1",
                                     "KERND_HTTP_PORT=9464", nullptr};
  EXPECT_THAT(
      UnknownVariables(environment),
      ElementsAre("KERND_LOGLEVEL is not an option and sets nothing; did you mean KERND_LOG_LEVEL?",
                  "KERND_IO_THREDS is not an option and sets nothing; did you mean KERND_IO_THREADS?",
                  "KERND_FROBNICATE is not an option and sets nothing", "KERND_ is not an option and sets nothing",
                  "KERND_HTTP_PORT is not an option and sets nothing"));
}

TEST(Variables, OptionsAndWhatKubernetesSetsAreSilent) {
  std::vector<std::string> entries = {
      "KERND_CONFIG=/etc/kernd.toml",
      "KERND_ENDPOINT=10.0.0.1:50051",
      "KERND_SERVICE_HOST=10.0.0.1",
      "KERND_SERVICE_PORT=50051",
      "KERND_SERVICE_PORT_GRPC=50051",
      "KERND_PORT=tcp://10.0.0.1:50051",
      "KERND_PORT_50051_TCP=tcp://10.0.0.1:50051",
      "KERND_PORT_50051_TCP_PROTO=tcp",
      "KERND_PORT_50051_TCP_PORT=50051",
      "KERND_PORT_50051_TCP_ADDR=10.0.0.1",
      "KERND_PORT_53_UDP_ADDR=10.0.0.1",
      // Of a Service named kernd-metrics.
      "KERND_METRICS_SERVICE_HOST=10.0.0.2",
      "KERND_METRICS_PORT=tcp://10.0.0.2:9464",
      "KERND_METRICS_PORT_9464_TCP_ADDR=10.0.0.2",
  };
  for (const Option& option : OptionTable()) entries.push_back(VariableOf(option) + "=");
  std::vector<const char*> environment;
  for (const std::string& entry : entries) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  EXPECT_THAT(UnknownVariables(environment.data()), IsEmpty());
}

TEST(Variables, NoNameIsTooLongOrOdd) {
  const std::string entry = "KERND_" + std::string(100000, '_');
  const char* const environment[] = {entry.c_str(), "KERND_\n=", nullptr};
  const std::vector<std::string> lines = UnknownVariables(environment);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_LT(lines[0].size(), 400u);
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

}  // namespace
}  // namespace kernd::config
