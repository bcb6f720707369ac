#include "server/telemetry/log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernd/kernels/error.h"
#include "server/telemetry/fault.h"
#include "server/telemetry/printable.h"
#include "spdlog/async.h"
#include "spdlog/formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace kernd::telemetry {
namespace {

constexpr std::string_view kCallLogger = "call";
constexpr std::size_t kMaxTextBytes = 1024;  // of one field
constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./:[],";

// A JSON string of ASCII alone: control characters, what is not valid UTF-8 (as U+FFFD), and whatever else a terminal
// might act upon, come out as \u escapes.
std::string Quoted(std::string_view text) {
  using nlohmann::json;
  return json(std::string(text)).dump(-1, ' ', true, json::error_handler_t::replace);
}

// The fields of one line, as the inside of a JSON object or as key=value pairs.
class FieldWriter {
 public:
  explicit FieldWriter(bool json) : json_(json) {}

  void Text(std::string_view key, std::string_view text) {
    Key(key);
    const bool clipped = text.size() > kMaxTextBytes;
    // Nearly every text is plain; in JSON it needs its quotes all the same, in key=value pairs an empty one does.
    if (!clipped && text.find_first_not_of(kPlain) == std::string_view::npos) {
      const bool quote = json_ || text.empty();
      if (quote) line_ += '"';
      line_ += text;
      if (quote) line_ += '"';
    } else {
      line_ += Quoted(clipped ? std::string(text.substr(0, kMaxTextBytes)) + "..." : std::string(text));
    }
  }

  void Number(std::string_view key, std::int64_t number) {
    Key(key);
    absl::StrAppend(&line_, number);
  }
  // Under `key` + "_us".
  void Micros(std::string_view key, absl::Duration time) {
    Key(key, "_us");
    absl::StrAppend(&line_, absl::ToInt64Microseconds(time));
  }

  const std::string& line() const { return line_; }

 private:
  void Key(std::string_view key, std::string_view unit = "") {
    if (!line_.empty()) line_ += json_ ? ',' : ' ';
    if (json_) line_ += '"';
    line_ += key;
    line_ += unit;
    line_ += json_ ? "\":" : "=";
  }

  const bool json_;
  std::string line_;
};

// The payload of a call's line is its fields, written by CallLog; that of any other line is a message.
class LineFormatter : public spdlog::formatter {
 public:
  explicit LineFormatter(bool json) : json_(json) {}

  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& out) override {
    const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(msg.time), absl::UTCTimeZone());
    const auto level_view = spdlog::level::to_string_view(msg.level);
    const absl::string_view level(level_view.data(), level_view.size());
    const std::string_view payload(msg.payload.data(), msg.payload.size());
    const bool call = std::string_view(msg.logger_name.data(), msg.logger_name.size()) == kCallLogger;
    std::string line;
    if (json_) {
      const std::string fields = call ? std::string(payload) : absl::StrCat("\"message\":", Quoted(payload));
      line = absl::StrCat(R"({"time":")", time, R"(","level":")", level, "\",", fields, "}\n");
    } else {
      line = absl::StrCat(time, " ", level, " ", call ? std::string(payload) : Printable(payload), "\n");
    }
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(json_); }

 private:
  const bool json_;
};

spdlog::level::level_enum LevelOf(absl::StatusCode code) {
  return IsFault(code) ? spdlog::level::err : spdlog::level::info;
}

// "q 3 NaN; o 12 NaN, 1 Inf, overrun"
std::string FindingsText(const std::vector<core::Finding>& findings) {
  std::string text;
  for (const core::Finding& finding : findings) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", finding.tensor);
    const char* separator = " ";
    const auto append = [&](const std::string& what) {
      absl::StrAppend(&text, separator, what);
      separator = ", ";
    };
    if (finding.nan > 0) append(absl::StrCat(finding.nan, " NaN"));
    if (finding.inf > 0) append(absl::StrCat(finding.inf, " Inf"));
    if (finding.overrun) append("overrun");
  }
  return text;
}

void WriteFields(const core::CallRecord& record, FieldWriter& out) {
  out.Text("event", "call");
  out.Text("id", record.request_id);
  out.Text("peer", record.peer);
  out.Text("method", record.method);
  out.Text("code", absl::StatusCodeToString(record.status.code()));
  out.Micros("total", record.total);
  out.Number("request_bytes", record.request_bytes);
  out.Number("reply_bytes", record.reply_bytes);
  for (std::size_t i = 0; i < core::kNumStages; ++i) {
    const absl::Duration time = record.stages[static_cast<core::Stage>(i)];
    if (time > absl::ZeroDuration()) out.Micros(core::kStageNames[i], time);
  }
  if (record.peak_bytes > 0) out.Number("peak_bytes", record.peak_bytes);
  if (!record.kernel.empty()) out.Text("kernel", record.kernel);
  if (!record.shapes.empty()) out.Text("shapes", record.shapes);
  if (!record.findings.empty()) out.Text("findings", FindingsText(record.findings));
  if (!record.status.ok()) {
    const std::string reason = DetailOf(record.status).reason;
    if (!reason.empty()) out.Text("reason", reason);
    out.Text("message", {record.status.message().data(), record.status.message().size()});
  }
}

}  // namespace

Log::Log(const LogOptions& options)
    : json_(options.json), writer_(std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1)) {
  const spdlog::sink_ptr sink = options.sink ? options.sink : std::make_shared<spdlog::sinks::stderr_sink_mt>();
  sink->set_formatter(std::make_unique<LineFormatter>(json_));
  const auto make = [&](std::string_view name) {
    auto logger = std::make_shared<spdlog::async_logger>(std::string(name), sink, writer_,
                                                         spdlog::async_overflow_policy::overrun_oldest);
    logger->set_level(spdlog::level::from_str(options.level));
    return logger;
  };
  lines_ = make("kernd");
  calls_ = make(kCallLogger);
  spdlog::set_default_logger(lines_);
}

Log::~Log() {
  auto direct = std::make_shared<spdlog::logger>("kernd", lines_->sinks().front());
  direct->set_level(lines_->level());
  spdlog::set_default_logger(std::move(direct));
  writer_.reset();  // writes what is queued, then ends the thread
}

std::int64_t Log::lines_dropped() const {
  return static_cast<std::int64_t>(writer_->overrun_counter());
}

void CallLog::CallEnded(const core::CallRecord& record) {
  spdlog::level::level_enum level = LevelOf(record.status.code());
  if (!record.findings.empty()) level = std::max(level, spdlog::level::warn);
  if (!calls_->should_log(level)) return;
  FieldWriter fields(json_);
  WriteFields(record, fields);
  calls_->log(level, spdlog::string_view_t(fields.line().data(), fields.line().size()));
}

}  // namespace kernd::telemetry
