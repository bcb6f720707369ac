#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/service/peer.h"
#include "tests/bench/service/problem.h"
#include "tests/bench/service/socket.h"

namespace kernd::bench {
namespace {

// A request of more than this is not one of this bench's.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;

// Receives A into memory that it keeps, and answers with bytes that were made for the first request of these rows.
void Serve(const Socket& connection) {
  std::vector<float> a, d;
  SocketHeader header = {}, made_for = {};
  while (connection.Receive(&header, sizeof(header)).ok()) {
    if (header.first_row < 0 || header.first_row > kMaxRows || header.rows < 0 || header.rows > kMaxRows) return;
    if (header.first_row != made_for.first_row || header.rows != made_for.rows) {
      a.resize(static_cast<std::size_t>(header.rows * kDepth));
      d.resize(static_cast<std::size_t>(header.rows));
      for (std::size_t i = 0; i < d.size(); ++i) d[i] = ElementOfD(header.first_row + static_cast<std::int64_t>(i));
      made_for = header;
    }
    if (!connection.Receive(a.data(), a.size() * sizeof(float)).ok()) return;
    if (!connection.Send(d.data(), d.size() * sizeof(float)).ok()) return;
  }
}

}  // namespace

int ServeSocket(const std::string& target) {
  std::string address;
  const absl::StatusOr<Socket> listener = Socket::Listen(target, address);
  if (!listener.ok()) {
    std::fprintf(stderr, "service_peer: %s\n", std::string(listener.status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", address.c_str());
  std::fflush(stdout);
  while (true) {
    absl::StatusOr<Socket> connection = listener->Accept();
    if (!connection.ok()) return 1;
    std::thread([socket = *std::move(connection)] { Serve(socket); }).detach();
  }
}

}  // namespace kernd::bench
