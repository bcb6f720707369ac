// server/telemetry: the HTTP pages over real connections, of clients that behave and of those that do not.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/telemetry/http_message.h"
#include "server/telemetry/http_server.h"
#include "server/telemetry/process_stats.h"
#include "server/telemetry/status_page.h"

namespace kernd::telemetry {
namespace {

using ::testing::HasSubstr;

struct Fixture {
  explicit Fixture(absl::Duration connection_time = absl::Seconds(5),
                   const std::string& metrics = "# HELP kernd_ready x\n") {
    auto started =
        HttpServer::Start("127.0.0.1", 0,
                          {.metrics = [metrics] { return metrics; },
                           .ready = [this] { return ready ? absl::OkStatus() : absl::UnavailableError("draining"); },
                           .status = [] { return std::string("{}\n"); }},
                          connection_time);
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) server = *std::move(started);
  }

  httplib::Result Get(const std::string& path) const {
    httplib::Client client("127.0.0.1", server->port());
    return client.Get(path.c_str());
  }

  std::atomic<bool> ready = true;
  std::unique_ptr<HttpServer> server;
};

void ConnectTo(int fd, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
}

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ConnectTo(fd, port);
  return fd;
}

void Send(int fd, const std::string& text) {
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

// All that the other side sends until it closes.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

TEST(Http, Pages) {
  const Fixture http;
  ASSERT_NE(http.server, nullptr);
  EXPECT_EQ(http.server->address(), "127.0.0.1:" + std::to_string(http.server->port()));
  const auto metrics = http.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "# HELP kernd_ready x\n");
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  const auto health = http.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  const auto page = http.Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->body, std::string(kStatusPage));
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page->get_header_value("Content-Security-Policy"), std::string(kStatusPagePolicy));
  EXPECT_EQ(page->get_header_value("X-Content-Type-Options"), "nosniff");
  const auto status = http.Get("/status.json");
  ASSERT_TRUE(status);
  EXPECT_EQ(status->body, "{}\n");
  EXPECT_EQ(status->get_header_value("Content-Type"), "application/json");
  EXPECT_EQ(status->get_header_value("Cache-Control"), "no-store");
  const auto none = http.Get("/etc/passwd");
  ASSERT_TRUE(none);
  EXPECT_EQ(none->status, 404);
}

TEST(Http, ReadinessSaysWhyNot) {
  Fixture http;
  ASSERT_NE(http.server, nullptr);
  EXPECT_EQ(http.Get("/readyz")->status, 200);
  http.ready = false;
  const auto answer = http.Get("/readyz");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(answer->body, "draining\n");
}

TEST(Http, HeadIsGetWithoutTheBody) {
  const Fixture http;
  for (const char* path : {"/", "/metrics", "/status.json", "/healthz", "/nothing"}) {
    const int get = Connect(http.server->port()), head = Connect(http.server->port());
    Send(get, std::string("GET ") + path + " HTTP/1.1\r\n\r\n");
    Send(head, std::string("HEAD ") + path + " HTTP/1.1\r\n\r\n");
    const std::string whole = ReadAll(get);
    EXPECT_EQ(ReadAll(head), whole.substr(0, whole.find("\r\n\r\n") + 4)) << path;
    close(get);
    close(head);
  }
}

// The body is announced and never sent: an answer that waited for it would never come.
TEST(Http, OtherMethodsAreRefusedAtOnceAndTold) {
  const Fixture http(absl::Hours(1));
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"}) {
    const int fd = Connect(http.server->port());
    Send(fd, std::string(method) + " /metrics HTTP/1.1\r\nContent-Length: 1000\r\n\r\n");
    const std::string answer = ReadAll(fd);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n")) << method << ": " << answer;
    EXPECT_THAT(answer, HasSubstr("\r\nAllow: GET, HEAD\r\n"));
    close(fd);
  }
}

// Whoever sends a body before reading the answer has the answer all the same: closing at once would reset the
// connection.
TEST(Http, ABodyDoesNotCostTheAnswer) {
  const Fixture http;
  const int fd = Connect(http.server->port());
  Send(fd, "POST /metrics HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + std::string(300000, 'x'));
  EXPECT_TRUE(ReadAll(fd).starts_with("HTTP/1.1 405 "));
  close(fd);
}

TEST(Http, APortIsTakenOnce) {
  const Fixture http;
  const auto second = HttpServer::Start("127.0.0.1", http.server->port(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(http.server->address()));
}

// None of these waits for more: what cannot become a request is answered at its first wrong byte.
TEST(Http, WhatIsNoRequestIsAnsweredAtOnce) {
  const Fixture http(absl::Hours(1));
  for (const std::string& request :
       {std::string("\r\n\r\n"), std::string("GET\r\n"), std::string("GET /\r\n"), std::string("GET / HTTP/9.9\r\n"),
        std::string("GET  HTTP/1.1\r\n"), std::string("GET /a b HTTP/1.1\r\n"), std::string("get / HTTP/1.1\r\n"),
        std::string("GET /\x7f HTTP/1.1\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        std::string("\x16\x03\x01\x02", 4), std::string(1, '\0'), std::string(17, 'A')}) {
    const int fd = Connect(http.server->port());
    Send(fd, request);
    EXPECT_TRUE(ReadAll(fd).starts_with("HTTP/1.1 400 Bad Request\r\n")) << request;
    close(fd);
  }
}

TEST(Http, EndlessRequestsAreRefused) {
  const Fixture http(absl::Hours(1));
  for (const std::string& request : {"GET /" + std::string(kMaxRequestHeadBytes, 'a'),
                                     "GET / HTTP/1.1\r\n" + std::string(2 * kMaxRequestHeadBytes, 'h')}) {
    const int fd = Connect(http.server->port());
    Send(fd, request);
    EXPECT_TRUE(ReadAll(fd).starts_with("HTTP/1.1 431 ")) << request.substr(0, 20);
    close(fd);
  }
}

TEST(Http, RequestsMayComeInPiecesAndOddShapes) {
  const Fixture http;
  for (const std::string& request :
       {std::string("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"), std::string("GET /healthz HTTP/1.0\r\n\r\n"),
        std::string("GET /healthz?verbose=1 HTTP/1.1\n\n"), std::string("GET /healthz HTTP/1.1\nHost: a\n\n")}) {
    const int fd = Connect(http.server->port());
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    for (const char c : request) Send(fd, std::string(1, c));
    EXPECT_TRUE(ReadAll(fd).starts_with("HTTP/1.1 200 OK\r\n")) << request;
    close(fd);
  }
}

// Connections may last an hour here: without cutting them off, Stop would not come back.
TEST(Http, StopCutsOffWhoHasSentHalfARequest) {
  Fixture http(absl::Hours(1));
  std::vector<int> fds;
  for (int i = 0; i < 8; ++i) {
    fds.push_back(Connect(http.server->port()));
    Send(fds.back(), "GET /met");
  }
  http.server->Stop();
  for (const int fd : fds) {
    EXPECT_EQ(ReadAll(fd), "");
    close(fd);
  }
  http.server->Stop();
}

TEST(Http, TimeIsCountedForTheWholeConnection) {
  const Fixture http(absl::Milliseconds(50));
  const int fd = Connect(http.server->port());
  // A byte at a time, for ever: a limit for each read would never be reached.
  while (send(fd, "a", 1, MSG_NOSIGNAL) == 1) std::this_thread::yield();
  close(fd);
  EXPECT_EQ(http.Get("/healthz")->status, 200);
}

// Connections may last an hour here: a server that waited for any of them would answer nobody else.
TEST(Http, ProbesAreAnsweredBesideConnectionsThatStall) {
  const std::string page(8 << 20, 'm');  // more than the sockets' buffers hold
  Fixture http(absl::Hours(1), page);
  std::vector<int> fds;
  for (std::size_t i = 0; i < HttpServer::kMaxConnections / 2; ++i) {
    const int silent = Connect(http.server->port()), half = Connect(http.server->port()),
              unread = Connect(http.server->port());
    Send(half, "GET /healthz HT");
    Send(unread, "GET /metrics HTTP/1.1\r\n\r\n");
    fds.insert(fds.end(), {silent, half, unread});
    const auto health = http.Get("/healthz");
    ASSERT_TRUE(health) << i;
    EXPECT_EQ(health->status, 200);
    // The half request goes on by a byte.
    send(half, "T", 1, MSG_NOSIGNAL);
  }
  const auto metrics = http.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->body, page);
  for (const int fd : fds) close(fd);
}

TEST(Http, TheOldestMakesRoomForTheNewest) {
  const Fixture http(absl::Hours(1));
  std::vector<int> fds;
  for (std::size_t i = 0; i < HttpServer::kMaxConnections; ++i) fds.push_back(Connect(http.server->port()));
  EXPECT_EQ(http.Get("/healthz")->status, 200);
  EXPECT_EQ(ReadAll(fds[0]), "") << "closed, unanswered";
  Send(fds.back(), "GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(fds.back()), HasSubstr(" 200 OK")) << "the others are still there";
  for (const int fd : fds) close(fd);
}

TEST(Http, WhoHasItsAnswerMakesRoomFirst) {
  const Fixture http(absl::Hours(1));
  std::vector<int> fds;
  for (std::size_t i = 0; i < HttpServer::kMaxConnections; ++i) fds.push_back(Connect(http.server->port()));
  Send(fds.back(), "GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(fds.back()), HasSubstr(" 200 OK"));  // and does not close
  EXPECT_EQ(http.Get("/healthz")->status, 200);
  Send(fds[0], "GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(fds[0]), HasSubstr(" 200 OK"));
  for (const int fd : fds) close(fd);
}

TEST(Http, ManyStartsAndStopsLeaveNothingBehind) {
  { const Fixture once; }  // what the library opens once
  const ProcessStats before = ReadProcessStats();
  for (int i = 0; i < 50; ++i) {
    Fixture http;
    if (i % 2 == 0) {
      EXPECT_EQ(http.Get("/healthz")->status, 200);
    }
  }
  EXPECT_EQ(ReadProcessStats().open_fds, before.open_fds);
  EXPECT_EQ(ReadProcessStats().threads, before.threads);
}

// What other parts of a daemon may have used up; a probe that fails then would have it killed.
TEST(Http, AnswersWhenEveryDescriptorIsTaken) {
  const Fixture http;
  EXPECT_EQ(http.Get("/healthz")->status, 200);  // by now the server has its reserve
  const int first = socket(AF_INET, SOCK_STREAM, 0), second = socket(AF_INET, SOCK_STREAM, 0);
  std::vector<int> rest;
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit low = {static_cast<rlim_t>(second + 8), old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int fd; (fd = dup(first)) >= 0;) rest.push_back(fd);
  for (const int fd : {first, second}) {
    ConnectTo(fd, http.server->port());
    Send(fd, "GET /healthz HTTP/1.1\r\n\r\n");
    EXPECT_THAT(ReadAll(fd), HasSubstr(" 200 OK"));
  }
  for (const int fd : rest) close(fd);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  close(first);
  close(second);
}

}  // namespace
}  // namespace kernd::telemetry
