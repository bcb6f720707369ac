// The log: lines of text or of JSON on standard error, and one line for each call. README.md lists the fields.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/core/call_record.h"
#include "spdlog/async_logger.h"
#include "spdlog/common.h"

namespace kernd::telemetry {

struct LogOptions {
  std::string level = "info";  // debug, info, warning or error
  bool json = false;
  spdlog::sink_ptr sink = nullptr;  // null: standard error
};

// While it lives, spdlog::info and the like write here; one at a time. Lines go through a queue to a thread that writes
// them, because a reader of standard error that stalls (a full pipe, a slow disk) must stall no call. When the queue of
// kQueueLines is full, the oldest line is dropped and counted: a daemon whose log nobody reads goes on serving. Nothing
// else is lost: the destructor writes what is queued, and later lines are written at once by their own thread.
class Log {
 public:
  static constexpr std::size_t kQueueLines = 8192;

  explicit Log(const LogOptions& options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  std::int64_t lines_dropped() const;

 private:
  friend class CallLog;

  const bool json_;
  std::shared_ptr<spdlog::details::thread_pool> writer_;
  std::shared_ptr<spdlog::async_logger> lines_;
  std::shared_ptr<spdlog::async_logger> calls_;
};

// One line for each call: level error where the daemon is at fault (INTERNAL, UNKNOWN, DATA_LOSS), else info. Text that
// a client chose is escaped and clipped, so that it can neither begin a line nor forge a field. Must not outlive its
// Log.
class CallLog : public core::CallObserver {
 public:
  explicit CallLog(const Log& log) : json_(log.json_), calls_(log.calls_) {}

  void CallEnded(const core::CallRecord& record) override;

 private:
  const bool json_;
  const std::shared_ptr<spdlog::async_logger> calls_;
};

}  // namespace kernd::telemetry
