#include "server/config/option_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace kernd::config {
namespace {

using Values = std::vector<std::string>;
template <typename T>
using Choices = std::vector<std::pair<const char*, T>>;

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", text, "\"");
}

template <typename T>
absl::Status Store(absl::StatusOr<T> parsed, T& field) {
  if (parsed.ok()) field = *std::move(parsed);
  return parsed.status();
}

// The names of an option, then how its one field is read and written.
struct Names {
  const char* group;
  const char* name;
  const char* value;
  const char* help;
};

// Field: a callable from (const) ServerOptions& to a (const) reference to the field.
#define KERND_FIELD(path)      \
  [](auto& options) -> auto& { \
    return options.path;       \
  }

enum class Percent { kNo, kOfMemory };

template <typename Field>
Option Bytes(Names names, Field field, Percent percent = Percent::kNo) {
  return {names.group,
          names.name,
          names.value,
          names.help,
          false,
          [=](const Values& values, const MachineLimits& machine, ServerOptions& options) {
            return Store(ParseBytes(values[0], percent == Percent::kNo ? 0 : machine.memory_bytes), field(options));
          },
          [=](const ServerOptions& options) { return Quoted(BytesText(field(options))); }};
}

enum class Off { kRefused, kAllowed };

template <typename Field>
Option Time(Names names, Field field, Off off = Off::kRefused) {
  return {names.group,
          names.name,
          names.value,
          names.help,
          false,
          [=](const Values& values, const MachineLimits&, ServerOptions& options) {
            return Store(ParseDuration(values[0], off == Off::kAllowed), field(options));
          },
          [=](const ServerOptions& options) { return Quoted(DurationText(field(options))); }};
}

enum class Zero { kIsANumber, kIsTheDefault };

template <typename Field>
Option Number(Names names, Field field, Zero zero = Zero::kIsANumber) {
  return {names.group,
          names.name,
          names.value,
          names.help,
          false,
          [=](const Values& values, const MachineLimits& machine, ServerOptions& options) {
            int number = 0;
            if (!absl::SimpleAtoi(values[0], &number)) return absl::InvalidArgumentError("must be a whole number");
            ServerOptions defaults = DefaultOptions(machine);
            field(options) = number == 0 && zero == Zero::kIsTheDefault ? field(defaults) : number;
            return absl::OkStatus();
          },
          [=](const ServerOptions& options) { return absl::StrCat(field(options)); }};
}

template <typename T, typename Field>
Option Choice(Names names, Field field, Choices<T> choices) {
  return {names.group,
          names.name,
          names.value,
          names.help,
          false,
          [=](const Values& values, const MachineLimits&, ServerOptions& options) {
            const auto found = std::find_if(choices.begin(), choices.end(),
                                            [&](const auto& choice) { return choice.first == values[0]; });
            if (found == choices.end()) return absl::InvalidArgumentError(absl::StrCat("must be one of ", names.value));
            field(options) = found->second;
            return absl::OkStatus();
          },
          [=](const ServerOptions& options) {
            const auto found = std::find_if(choices.begin(), choices.end(),
                                            [&](const auto& choice) { return choice.second == field(options); });
            return Quoted(found->first);
          }};
}

template <typename Field>
Option Boolean(Names names, Field field) {
  Option option = Choice(names, field, Choices<bool>{{"true", true}, {"false", false}});
  option.print = [=](const ServerOptions& options) -> std::string { return field(options) ? "true" : "false"; };
  return option;
}

template <typename Field>
Option Text(Names names, Field field) {
  return {names.group,
          names.name,
          names.value,
          names.help,
          false,
          [=](const Values& values, const MachineLimits&, ServerOptions& options) {
            if (!FitsIntoQuotes(values[0])) return absl::InvalidArgumentError(kQuotesRule);
            field(options) = values[0];
            return absl::OkStatus();
          },
          [=](const ServerOptions& options) { return Quoted(field(options)); }};
}

Option Listen() {
  return {"Listen",
          "listen",
          "ADDRESS",
          "Where to serve gRPC: host:port, [v6 address]:port or unix:/path; port 0: any free one. Repeatable.",
          true,
          [](const Values& values, const MachineLimits&, ServerOptions& options) {
            options.listen.grpc.clear();
            for (const std::string& value : values) {
              Address address;
              if (absl::Status status = Store(ParseAddress(value), address); !status.ok()) return status;
              options.listen.grpc.push_back(std::move(address));
            }
            return absl::OkStatus();
          },
          [](const ServerOptions& options) {
            return absl::StrCat("[",
                                absl::StrJoin(options.listen.grpc, ", ",
                                              [](std::string* out, const Address& address) {
                                                absl::StrAppend(out, Quoted(AddressText(address)));
                                              }),
                                "]");
          }};
}

Option HttpListen() {
  return {"Listen",
          "http-listen",
          "ADDRESS|off",
          "Where to serve /metrics, /healthz and /readyz: host:port, or off.",
          false,
          [](const Values& values, const MachineLimits&, ServerOptions& options) {
            options.listen.http.reset();
            if (values[0] == "off") return absl::OkStatus();
            return Store(ParseAddress(values[0]), options.listen.http.emplace());
          },
          [](const ServerOptions& options) {
            return Quoted(options.listen.http ? AddressText(*options.listen.http) : "off");
          }};
}

Option Prewarm() {
  return {"Compute",
          "prewarm",
          "SHAPES",
          "Shapes to run once before the daemon is ready, with commas between: matmul:DTYPE:[BATCHx]MxNxK, words ta tb "
          "bias relu gelu silu tf32 invariant; attention:DTYPE:BxH[/HKV]xL[/LKV]xD[/DV], words causal blhd lse "
          "window=KEYS; kernel=NAME. As in matmul:bf16:4096x4096x4096,attention:f16:1x32/8x1/8192x128:causal. One that "
          "cannot run here is warned of. Repeatable.",
          true,
          [](const Values& values, const MachineLimits&, ServerOptions& options) -> absl::Status {
            options.compute.prewarm.clear();
            if (values.size() == 1 && values[0].empty()) return absl::OkStatus();
            for (const std::string& value : values) {
              if (!FitsIntoQuotes(value)) return absl::InvalidArgumentError(kQuotesRule);
              options.compute.prewarm.push_back(value);
            }
            return absl::OkStatus();
          },
          [](const ServerOptions& options) { return Quoted(absl::StrJoin(options.compute.prewarm, ",")); }};
}

// Bytes, or a part of what is known later.
template <typename Field>
Option PartOf(Names names, Field field) {
  return {names.group,
          names.name,
          names.value,
          names.help,
          false,
          [=](const Values& values, const MachineLimits&, ServerOptions& options) -> absl::Status {
            constexpr std::int64_t kWhole = 100;
            std::int64_t number = 0;
            const bool percent = absl::EndsWith(values[0], "%");
            if (absl::Status status = Store(ParseBytes(values[0], percent ? kWhole : 0), number); !status.ok()) {
              return status;
            }
            field(options) = percent ? Share{.percent = static_cast<int>(number)} : Share{.bytes = number};
            return absl::OkStatus();
          },
          [=](const ServerOptions& options) {
            const Share& share = field(options);
            return Quoted(share.percent > 0 ? absl::StrCat(share.percent, "%") : BytesText(share.bytes));
          }};
}

std::vector<Option> MakeTable() {
  const Choices<BackendChoice> backends = {
      {"auto", BackendChoice::kAuto}, {"cuda", BackendChoice::kCuda}, {"cpu", BackendChoice::kCpu}};
  return {
      Listen(),
      HttpListen(),
      Text({"Listen", "port-file", "PATH",
            "Written once all addresses are bound: lines grpc=ADDRESS and http=ADDRESS. Empty: none."},
           KERND_FIELD(listen.port_file)),
      Text(
          {"Listen", "advertise", "ADDRESS",
           "What clients of a session dial to reach this process, where several serve under one name. Empty: what they "
           "dialled."},
          KERND_FIELD(listen.advertise)),

      Choice({"Compute", "backend", "auto|cuda|cpu",
              "auto: cuda where a GPU that this build supports is found, else cpu."},
             KERND_FIELD(compute.backend), backends),
      Number({"Compute", "cpu-threads", "N", "Threads of the CPU backend. 0: as many CPUs as this process may use."},
             KERND_FIELD(compute.cpu_threads), Zero::kIsTheDefault),
      Number({"Compute", "io-threads", "N",
              "Threads that serve gRPC, and as many that move bulk data. 0: half of those CPUs, 1 to 8."},
             KERND_FIELD(compute.io_threads), Zero::kIsTheDefault),
      Prewarm(),
      Boolean(
          {"Compute", "debug-checks", "true|false",
           "Look for NaN and infinities in operands and results, and for writes past results. Slow; what is found is "
           "logged and counted, and a result that was written past is not sent."},
          KERND_FIELD(compute.debug_checks)),
      Text({"Compute", "tuning-file", "PATH",
            "Kernels that were measured to be the quickest. Read at the start: one of another device, driver, library "
            "or build, one that others may write, or a damaged one is not used, and counted. Lets clients tune "
            "(kernctl tune), which writes it. Empty: none."},
           KERND_FIELD(compute.tuning_file)),

      Number({"GPU", "gpu-device", "N", "Which GPU serves, as the driver counts them. One daemon serves one GPU."},
             KERND_FIELD(gpu.device)),
      PartOf({"GPU", "gpu-memory", "BYTES|PERCENT",
              "Device memory for tensors; a percentage is of what is free at the start, less 1GiB for libraries."},
             KERND_FIELD(gpu.memory)),
      Number({"GPU", "gpu-executors", "N", "Calls that run on the GPU at once, each on a stream of its own."},
             KERND_FIELD(gpu.executors)),
      Bytes({"GPU", "pinned-memory", "BYTES", "Page-locked host memory for results, taken at the start."},
            KERND_FIELD(gpu.pinned_bytes)),

      PartOf(
          {"Sessions", "resident-memory", "BYTES|PERCENT",
           "What of the memory for tensors clients may keep between calls; a percentage is of --memory-limit, on a GPU "
           "of --gpu-memory."},
          KERND_FIELD(sessions.resident)),
      PartOf({"Sessions", "session-quota", "BYTES|PERCENT",
              "What one session may keep; a percentage is of --resident-memory."},
             KERND_FIELD(sessions.quota)),
      Number({"Sessions", "max-sessions", "N", "Sessions open at once."}, KERND_FIELD(sessions.max_sessions)),
      Time({"Sessions", "session-lease", "DURATION",
            "A session that is not used for this long ends, unless its client asks for another time, at most 24h."},
           KERND_FIELD(sessions.lease)),
      Time({"Sessions", "fill-timeout", "DURATION",
            "An upload without a chunk for this long has failed, and its memory is given back."},
           KERND_FIELD(sessions.fill_timeout)),

      Text({"Shared memory", "shared-memory-socket", "PATH",
            "Clients on this host hand over memory here, a unix socket; who may connect is a matter of its folder's "
            "permissions. Empty: off."},
           KERND_FIELD(shared_memory.socket)),
      Bytes({"Shared memory", "shared-memory-limit", "BYTES|PERCENT",
             "Memory of clients that is shared at once, on a GPU page-locked. Unless set: 25%, in whole MiB."},
            KERND_FIELD(shared_memory.limit_bytes), Percent::kOfMemory),

      Bytes({"Limits", "memory-limit", "BYTES|PERCENT",
             "Memory for tensors on the CPU; a percentage is of the RAM that this process may use. Unless set: 50%, in "
             "whole MiB."},
            KERND_FIELD(limits.memory_bytes), Percent::kOfMemory),
      Bytes({"Limits", "body-budget", "BYTES|PERCENT",
             "Request bodies in flight, all connections together. Unless set: 25%, in whole MiB, at least 64MiB."},
            KERND_FIELD(limits.body_budget_bytes), Percent::kOfMemory),
      Bytes(
          {"Limits", "default-body-bytes", "BYTES", "Reserved for a call that does not declare the size of its body."},
          KERND_FIELD(limits.default_body_bytes)),
      Bytes({"Limits", "max-message-bytes", "BYTES", "Largest request or reply; less than 2GiB."},
            KERND_FIELD(limits.max_message_bytes)),
      Number({"Limits", "max-queued-calls", "N", "Calls admitted and not yet answered."},
             KERND_FIELD(limits.max_queued_calls)),
      Number({"Limits", "max-concurrent-streams", "N", "Calls in flight on one connection."},
             KERND_FIELD(limits.max_concurrent_streams)),

      Time({"Lifecycle", "drain-delay", "DURATION",
            "After SIGTERM: how long to serve on while /readyz already says no, so that load balancers notice."},
           KERND_FIELD(lifecycle.drain_delay)),
      Time({"Lifecycle", "drain-timeout", "DURATION", "Then: how long calls in flight may take to end."},
           KERND_FIELD(lifecycle.drain_timeout)),
      Time({"Lifecycle", "receive-stall", "DURATION",
            "A client has this and 1 s a MiB to send its body, or is cut off."},
           KERND_FIELD(lifecycle.receive_stall)),
      Time({"Lifecycle", "send-stall", "DURATION", "A client has this and 1 s a MiB to read its reply, or is cut off."},
           KERND_FIELD(lifecycle.send_stall)),
      Time({"Lifecycle", "handshake-timeout", "DURATION", "For a new connection to become an HTTP/2 one."},
           KERND_FIELD(lifecycle.handshake_timeout)),
      Time({"Lifecycle", "keepalive-time", "DURATION|off", "Silence on a connection after which it is pinged."},
           KERND_FIELD(lifecycle.keepalive_time), Off::kAllowed),
      Time({"Lifecycle", "keepalive-timeout", "DURATION", "How long the answer to a ping may take."},
           KERND_FIELD(lifecycle.keepalive_timeout)),
      Time({"Lifecycle", "max-connection-age", "DURATION|off",
            "After which a connection is asked to close, so that clients spread over new replicas."},
           KERND_FIELD(lifecycle.max_connection_age), Off::kAllowed),

      Choice({"Logging", "log-level", "debug|info|warning|error", "Lines below this level are not written."},
             KERND_FIELD(logging.level),
             Choices<std::string>{{"debug", "debug"}, {"info", "info"}, {"warning", "warning"}, {"error", "error"}}),
      Choice({"Logging", "log-format", "text|json", "One line an event, on standard error."}, KERND_FIELD(logging.json),
             Choices<bool>{{"text", false}, {"json", true}}),
      Boolean({"Logging", "log-calls", "true|false", "A line for each call."}, KERND_FIELD(logging.calls)),
  };
}

}  // namespace

const std::vector<Option>& OptionTable() {
  static const auto& table = *new std::vector<Option>(MakeTable());
  return table;
}

std::string VariableOf(const Option& option) {
  return absl::StrCat("KERND_", absl::AsciiStrToUpper(absl::StrReplaceAll(option.name, {{"-", "_"}})));
}

}  // namespace kernd::config
