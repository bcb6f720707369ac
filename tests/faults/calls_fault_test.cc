// Clients of ordinary calls that die, cancel, have no time, or move a byte now and then.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/faults/ordeal.h"
#include "tests/support/http2_client.h"
#include "tests/support/paths.h"
#include "tests/support/pending_call.h"
#include "tests/support/raw_client.h"
#include "tests/support/requests.h"

namespace kernd::testing {
namespace {

using grpc::StatusCode;

constexpr char kMemory[] = "kernd_memory_used_bytes{pool=\"memory\"}";
constexpr char kBodies[] = "kernd_body_budget_used_bytes";

// Waits until a gauge is at least `value`; false after 20 s.
bool Reaches(const Daemon& daemon, const std::string& gauge, double value) {
  for (int tries = 0; tries < 4000; ++tries) {
    if (daemon.Metrics()[gauge] >= value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// A child process that has gone as far as `stage`.
class DoomedClient {
 public:
  DoomedClient(const std::string& endpoint, std::string stage) {
    int ends[2];
    if (pipe(ends) != 0) return;
    std::string program = ProgramPath("fault_client"), target = endpoint;
    char* argv[] = {program.data(), target.data(), stage.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char word[6] = {};
    there_ = read(ends[0], word, 5) == 5 && std::string(word) == "there";
    close(ends[0]);
  }
  ~DoomedClient() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  DoomedClient(DoomedClient&&) = delete;
  bool there() const { return there_; }

 private:
  pid_t pid_ = -1;
  bool there_ = false;
};

TEST(Calls, ClientsKilledAtEachStage) {
  const auto daemon = Daemon::Start({"--cpu-threads", "1"});
  ASSERT_NE(daemon, nullptr);
  const int repeats = Size(2, 25);
  const auto harm = [&] {
    for (int i = 0; i < repeats; ++i) {
      for (const char* stage : {"connecting", "sending", "computing", "receiving"}) {
        SCOPED_TRACE(stage);
        const DoomedClient client(daemon->endpoint(), stage);
        ASSERT_TRUE(client.there());
        // Told by what it holds; nobody else holds as much.
        ASSERT_TRUE(stage != std::string("sending") || Reaches(*daemon, kBodies, kMiB));
        ASSERT_TRUE(stage != std::string("computing") || Reaches(*daemon, kMemory, kMiB));
        ASSERT_TRUE(stage != std::string("receiving") || Reaches(*daemon, kMemory, 16 * kMiB));
      }
      // All that they held is free before the next round begins.
      ASSERT_TRUE(daemon->WaitForMetric(kMemory, 0));
    }
  };
  Endure(*daemon, {.act = harm, .peak_bytes = 128 * kMiB});
}

// A call of each kind: answered at once, computed for some milliseconds, with a reply of 1 MiB.
std::vector<std::string> Requests() {
  v1::MatmulRequest outer;
  *outer.mutable_matmul()->mutable_a() = F32({512, 1});
  *outer.mutable_matmul()->mutable_b() = F32({1, 512});
  v1::MatmulRequest cube;
  *cube.mutable_matmul()->mutable_a() = *cube.mutable_matmul()->mutable_b() = F32({384, 384});
  return {SmallMatmul().SerializeAsString(), cube.SerializeAsString(), outer.SerializeAsString()};
}

// Calls on one channel that are all under way at once; counts how they end.
std::map<StatusCode, int> Burst(const std::shared_ptr<grpc::Channel>& channel, const std::vector<std::string>& requests,
                                int calls, const std::function<std::chrono::microseconds()>& deadline) {
  struct Pending {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
    grpc::ByteBuffer answer;
    grpc::Status status;
  };
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  std::vector<Pending> pending(static_cast<std::size_t>(calls));
  std::map<StatusCode, int> ends;
  std::thread collect([&] {
    for (int i = 0; i < calls; ++i) {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      ++ends[static_cast<Pending*>(tag)->status.error_code()];
    }
  });
  for (std::size_t i = 0; i < pending.size(); ++i) {
    Pending& call = pending[i];
    const std::string& request = requests[i % requests.size()];
    call.context.AddMetadata("kernd-body-bytes", std::to_string(request.size()));
    call.context.set_deadline(std::chrono::system_clock::now() + deadline());
    const grpc::Slice slice(request);
    call.reader = stub.PrepareUnaryCall(&call.context, kMatmul, grpc::ByteBuffer(&slice, 1), &queue);
    call.reader->StartCall();
    call.reader->Finish(&call.answer, &call.status, &call);
  }
  collect.join();
  return ends;
}

TEST(Calls, CancelledAtRandomPoints) {
  const auto daemon = Daemon::Start({"--cpu-threads", "1"});
  ASSERT_NE(daemon, nullptr);
  constexpr int kCallers = 8;
  const int calls = Size(1000, 20'000) / kCallers;
  const std::vector<std::string> requests = Requests();
  std::mutex mutex;
  std::map<StatusCode, int> ends;
  const auto harm = [&] {
    ends.clear();
    std::vector<std::thread> callers;
    for (int c = 0; c < kCallers; ++c) {
      callers.emplace_back([&, c] {
        std::mt19937 random(static_cast<unsigned>(c));
        const auto channel = Connect(daemon->endpoint());
        for (int i = 0; i < calls; ++i) {
          v1::MatmulRequest request;
          request.ParseFromString(requests[random() % requests.size()]);
          PendingCall call(channel, request, std::chrono::seconds(60), kMatmul);
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 6000));
          call.Cancel();
          const StatusCode code = call.Finish().error_code();
          const std::lock_guard lock(mutex);
          ++ends[code];
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    for (const auto& [code, count] : ends) {
      EXPECT_TRUE(code == StatusCode::OK || code == StatusCode::CANCELLED) << count << " calls ended with " << code;
    }
  };
  Endure(*daemon, {.act = harm});
  EXPECT_GT(ends[StatusCode::CANCELLED], kCallers) << "the seeds let every call end before it was cancelled";
}

TEST(Calls, StormOfDeadlines) {
  const auto daemon = Daemon::Start({"--cpu-threads", "1", "--max-queued-calls", "64"});
  ASSERT_NE(daemon, nullptr);
  const int calls = Size(5000, 50'000);
  std::map<StatusCode, int> ends;
  // QUEUE_FULL is what the design tells everybody while the queue is full, with a time to come back.
  const auto harm = [&] {
    std::mt19937 random(5);
    const auto channel = Connect(daemon->endpoint());
    ends.clear();
    for (int left = calls; left > 0; left -= 1000) {
      for (const auto& [code, count] :
           Burst(channel, {Requests()[1]}, 1000, [&] { return std::chrono::microseconds(random() % 3000); })) {
        ends[code] += count;
      }
    }
    for (const auto& [code, count] : ends) {
      EXPECT_TRUE(code == StatusCode::OK || code == StatusCode::DEADLINE_EXCEEDED ||
                  code == StatusCode::RESOURCE_EXHAUSTED)
          << count << " calls ended with " << code;
    }
  };
  Endure(*daemon, {.act = harm, .refusals = OtherCaller::Refusals::kWithRetry, .peak_bytes = 192 * kMiB});
  EXPECT_GT(ends[StatusCode::DEADLINE_EXCEEDED], 0);
}

// Readers whose windows never open and writers of a byte at a time are cut off, each by its own stall.
TEST(Calls, SlowReadersAndWriters) {
  const auto daemon = Daemon::Start({"--send-stall", "300ms", "--receive-stall", "300ms"});
  ASSERT_NE(daemon, nullptr);
  const int clients = Size(16, 200);
  const std::string outer = Requests()[2];
  Endure(
      *daemon,
      {.act =
           [&] {
             std::vector<std::unique_ptr<Http2Client>> readers, writers;
             for (int i = 0; i < clients; ++i) {
               readers.push_back(Http2Client::Connect(daemon->endpoint(), {.stream_window = 0}));
               ASSERT_NE(readers.back(), nullptr);
               EXPECT_TRUE(readers.back()->Send(
                   CallHeaders(1, kMatmul, {{"kernd-body-bytes", std::to_string(outer.size())}}) + CallBody(1, outer)));
               writers.push_back(Http2Client::Connect(daemon->endpoint()));
               ASSERT_NE(writers.back(), nullptr);
               EXPECT_TRUE(writers.back()->Send(CallHeaders(1, kMatmul, {{"kernd-body-bytes", "1000"}}) +
                                                Encode({FrameType::kData, 0, 1, MessagePrefix(1000)})));
             }
             for (const auto& reader : readers) ASSERT_EQ(reader->AwaitEnd(1), 0u);
             for (const auto& writer : writers) {
               bool ended = false;
               for (int i = 0; i < 1000 && !ended; ++i) {
                 EXPECT_TRUE(writer->Send(Encode({FrameType::kData, 0, 1, "x"})));
                 while (const std::optional<Frame> frame = writer->Read(10)) {
                   ended = ended || frame->type == FrameType::kResetStream || (frame->type == FrameType::kHeaders);
                 }
               }
               EXPECT_TRUE(ended);
             }
             EXPECT_TRUE(daemon->WaitForMetric(kMemory, 0));
           },
       .peak_bytes = (64 + 3 * clients) * kMiB});
}

}  // namespace
}  // namespace kernd::testing
