// What the wire alone allows: the same bytes over plain sockets, and, below that, copied once in memory.
#include <barrier>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/service/caller.h"
#include "tests/bench/service/socket.h"

namespace kernd::bench {
namespace {

// Equal parts of A's rows, each over a connection of its own. The caller's thread sends the first part.
class SocketCaller : public Caller {
 public:
  SocketCaller(std::vector<Socket> sockets, std::int64_t rows)
      : sockets_(std::move(sockets)),
        a_(MakeA(rows)),
        d_(static_cast<std::size_t>(rows)),
        results_(sockets_.size()),
        begin_(static_cast<std::ptrdiff_t>(sockets_.size())),
        end_(static_cast<std::ptrdiff_t>(sockets_.size())) {
    for (std::size_t i = 1; i < sockets_.size(); ++i) {
      threads_.emplace_back([this, i] {
        for (begin_.arrive_and_wait(); !over_; begin_.arrive_and_wait()) {
          results_[i] = Exchange(i);
          end_.arrive_and_wait();
        }
      });
    }
  }
  ~SocketCaller() override {
    over_ = true;
    begin_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Call() override {
    d_.back() = kNoResult;
    begin_.arrive_and_wait();
    results_[0] = Exchange(0);
    end_.arrive_and_wait();
    for (const absl::Status& result : results_) {
      if (!result.ok()) return result;
    }
    return absl::OkStatus();
  }
  std::span<const float> d() const override { return d_; }

 private:
  absl::Status Exchange(std::size_t part) {
    const std::size_t first = d_.size() * part / sockets_.size();
    const std::size_t rows = d_.size() * (part + 1) / sockets_.size() - first;
    const SocketHeader header = {static_cast<std::int64_t>(first), static_cast<std::int64_t>(rows)};
    if (absl::Status sent = sockets_[part].Send(&header, sizeof(header)); !sent.ok()) return sent;
    if (absl::Status sent = sockets_[part].Send(&a_[first * kDepth], rows * kDepth * sizeof(float)); !sent.ok())
      return sent;
    return sockets_[part].Receive(&d_[first], rows * sizeof(float));
  }

  const std::vector<Socket> sockets_;
  const std::vector<float> a_;
  std::vector<float> d_;
  std::vector<absl::Status> results_;
  std::barrier<> begin_, end_;
  bool over_ = false;  // written before begin_ is passed
  std::vector<std::thread> threads_;
};

class MemcpyCaller : public Caller {
 public:
  explicit MemcpyCaller(std::int64_t rows)
      : a_(MakeA(rows)), received_a_(a_.size()), d_(static_cast<std::size_t>(rows)), received_d_(d_.size()) {
    for (std::size_t row = 0; row < d_.size(); ++row) d_[row] = ElementOfD(static_cast<std::int64_t>(row));
  }
  absl::Status Call() override {
    std::memcpy(received_a_.data(), a_.data(), a_.size() * sizeof(float));
    std::memcpy(received_d_.data(), d_.data(), d_.size() * sizeof(float));
    return absl::OkStatus();
  }
  std::span<const float> d() const override { return received_d_; }

 private:
  const std::vector<float> a_;
  std::vector<float> received_a_, d_, received_d_;
};

absl::StatusOr<std::unique_ptr<Caller>> Make(const std::string& target, std::int64_t rows, int connections) {
  std::vector<Socket> sockets;
  for (int i = 0; i < connections; ++i) {
    absl::StatusOr<Socket> socket = Socket::Connect(target);
    if (!socket.ok()) return socket.status();
    sockets.push_back(*std::move(socket));
  }
  return std::make_unique<SocketCaller>(std::move(sockets), rows);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Caller>> MakeSocket(const std::string& target, std::int64_t rows) {
  return Make(target, rows, 1);
}
absl::StatusOr<std::unique_ptr<Caller>> MakeSocket8(const std::string& target, std::int64_t rows) {
  return Make(target, rows, 8);
}
absl::StatusOr<std::unique_ptr<Caller>> MakeMemcpy(const std::string&, std::int64_t rows) {
  return std::make_unique<MemcpyCaller>(rows);
}

}  // namespace kernd::bench
