// The ways to make the call of problem.h, by name. A new one is a class, a line here and a line in caller.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/service/problem.h"

namespace kernd::bench {

// One client: its connections and its operands. For one thread.
class Caller {
 public:
  virtual ~Caller() = default;
  // Makes the call and waits for the result.
  virtual absl::Status Call() = 0;
  // The result of the last call that went well; stays until the next one.
  virtual std::span<const float> d() const = 0;
  // Bytes of operands and results that move in a call, of `rows` rows.
  virtual std::int64_t MovedBytes(std::int64_t rows) const { return rows * (kDepth + 1) * std::int64_t{sizeof(float)}; }
};

// `target`: HOST:PORT or unix:PATH.
using MakeCaller = absl::StatusOr<std::unique_ptr<Caller>>(const std::string& target, std::int64_t rows);

MakeCaller MakeStock;          // the stub that protoc generates, one channel
MakeCaller MakeStockResident;  // the same, A resident
MakeCaller MakeKerndInline;    // kernd::client, one channel
MakeCaller MakeKerndStriped;   // kernd::client, several connections
MakeCaller MakeKerndAuto;      // kernd::client as it comes
MakeCaller MakeKerndResident;  // kernd::client, A resident
MakeCaller MakeKerndShared;    // kernd::client, A and the result in shared memory
MakeCaller MakeSocket;         // one plain socket, blocking
MakeCaller MakeSocket8;        // eight, a thread each
MakeCaller MakeMemcpy;         // no server: operand and result are copied once in this process

struct Mode {
  const char* name;
  const char* help;
  MakeCaller* make;
};

std::span<const Mode> Modes();

}  // namespace kernd::bench
