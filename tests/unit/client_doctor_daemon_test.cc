// kernctl doctor on the daemon: its checks, and its probe on servers that are no kernd.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "tests/unit/client_doctor_case.h"

namespace kernd::cli::doctor {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Daemon, SpoiltTest,
    testing::Values(Case{"Refused", NoDaemon, [](Facts&) {}, CheckPort, kBad, "nothing listens there", "start kernd"},
                    Case{"RefusedElsewhere", NoDaemon, [](Facts& f) { f.daemon.endpoint.local = false; }, CheckPort,
                         kBad, "nothing listens there", "--listen 0.0.0.0:50051"},
                    Case{"NoName", NoDaemon,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kNoName, "unknown"};
                         },
                         CheckPort, kBad, "does not resolve", "correct --endpoint"},
                    Case{"NoSocketFile", NoDaemon,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kNoFile, "none"};
                         },
                         CheckPort, kBad, "no such socket", "start kernd --listen"},
                    Case{"Dropped", NoDaemon,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kSilent, ""};
                         },
                         CheckPort, kBad, "no answer", "firewall"},
                    Case{"OnlyThroughTheProxy", Well,
                         [](Facts& f) {
                           f.daemon.endpoint.failure = {Trouble::kUnreachable, "no route"};
                           f.daemon.endpoint.proxy = true;
                         },
                         CheckPort, kOkay, "through the proxy", ""},
                    Case{"Http1", Well, [](Facts& f) { f.daemon.endpoint.speaks = Speaks::kHttp1; }, CheckPort, kBad,
                         "HTTP/1", "50051"},
                    Case{"Tls", Well, [](Facts& f) { f.daemon.endpoint.speaks = Speaks::kTls; }, CheckPort, kBad, "TLS",
                         "plain text"},
                    Case{"Ssh", Well,
                         [](Facts& f) {
                           f.daemon.endpoint.speaks = Speaks::kOther;
                           f.daemon.endpoint.words = "SSH-2.0";
                         },
                         CheckPort, kBad, "SSH-2.0", "correct --endpoint"},
                    Case{"Mute", Well, [](Facts& f) { f.daemon.endpoint.speaks = Speaks::kNothing; }, CheckPort, kBad,
                         "says nothing", "hangs"},
                    Case{"XdsTarget", Well, [](Facts& f) { f.daemon.endpoint.target.kind = Target::Kind::kOther; },
                         CheckPort, kNone, "only gRPC understands", ""},
                    Case{"Proxy", NoDaemon, [](Facts& f) { f.daemon.endpoint.proxy = true; }, CheckProxy, kWarn,
                         "HTTP proxy", "no_proxy"},
                    Case{"AllOptionsInUse", Well, [](Facts&) {}, CheckOptions, kOkay, "have an effect", ""},
                    Case{"OptionsOfAnotherBackend", NoGpu,
                         [](Facts& f) {
                           f.daemon.http.options_not_used = {"--tuning-file has no effect: the CPU serves"};
                         },
                         CheckOptions, kWarn, "--tuning-file has no effect", "leave them out"},
                    Case{"OptionsNotKnown", NoDaemon, [](Facts&) {}, CheckOptions, kNone, "not known", ""},
                    Case{"OtherVersion", Well, [](Facts& f) { f.daemon.capabilities.value->version = "0.2.0"; },
                         CheckVersions, kWarn, "kernd 0.2.0", "use kernctl 0.2.0"},
                    Case{"OtherPatch", Well, [](Facts& f) { f.daemon.capabilities.value->version = "0.1.7"; },
                         CheckVersions, kOkay, "kernd 0.1.7", ""},
                    Case{"NotServing", Well,
                         [](Facts& f) {
                           f.daemon.health.value = client::HealthStatus::kNotServing;
                           f.daemon.http.state = "starting";
                           f.daemon.http.why = "warming up, 3 of 7";
                         },
                         CheckHealth, kBad, "NOT_SERVING, starting: warming up, 3 of 7", "kernctl health --wait"},
                    Case{"Lost", Well,
                         [](Facts& f) {
                           f.daemon.health.value = client::HealthStatus::kNotServing;
                           f.daemon.http.state = "lost";
                         },
                         CheckHealth, kBad, "lost", "restart"},
                    Case{"NoHealthService", Well,
                         [](Facts& f) {
                           f.daemon.health = {std::nullopt, "UNIMPLEMENTED: "};
                         },
                         CheckHealth, kBad, "UNIMPLEMENTED", "no kernd"},
                    Case{"GpuNotUsed", Well,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"GPU 0: too old"}; }, CheckBackend,
                         kWarn, "GPU 0: too old", "restart kernd"},
                    Case{"CpuAsAskedFor", NoGpu,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"no GPU: --backend cpu"}; },
                         CheckBackend, kOkay, "not used: no GPU", ""},
                    Case{"CpuAsThereIsNoGpu", NoGpu,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"no GPU: built without CUDA"}; },
                         CheckBackend, kOkay, "built without CUDA", ""},
                    Case{"CpuAsTheDriverIsTooOld", Well,
                         [](Facts& f) { f.daemon.capabilities.value->not_used = {"no GPU: the driver is too old"}; },
                         CheckBackend, kWarn, "too old", "restart kernd"},
                    Case{"GpuUnsupported", Well,
                         [](Facts& f) { f.daemon.capabilities.value->devices[0].tier = client::Tier::kUnsupported; },
                         CheckBackend, kBad, "UNSUPPORTED", "another build"},
                    Case{"WrongResult", Well, [](Facts& f) { f.daemon.call.value->right = false; }, CheckCall, kBad,
                         "WRONG", "kernctl verify"},
                    Case{"CallFails", Well,
                         [](Facts& f) {
                           f.daemon.call = {std::nullopt, "INTERNAL: broken"};
                         },
                         CheckCall, kBad, "INTERNAL: broken", "log"},
                    Case{"SlowCall", Well, [](Facts& f) { f.daemon.call.value->client_us = 3e6; }, CheckCall, kWarn,
                         "3000000 us", "kernctl top"},
                    Case{"NoHttp", Well,
                         [](Facts& f) {
                           f.daemon.http.failure = {Trouble::kRefused, "Connection refused"};
                         },
                         CheckHttp, kWarn, "Connection refused", "--http"},
                    Case{"OtherHttp", Well, [](Facts& f) { f.daemon.http.is_kernd = false; }, CheckHttp, kWarn,
                         "no kernd", "--http"},
                    Case{"ClockFiveMinutesAhead", Well, [](Facts& f) { f.daemon.http.clock_ahead = absl::Minutes(5); },
                         CheckClock, kBad, "4m59.9s ahead of", "chrony"},
                    Case{"ClockFourSecondsBehind", Well,
                         [](Facts& f) { f.daemon.http.clock_ahead = -absl::Seconds(4); }, CheckClock, kWarn, "behind",
                         "chrony"},
                    Case{"ClockWithinASlowExchange", Well,
                         [](Facts& f) {
                           f.daemon.http.clock_ahead = absl::Seconds(4);
                           f.daemon.http.uncertainty = absl::Seconds(3);
                         },
                         CheckClock, kOkay, "within 7000 ms", ""},
                    Case{"ClockNotSynchronised", NoDaemon, [](Facts& f) { f.machine.clock_synchronised = false; },
                         CheckClock, kWarn, "not synchronised", "chrony"}),
    NameOfCase);

// Takes one connection after the other, waits for the client's first bytes, says `words` and hangs up.
class Server {
 public:
  explicit Server(std::string words) {
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    socklen_t size = sizeof(address);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, words = std::move(words)] {
      for (int peer; (peer = ::accept(fd_, nullptr, nullptr)) >= 0; ::close(peer)) {
        char byte;
        if (::recv(peer, &byte, 1, 0) == 1) ::send(peer, words.data(), words.size(), MSG_NOSIGNAL);
        ::shutdown(peer, SHUT_WR);
        while (::recv(peer, &byte, 1, 0) == 1) {
        }
      }
    });
  }
  ~Server() {
    ::shutdown(fd_, SHUT_RDWR);
    thread_.join();
    ::close(fd_);
  }
  std::string endpoint;

 private:
  int fd_;
  std::thread thread_;
};

TEST(ProbeTest, TellsWhoAnswers) {
  const std::pair<std::string, Speaks> servers[] = {
      {std::string("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\1", 15), Speaks::kHttp2},
      {"HTTP/1.1 400 Bad Request\r\n\r\n", Speaks::kHttp1},
      {std::string("\x15\3\1\0\2\2\x46", 7), Speaks::kTls},
      {"SSH-2.0-OpenSSH_9.2\r\n", Speaks::kOther},
      {"", Speaks::kNothing},
  };
  for (const auto& [words, speaks] : servers) {
    const Server server(words);
    const EndpointFacts facts = Probe(server.endpoint, absl::Seconds(10));
    EXPECT_EQ(facts.failure.trouble, Trouble::kNone) << facts.failure.why;
    EXPECT_EQ(static_cast<int>(facts.speaks), static_cast<int>(speaks)) << words;
    EXPECT_TRUE(facts.local);
  }
}

TEST(ProbeTest, TellsWhyNobodyAnswers) {
  std::string refused;
  {
    const Server server("");
    refused = server.endpoint;
  }
  EXPECT_EQ(Probe(refused, absl::Seconds(10)).failure.trouble, Trouble::kRefused);
  EXPECT_EQ(Probe("unix:/nowhere/kernd.sock", absl::Seconds(10)).failure.trouble, Trouble::kNoFile);
  EXPECT_EQ(Probe("unix-abstract:kernd-nobody", absl::Seconds(10)).failure.trouble, Trouble::kRefused);
  EXPECT_EQ(Probe("no such name:1", absl::Seconds(10)).failure.trouble, Trouble::kNoName);
  EXPECT_EQ(Probe("xds:///a", absl::Seconds(10)).target.kind, Target::Kind::kOther);
}

TEST(ProbeTest, Targets) {
  const Target v6 = ParseTarget("dns:///[::1]:50051");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, "50051");
  EXPECT_TRUE(IsLocal(v6));
  EXPECT_EQ(ParseTarget("host").port, "");
  EXPECT_EQ(ParseTarget("unix:///run/kernd.sock").path, "/run/kernd.sock");
  EXPECT_FALSE(IsLocal(ParseTarget("kernd.example:50051")));
  EXPECT_EQ(HttpAddressOf("[::1]:50051"), "[::1]:9464");
  EXPECT_EQ(HttpAddressOf("node7:50051"), "node7:9464");
  EXPECT_EQ(HttpAddressOf("unix:/run/kernd.sock"), "127.0.0.1:9464");
}

}  // namespace
}  // namespace kernd::cli::doctor
