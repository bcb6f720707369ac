// A problem with its operands, ready to be called again and again, and the judgement on each reply.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench/mix.h"
#include "client/cli/bench/shared_room.h"
#include "client/cli/operands.h"
#include "kernd/client/client.h"

namespace kernd::cli {

// How operands reach the daemon, and results the client.
enum class Place : std::uint8_t {
  kAuto,      // as the library would have it
  kInline,    // in each request and reply
  kStriped,   // over several connections, each time
  kResident,  // operands are there, from before the first call; results as with kAuto
  kShared,    // operands and results lie in memory that the daemon, on the same host, sees as well
};

struct BenchReply {
  client::Tensor result;
  client::Timing timing;
  client::KernelUsed kernel;
  SharedRoom::Slot slot;  // kShared: where the result lies
};

class BenchCall {
 public:
  // Makes the operands up: N(0,1) from `seed`.
  static absl::StatusOr<BenchCall> Make(const BenchProblem& problem, std::uint64_t seed);

  // Puts the operands into `session`, which outlives this, under ids from `*next_id` on: calls name them from then on.
  // Not beside any other member.
  absl::Status MoveTo(const client::Session& session, std::uint64_t* next_id, const client::CallOptions& options);

  // Puts the operands into memory of `session`, which outlives this, with room for the results of `in_flight` calls at
  // once. Not beside any other member.
  absl::Status Share(const client::Session& session, int in_flight, const client::CallOptions& options);

  // Thread-safe. The reply goes before this does.
  absl::StatusOr<BenchReply> Call(const client::Client& client, const client::CallOptions& options) const;

  // Makes the first call, which the others are held against. Not beside any other member.
  absl::Status First(const client::Client& client, const client::CallOptions& options);
  // OK where `reply` has the type and the shape of the first one and, with `bits`, its bits; else DATA_LOSS.
  absl::Status Judge(const BenchReply& reply, bool bits) const;

  const BenchProblem& problem() const { return problem_; }
  const client::KernelUsed& kernel() const { return first_.kernel; }  // of the first call
  // Of a call's operands, those that are sent or shared, and of its result.
  std::int64_t sent_bytes() const { return sent_bytes_; }
  std::int64_t received_bytes() const { return std::ssize(first_.result.bytes()); }

 private:
  BenchProblem problem_;
  Operands operands_;  // the arguments point into it
  std::variant<client::MatmulArgs, client::AttentionArgs> args_;
  const client::Session* session_ = nullptr;
  std::unique_ptr<SharedRoom> operand_room_, room_;  // kShared; the latter, of results, outlives the first reply
  std::int64_t sent_bytes_ = 0;
  BenchReply first_;
};

}  // namespace kernd::cli
