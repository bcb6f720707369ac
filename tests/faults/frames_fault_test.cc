// Clients that speak HTTP/2 in order to do harm: half of a body on thousands of streams, streams that are reset as soon
// as they are opened, headers that never end, floods of SETTINGS and PING, refusals that nobody reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/faults/ordeal.h"
#include "tests/support/http2_client.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

constexpr char kInFlight[] = "kernd_requests_in_flight";

std::uint32_t StreamOf(int call) {
  return 2 * static_cast<std::uint32_t>(call) + 1;
}

// HEADERS and half of the body.
std::string HalfACall(int call, const std::string& body) {
  const std::string half = (MessagePrefix(body.size()) + body).substr(0, body.size() / 2);
  return CallHeaders(StreamOf(call), kMatmul, {{"kernd-body-bytes", std::to_string(body.size())}}) +
         Encode({FrameType::kData, 0, StreamOf(call), half});
}

// Waits until a gauge is at most `value`; false after 20 s.
bool Falls(const Daemon& daemon, const std::string& gauge, double value) {
  for (int tries = 0; tries < 4000; ++tries) {
    if (daemon.Metrics()[gauge] <= value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Connections with half of a call on each of so many streams. gRPC closes a connection with more streams than
// --max-concurrent-streams, but only once its client has acknowledged that limit: these never do.
std::vector<std::unique_ptr<Http2Client>> HalfSend(const Daemon& daemon, int connections, int streams) {
  const std::string body = SmallMatmul().SerializeAsString();
  std::vector<std::unique_ptr<Http2Client>> clients;
  for (int c = 0; c < connections; ++c) {
    clients.push_back(Http2Client::Connect(daemon.endpoint(), {.acknowledge_settings = false}));
    EXPECT_NE(clients.back(), nullptr);
    for (int s = 0; s < streams && clients.back() != nullptr; ++s)
      EXPECT_TRUE(clients.back()->Send(HalfACall(s, body)));
  }
  return clients;
}

// All of them fit into the budget, and are cut off as stalled while their connections stay.
TEST(Frames, HalfSentBodiesOnManyStreams) {
  const auto daemon = Daemon::Start(
      {"--body-budget", "256MiB", "--receive-stall", Size(0, 1) == 0 ? "3s" : "10s", "--log-calls", "false"});
  ASSERT_NE(daemon, nullptr);
  const int connections = 10, streams = Size(200, 1000);
  double most = 0;
  const auto harm = [&] {
    const auto clients = HalfSend(*daemon, connections, streams);
    for (int tries = 0; tries < 200 && most < connections * streams; ++tries) {
      most = std::max(most, daemon->Metrics()[kInFlight]);
    }
    // The other caller's bodies come and go.
    EXPECT_TRUE(Falls(*daemon, "kernd_body_budget_used_bytes", 64 << 10)) << "stalled bodies are awaited";
  };
  Endure(*daemon, {.act = harm, .peak_bytes = connections * streams * 20'000 + 32 * kMiB, .kept_bytes = 32 * kMiB});
  EXPECT_GT(most, connections * streams / 2);
  RecordProperty("most_in_flight_calls", std::to_string(most));
}

// More than fit: what a call costs beside its body counts, so the rest is refused. So is everybody else meanwhile, with
// a time to come back, which is when the stalled calls have been cut off.
TEST(Frames, HalfSentBodiesBeyondTheBudget) {
  constexpr char kRefused[] = "kernd_rejected_total{reason=\"BODY_BUDGET_FULL\"}";
  const auto daemon = Daemon::Start({"--body-budget", "8MiB", "--default-body-bytes", "1MiB", "--receive-stall", "3s"});
  ASSERT_NE(daemon, nullptr);
  constexpr int kMost = (8 << 20) / (16 << 10);
  const int streams = Size(2 * kMost, 10 * kMost);
  double most = 0, refused = 0;
  const auto harm = [&] {
    const auto clients = HalfSend(*daemon, 1, streams);
    // All streams are open before the first stalled one gives its place back, or nearly: those without one are refused.
    for (int tries = 0; tries < 1000 && refused < streams - kMost; ++tries) {
      auto metrics = daemon->Metrics();
      most = std::max(most, metrics["kernd_body_budget_used_bytes"]);
      refused = metrics[kRefused];
    }
    EXPECT_TRUE(Falls(*daemon, "kernd_body_budget_used_bytes", 64 << 10)) << "stalled bodies are awaited";
  };
  Endure(*daemon, {.act = harm, .refusals = OtherCaller::Refusals::kWithRetry});
  EXPECT_GT(most, 4 * kMiB) << "what a call costs beside its body is not counted";
  EXPECT_LE(most, 8 * kMiB);
  EXPECT_GT(refused, (streams - kMost) / 2) << "more calls were taken than the budget holds";
}

// Streams that are reset at once, as many as a connection may have at a time, then a PING to see that they were read.
// Faster than that, see README.md, "What is not held off".
TEST(Frames, StreamsResetAtOnce) {
  const auto daemon = Daemon::Start({"--log-calls", "false"});
  ASSERT_NE(daemon, nullptr);
  const int rounds = Size(20, 400);
  const auto harm = [&] {
    const auto client = Http2Client::Connect(daemon->endpoint());
    ASSERT_NE(client, nullptr);
    int call = 0;
    for (int round = 0; round < rounds; ++round) {
      std::string burst;
      for (int i = 0; i < 255; ++i, ++call) {
        burst += CallHeaders(StreamOf(call), kMatmul, {{"kernd-body-bytes", "128"}}) + ResetStream(StreamOf(call));
      }
      // An ordinary call behind them: answered when they have been worked off.
      const std::string body = SmallMatmul().SerializeAsString();
      ASSERT_TRUE(client->Send(burst + CallHeaders(StreamOf(call), kMatmul) + CallBody(StreamOf(call), body)));
      ASSERT_TRUE(client->AwaitEnd(StreamOf(call++), 60'000).has_value()) << "round " << round;
    }
  };
  Endure(*daemon, {.act = harm});
  RecordProperty("reset_streams", 255 * rounds);
}

// A client that opens more streams than it may, and knows it, loses its connection.
TEST(Frames, MoreStreamsThanAllowed) {
  const auto daemon = Daemon::Start({"--max-concurrent-streams", "100"});
  ASSERT_NE(daemon, nullptr);
  const auto harm = [&] {
    const auto client = Http2Client::Connect(daemon->endpoint());
    ASSERT_NE(client, nullptr);
    const std::string body = SmallMatmul().SerializeAsString();
    for (int s = 0; s < 50; ++s) ASSERT_TRUE(client->Send(HalfACall(s, body)));
    ASSERT_TRUE(daemon->WaitForMetric("kernd_ready", 1));
    for (int s = 50; s < 1000 && client->Send(HalfACall(s, body)); ++s) {
    }
    while (client->Read()) {
    }
    EXPECT_TRUE(client->closed());
  };
  Endure(*daemon, {.act = harm});
}

// Refusals that their client never reads, on more streams than a connection may have: gRPC reads no further while its
// own frames are not taken.
TEST(Frames, RefusalsThatNobodyReads) {
  const auto daemon = Daemon::Start({"--log-calls", "false"});
  ASSERT_NE(daemon, nullptr);
  const int calls = Size(10'000, 40'000);
  const std::string path = "/" + std::string(2000, 'x');
  const auto harm = [&] {
    const auto client =
        Http2Client::Connect(daemon->endpoint(), {.acknowledge_settings = false, .receive_buffer = 4096});
    ASSERT_NE(client, nullptr);
    const double before = CallsEnded(*daemon, "UNIMPLEMENTED");
    for (int call = 0; call < calls && client->Send(CallHeaders(StreamOf(call), path), 1000); ++call) {
    }
    for (int tries = 0; tries < 10'000 && CallsEnded(*daemon, "UNIMPLEMENTED") < before + calls / 4; ++tries) {
    }
    EXPECT_GE(CallsEnded(*daemon, "UNIMPLEMENTED"), before + calls / 4);
  };
  Endure(*daemon, {.act = harm, .peak_bytes = calls * 20'000 + 32 * kMiB, .kept_bytes = 32 * kMiB});
}

struct Flood {
  std::string name;
  std::function<std::string(int)> frame;  // of the n-th
};

// Frames that cost their sender nothing and ask for nothing. The daemon ends the connection, reads no more of it while
// its own answers are unread, or drops them as they come.
TEST(Frames, Floods) {
  const int frames = Size(300'000, 10'000'000);
  const std::vector<Flood> floods = {
      {"settings",
       [](int) {
         return Encode({FrameType::kSettings, 0, 0, ""});
       }},
      {"ping",
       [](int) {
         return Encode({FrameType::kPing, 0, 0, "12345678"});
       }},
      {"window_updates",
       [](int) {
         return Encode({FrameType::kWindowUpdate, 0, 0, std::string("\0\0\0\1", 4)});
       }},
      {"resets_of_nothing", [](int) { return ResetStream(1); }},
      {"endless_headers",  // in frames above the limit of 8 KiB; below it, see README.md
       [](int n) {
         if (n == 0) return Encode({FrameType::kHeaders, 0, 1, CallHeaderBlock(kMatmul)});
         std::string fields;
         for (int i = 0; i < 100; ++i) fields += HeaderField("x-" + std::to_string(i), std::string(100, 'a'));
         return Encode({FrameType::kContinuation, 0, 1, fields});
       }},
      {"empty_continuations",
       [](int n) {
         if (n == 0) return Encode({FrameType::kHeaders, 0, 1, CallHeaderBlock(kMatmul)});
         return Encode({FrameType::kContinuation, 0, 1, ""});
       }},
      {"empty_data",
       [](int n) {
         return n == 0 ? CallHeaders(1, kMatmul) : Encode({FrameType::kData, 0, 1, ""});
       }},
  };
  for (const Flood& flood : floods) {
    SCOPED_TRACE(flood.name);
    const auto daemon = Daemon::Start();
    ASSERT_NE(daemon, nullptr);
    const auto harm = [&] {
      const auto client = Http2Client::Connect(daemon->endpoint());
      ASSERT_NE(client, nullptr);
      bool taken = true;
      for (int n = 0; n < frames && taken;) {
        std::string batch;
        for (const int end = std::min(n + 1000, frames); n < end; ++n) batch += flood.frame(n);
        taken = client->Send(batch, 1000);
      }
    };
    Endure(*daemon, {.act = harm, .peak_bytes = 128 * kMiB, .kept_bytes = 32 * kMiB, .name = flood.name});
  }
}

}  // namespace
}  // namespace kernd::testing
