// kernd's own client library. Operands lie in the caller's memory, and so do the results.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernd/client/client.h"
#include "tests/bench/service/caller.h"

namespace kernd::bench {
namespace {

using client::DataType;
using client::View;

constexpr std::uint64_t kIdOfA = 1;

// One attempt: a call that fails is to be counted, not tried again.
absl::StatusOr<client::Client> Connect(const std::string& target, client::Transfer transfer) {
  client::ClientOptions options;
  options.endpoint = target;
  options.timeout = absl::Minutes(2);
  options.retry.max_attempts = 1;
  options.transfer = transfer;
  return client::Client::Connect(options);
}

class KerndCaller : public Caller {
 public:
  KerndCaller(client::Client client, std::int64_t rows)
      : client_(std::move(client)), rows_(rows), a_(MakeA(rows)), d_(static_cast<std::size_t>(rows)) {}

  absl::Status Call() override {
    d_.back() = kNoResult;
    return client_
        .Matmul({.a = View(a_, {rows_, kDepth}),
                 .b = View(kB, {kDepth, 1}),
                 .d = {.into = std::as_writable_bytes(std::span(d_))}})
        .status();
  }
  std::span<const float> d() const override { return d_; }

 private:
  const client::Client client_;
  const std::int64_t rows_;
  const std::vector<float> a_;
  std::vector<float> d_;
};

class ResidentCaller : public Caller {
 public:
  static absl::StatusOr<std::unique_ptr<Caller>> Make(client::Client client, std::int64_t rows) {
    absl::StatusOr<client::Session> session = client.OpenSession();
    if (!session.ok()) return session.status();
    const std::vector<float> a = MakeA(rows);
    if (absl::Status put = session->Put(kIdOfA, View(a, {rows, kDepth})); !put.ok()) return put;
    return std::unique_ptr<Caller>(new ResidentCaller(std::move(client), *std::move(session), rows));
  }

  absl::Status Call() override {
    d_.back() = kNoResult;
    return session_
        .Matmul({.a = client::ResidentTensor{kIdOfA, DataType::kF32, {rows_, kDepth}},
                 .b = View(kB, {kDepth, 1}),
                 .beta = 1.0,
                 .c = View(c_, {rows_, 1}),
                 .d = {.into = std::as_writable_bytes(std::span(d_))}})
        .status();
  }
  std::span<const float> d() const override { return d_; }
  std::int64_t MovedBytes(std::int64_t rows) const override { return 2 * rows * std::int64_t{sizeof(float)}; }

 private:
  ResidentCaller(client::Client client, client::Session session, std::int64_t rows)
      : client_(std::move(client)),
        session_(std::move(session)),
        rows_(rows),
        c_(static_cast<std::size_t>(rows)),
        d_(static_cast<std::size_t>(rows)) {}

  const client::Client client_;
  const client::Session session_;
  const std::int64_t rows_;
  const std::vector<float> c_;
  std::vector<float> d_;
};

// A and D lie in memory that the daemon sees as well.
class SharedCaller : public Caller {
 public:
  static absl::StatusOr<std::unique_ptr<Caller>> Make(client::Client client, std::int64_t rows) {
    absl::StatusOr<client::Session> session = client.OpenSession();
    if (!session.ok()) return session.status();
    absl::StatusOr<client::SharedBuffer> a = session->Share(rows * kDepth * std::int64_t{sizeof(float)});
    if (!a.ok()) return a.status();
    absl::StatusOr<client::SharedBuffer> d = session->Share(rows * std::int64_t{sizeof(float)});
    if (!d.ok()) return d.status();
    const std::vector<float> values = MakeA(rows);
    std::copy(values.begin(), values.end(), a->as<float>().begin());
    return std::unique_ptr<Caller>(
        new SharedCaller(std::move(client), *std::move(session), *std::move(a), *std::move(d), rows));
  }

  absl::Status Call() override {
    rows_of_d().back() = kNoResult;
    return session_
        .Matmul({.a = client::TensorView{DataType::kF32, {rows_, kDepth}, a_.bytes()},
                 .b = View(kB, {kDepth, 1}),
                 .d = {.into = std::as_writable_bytes(rows_of_d())}})
        .status();
  }
  std::span<const float> d() const override { return rows_of_d(); }

 private:
  SharedCaller(client::Client client, client::Session session, client::SharedBuffer a, client::SharedBuffer d,
               std::int64_t rows)
      : client_(std::move(client)), session_(std::move(session)), a_(std::move(a)), d_(std::move(d)), rows_(rows) {}

  std::span<float> rows_of_d() const { return d_.as<float>(); }

  const client::Client client_;
  const client::Session session_;
  const client::SharedBuffer a_, d_;
  const std::int64_t rows_;
};

absl::StatusOr<std::unique_ptr<Caller>> Make(const std::string& target, std::int64_t rows, client::Transfer transfer) {
  absl::StatusOr<client::Client> client = Connect(target, transfer);
  if (!client.ok()) return client.status();
  return std::make_unique<KerndCaller>(*std::move(client), rows);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Caller>> MakeKerndInline(const std::string& target, std::int64_t rows) {
  return Make(target, rows, client::Transfer::kInline);
}
absl::StatusOr<std::unique_ptr<Caller>> MakeKerndStriped(const std::string& target, std::int64_t rows) {
  return Make(target, rows, client::Transfer::kStriped);
}
absl::StatusOr<std::unique_ptr<Caller>> MakeKerndAuto(const std::string& target, std::int64_t rows) {
  return Make(target, rows, client::Transfer::kAuto);
}

absl::StatusOr<std::unique_ptr<Caller>> MakeKerndResident(const std::string& target, std::int64_t rows) {
  absl::StatusOr<client::Client> client = Connect(target, client::Transfer::kAuto);
  if (!client.ok()) return client.status();
  return ResidentCaller::Make(*std::move(client), rows);
}

absl::StatusOr<std::unique_ptr<Caller>> MakeKerndShared(const std::string& target, std::int64_t rows) {
  absl::StatusOr<client::Client> client = Connect(target, client::Transfer::kInline);
  if (!client.ok()) return client.status();
  return SharedCaller::Make(*std::move(client), rows);
}

}  // namespace kernd::bench
