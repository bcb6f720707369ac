// The checks of the daemon: from the wire inwards, so that the first problem is the one to solve.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/table.h"

namespace kernd::cli::doctor {
namespace {

constexpr absl::Duration kClockWarning = absl::Seconds(2), kClockProblem = absl::Seconds(60);
constexpr double kSlowUs = 1e6;  // a call of two tiny matrices

Check NotApplicable(const char* name, std::string why) {
  return {name, Status::kNotApplicable, std::move(why), ""};
}

// "0.1" of "0.1.0": what must agree.
std::string Minor(const std::string& version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  return parts.size() < 2 ? version : parts[0] + "." + parts[1];
}

// The port of the address, or the address.
std::string PortOf(const EndpointFacts& endpoint) {
  return endpoint.target.port.empty() ? endpoint.text : endpoint.target.port;
}

Check NoConnection(const EndpointFacts& e) {
  Check check{"port", Status::kProblem, absl::StrCat(e.text, ": ", e.failure.why), ""};
  switch (e.failure.trouble) {
    case Trouble::kNoName:
      check.found = absl::StrCat(e.text, ": the name does not resolve (", e.failure.why, ")");
      check.todo = "correct --endpoint or KERND_ENDPOINT, or name the host by its IP address";
      break;
    case Trouble::kNoFile:
      check.found = absl::StrCat(e.text, ": there is no such socket");
      check.todo = absl::StrCat("start kernd --listen ", e.text, ", or correct --endpoint");
      break;
    case Trouble::kRefused:
      check.found = absl::StrCat(e.text, ": nothing listens there (", e.failure.why, ")");
      check.todo = e.local ? absl::StrCat("start kernd, or see its log; in a container publish the port: -p ",
                                          PortOf(e), ":", PortOf(e))
                           : absl::StrCat("start kernd there with --listen 0.0.0.0:", PortOf(e),
                                          ": by default it serves its own machine alone");
      break;
    case Trouble::kForbidden:
      check.todo = e.target.kind == Target::Kind::kUnix
                       ? "run kernctl as a user who may write to that socket, or change the socket's mode"
                       : "a firewall refuses the connection: open the port";
      break;
    case Trouble::kSilent:
      check.found = absl::StrCat(e.text, ": no answer within the time");
      check.todo = "a firewall drops it, or the host is down: open the port, or correct --endpoint";
      break;
    default: check.todo = "correct --endpoint, or the route to that host"; break;
  }
  return check;
}

bool IsGrpc(const Facts& facts) {
  return facts.daemon.endpoint.speaks == Speaks::kHttp2 || facts.daemon.health.value || facts.daemon.capabilities.value;
}

}  // namespace

Check CheckVersions(const Facts& facts) {
  Check check{"versions", Status::kOk, "kernctl " + facts.kernctl_version, ""};
  if (!facts.daemon.capabilities.value) return check;
  const client::Capabilities& daemon = *facts.daemon.capabilities.value;
  absl::StrAppend(&check.found, ", kernd ", daemon.version, " (", daemon.revision, "), ", daemon.compiler, ", CUDA ",
                  daemon.cuda_toolkit);
  if (Minor(daemon.version) == Minor(facts.kernctl_version)) return check;
  check.status = Status::kWarning;
  check.todo =
      absl::StrCat("use kernctl ", daemon.version, " with this daemon, or bring the daemon to ", facts.kernctl_version);
  return check;
}

Check CheckPort(const Facts& facts) {
  const EndpointFacts& e = facts.daemon.endpoint;
  if (e.target.kind == Target::Kind::kOther) {
    return NotApplicable("port", e.text + " is an address that only gRPC understands");
  }
  if (e.failure.trouble != Trouble::kNone && e.proxy && facts.daemon.health.value) {
    return {"port", Status::kOk, e.text + " is reached through the proxy alone", ""};
  }
  if (e.failure.trouble != Trouble::kNone) return NoConnection(e);
  Check check{"port", Status::kProblem, "", ""};
  switch (e.speaks) {
    case Speaks::kHttp2:
      check.status = Status::kOk;
      check.found = absl::StrFormat("%s answers in %.1f ms", e.text, absl::ToDoubleMilliseconds(e.connect_time));
      break;
    case Speaks::kHttp1:
      check.found = e.text + ": an HTTP/1 server answers there, not gRPC";
      check.todo = "name kernd's gRPC port, 50051 by default; 9464 is its HTTP port, for --http";
      break;
    case Speaks::kTls:
      check.found = e.text + ": a TLS server answers there";
      check.todo = "kernctl speaks plain text alone: name kernd itself, or a proxy's port without TLS";
      break;
    case Speaks::kOther:
      check.found = absl::StrCat(e.text, ": another server answers there: ", e.words);
      check.todo = "correct --endpoint: kernd serves gRPC on 50051 unless told otherwise";
      break;
    case Speaks::kNothing:
      check.found = e.text + ": takes the connection and says nothing";
      check.todo = "no gRPC server, or one that hangs (see its log), or a proxy without one behind it";
      break;
  }
  return check;
}

Check CheckProxy(const Facts& facts) {
  if (!facts.daemon.endpoint.proxy) return NotApplicable("proxy", "none between");
  if (facts.daemon.health.value) return {"proxy", Status::kOk, "calls go through the environment's HTTP proxy", ""};
  return {"proxy", Status::kWarning, "the environment names an HTTP proxy, through which calls go",
          "where the daemon is inside your network: add its host to no_proxy"};
}

Check CheckHealth(const Facts& facts) {
  const Answer<client::HealthStatus>& health = facts.daemon.health;
  if (!health.value && health.error.empty()) return NotApplicable("health", "no connection");
  if (!health.value) {
    if (!IsGrpc(facts)) return NotApplicable("health", "no gRPC there");
    return {"health", Status::kProblem, health.error, "what answers there may be no kernd: correct --endpoint"};
  }
  if (*health.value == client::HealthStatus::kServing) return {"health", Status::kOk, "SERVING", ""};
  Check check{"health", Status::kProblem, std::string(client::Name(*health.value)),
              "it starts or drains: kernctl health --wait 60s; where that does not help, see its log"};
  if (!facts.daemon.http.state.empty()) {
    absl::StrAppend(&check.found, ", ", facts.daemon.http.state);
    if (!facts.daemon.http.why.empty()) absl::StrAppend(&check.found, ": ", facts.daemon.http.why);
  }
  if (facts.daemon.http.state == "lost")
    check.todo = "restart the daemon; where it comes back, reset the GPU (see dmesg for Xid)";
  return check;
}

Check CheckBackend(const Facts& facts) {
  const Answer<client::Capabilities>& answer = facts.daemon.capabilities;
  if (!answer.value && (answer.error.empty() || !IsGrpc(facts))) return NotApplicable("backend", "no daemon to ask");
  if (!answer.value) {
    return {"backend", Status::kProblem, answer.error,
            "what answers there may be no kernd, or one too old: correct --endpoint"};
  }
  const client::Capabilities& c = *answer.value;
  Check check{"backend", Status::kOk, c.backend, ""};
  for (const client::DeviceInfo& d : c.devices) {
    absl::StrAppend(&check.found, ", ", d.name, " (", std::string(client::Name(d.tier)), ", ",
                    FormatBytes(d.memory_limit_bytes), " for calls)");
    if (d.tier != client::Tier::kUnsupported) continue;
    check.status = Status::kProblem;
    check.todo = "this build has no kernels for that GPU: use another build, or --backend cpu";
  }
  if (c.not_used.empty()) return check;
  absl::StrAppend(&check.found, "; not used: ", Join(c.not_used, "; "));
  const bool asked_for = c.not_used == std::vector<std::string>{"no GPU: --backend cpu"};
  const bool none_here = facts.daemon.endpoint.local && !HasGpu(facts.gpu);
  if (check.status == Status::kOk && !asked_for && !none_here) {
    check.status = Status::kWarning;
    check.todo = "cure the cause named, and restart kernd; it looks for GPUs at its start alone";
  }
  return check;
}

Check CheckCall(const Facts& facts) {
  const Answer<CallFacts>& call = facts.daemon.call;
  if (!call.value && call.error.empty()) return NotApplicable("call", "no daemon that serves");
  if (!call.value)
    return {"call", Status::kProblem, call.error, "the daemon's log tells more: look for this call there"};
  Check check{"call", Status::kOk,
              absl::StrFormat("matmul F32 4x4x4 in %.0f us (%.0f in the daemon), %s on %s", call.value->client_us,
                              call.value->server_us, call.value->kernel, call.value->device),
              ""};
  if (!call.value->right) {
    check.status = Status::kProblem;
    check.found += ": the RESULT IS WRONG";
    check.todo = "do not trust this daemon: run kernctl verify --all, and report what it says";
  } else if (call.value->client_us > kSlowUs) {
    check.status = Status::kWarning;
    check.todo =
        "something is slow: kernctl top shows load and queue, the stages of kernctl matmul where the time goes";
  }
  return check;
}

Check CheckHttp(const Facts& facts) {
  const HttpFacts& http = facts.daemon.http;
  if (http.failure.trouble != Trouble::kNone) {
    if (!facts.daemon.health.value) return NotApplicable("http", absl::StrCat(http.address, ": ", http.failure.why));
    return {"http", Status::kWarning, absl::StrCat(http.address, ": ", http.failure.why),
            "metrics and kernctl top need it: start kernd with --http-listen, or name the address with --http"};
  }
  if (!http.is_kernd) {
    return {"http", Status::kWarning,
            absl::StrFormat("%s answers %d, and is no kernd of this version", http.address, http.code),
            "name kernd's HTTP address with --http"};
  }
  return {"http", Status::kOk, absl::StrCat(http.address, ": kernd ", http.version, ", ", http.state), ""};
}

Check CheckOptions(const Facts& facts) {
  if (!facts.daemon.http.is_kernd) return NotApplicable("options", "the daemon's are not known (see http)");
  const std::vector<std::string>& idle = facts.daemon.http.options_not_used;
  if (idle.empty()) return {"options", Status::kOk, "all that were set have an effect", ""};
  return {"options", Status::kWarning, Join(idle, "; "),
          "leave them out there, or see why the backend that they are for does not serve (see backend)"};
}

Check CheckClock(const Facts& facts) {
  const char* const todo = "let chrony or systemd-timesyncd set both clocks; logs cannot be compared before";
  const std::optional<bool>& synchronised = facts.machine.clock_synchronised;
  if (!facts.daemon.http.clock_ahead) {
    if (!synchronised) return NotApplicable("clock", "the daemon's is not known (see http)");
    if (*synchronised) return {"clock", Status::kOk, "this machine's is synchronised; the daemon's is not known", ""};
    return {"clock", Status::kWarning, "this machine's is not synchronised", todo};
  }
  const absl::Duration ahead = *facts.daemon.http.clock_ahead;
  const absl::Duration off = std::max(absl::AbsDuration(ahead) - facts.daemon.http.uncertainty, absl::ZeroDuration());
  Check check{"clock", Status::kOk, "", ""};
  check.found =
      off < kClockWarning
          ? absl::StrFormat("the daemon's is ours within %.0f ms",
                            absl::ToDoubleMilliseconds(absl::AbsDuration(ahead) + facts.daemon.http.uncertainty))
          : absl::StrFormat("the daemon's is %s %s ours",
                            absl::FormatDuration(absl::Trunc(off, absl::Milliseconds(100))),
                            ahead > absl::ZeroDuration() ? "ahead of" : "behind");
  if (off >= kClockWarning) {
    check.status = off >= kClockProblem ? Status::kProblem : Status::kWarning;
    check.todo = todo;
  }
  return check;
}

}  // namespace kernd::cli::doctor
