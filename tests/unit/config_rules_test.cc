// server/config: the defaults, and the rules of Validate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/config/server_options.h"
#include "tests/unit/config_support.h"

namespace kernd::config {
namespace {

using ::testing::ElementsAre;

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
  for (const int cpus : {1, 2, 3, 64, 1024, 4096}) {
    for (const std::int64_t memory : {32 * kMiB, 128 * kMiB, 512 * kMiB, kGiB, 4096 * kGiB}) {
      const ServerOptions options = DefaultOptions({.cpus = cpus, .memory_bytes = memory});
      EXPECT_TRUE(Validate(options).ok()) << cpus << " CPUs, " << memory << " bytes: " << Validate(options);
      EXPECT_GE(options.compute.io_threads, 1);
      EXPECT_LE(options.compute.io_threads, 8);
    }
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
      {"--resident-memory is 101%: must be at most 100%", [](auto& o) { o.sessions.resident = {.percent = 101}; }},
      {"--resident-memory is -1", [](auto& o) { o.sessions.resident = {.bytes = -1}; }},
      {"--session-quota is 101%: must be at most 100%", [](auto& o) { o.sessions.quota = {.percent = 101}; }},
      {"--max-sessions is 0: must be from 1", [](auto& o) { o.sessions.max_sessions = 0; }},
      {"--session-lease is 25h: must be from 1s to 24h", [](auto& o) { o.sessions.lease = absl::Hours(25); }},
      {"--fill-timeout is 0: must be from 100ms", [](auto& o) { o.sessions.fill_timeout = absl::ZeroDuration(); }},
      {"--shared-memory-socket is memory: must be an absolute path",
       [](auto& o) { o.shared_memory.socket = "memory"; }},
      {"--shared-memory-socket is /xxx", [](auto& o) { o.shared_memory.socket = "/" + std::string(107, 'x'); }},
      {"--shared-memory-limit is 1: must be from 4KiB", [](auto& o) { o.shared_memory.limit_bytes = 1; }},
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
      {"--cpu-threads is 1025: must be from 1 to 1024", [](auto& o) { o.compute.cpu_threads = 1025; }},
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

}  // namespace
}  // namespace kernd::config
