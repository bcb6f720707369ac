#include "client/cli/context.h"

#include "client/cli/text.h"
#include "client/cli/values.h"
#include "nlohmann/json.hpp"

namespace kernd::cli {
namespace {

// What a person might do next, or nothing.
std::string Hint(const absl::Status& status, const client::ErrorDetails& details) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable: return "kernctl health --wait 30s waits until the daemon is ready";
    case absl::StatusCode::kDeadlineExceeded: return "--timeout 5m gives it more time";
    case absl::StatusCode::kResourceExhausted:
      return details.reason == client::reason::kTooLarge ? "it can never fit there: split the problem"
                                                         : "the daemon is full now: try again later";
    case absl::StatusCode::kUnimplemented: return "kernctl gpu-info and kernctl kernels show what this daemon offers";
    default: return "";
  }
}

// gRPC wraps the system's word in its own: "failed to connect to all addresses; last error: ...: Connection refused".
std::string LastPart(const std::string& message) {
  const std::size_t colon = message.rfind(": ");
  return colon == std::string::npos ? message : message.substr(colon + 2);
}

std::string Text(absl::string_view message) {
  return Printable({message.data(), message.size()});
}

// One object on one line.
void PrintError(std::ostream& err, const absl::Status& status, const client::ErrorDetails& details) {
  nlohmann::json error = {{"code", absl::StatusCodeToString(status.code())},
                          {"message", std::string(status.message())}};
  if (!details.reason.empty()) error["reason"] = details.reason;
  if (!details.field.empty()) error["field"] = details.field;
  if (details.retry_after) error["retry_after_s"] = absl::ToDoubleSeconds(*details.retry_after);
  if (!details.metadata.empty()) error["metadata"] = details.metadata;
  err << nlohmann::json{{"error", error}}.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n';
}

}  // namespace

absl::StatusOr<client::Client> Context::Connect() const {
  client::ClientOptions options;
  options.endpoint = endpoint;
  options.timeout = Timeout();
  return client::Client::Connect(options);
}

absl::Duration Context::Timeout() const {
  return DurationOf(timeout);
}

client::CallOptions Context::CallOptions() const {
  client::CallOptions options;
  for (const std::string& entry : metadata) {
    const std::size_t equals = entry.find('=');
    options.metadata[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return options;
}

int Context::BadArguments(const absl::Status& status) const {
  if (json) {
    PrintError(err, status, client::DetailsOf(status));
  } else {
    err << "kernctl: " << Text(status.message()) << '\n';
  }
  return kBadArguments;
}

int Context::CallFailed(const absl::Status& status) const {
  const client::ErrorDetails details = client::DetailsOf(status);
  const bool not_connected = details.reason == client::reason::kNotConnected;
  const std::string hint = Hint(status, details);
  if (json) {
    PrintError(err, status, details);
  } else if (not_connected && absl::IsDeadlineExceeded(status)) {
    err << "kernctl: no connection to " << endpoint << " when the " << timeout << " of --timeout were over\n";
  } else if (not_connected) {
    const std::string why = Printable(LastPart(std::string(status.message())));
    err << "kernctl: no kernd at " << endpoint << (why.empty() ? "" : " (" + why + ")") << '\n';
  } else {
    err << "kernctl: " << absl::StatusCodeToString(status.code()) << ": " << Text(status.message()) << '\n';
    if (!details.field.empty()) err << "  field        " << Printable(details.field) << '\n';
    if (!details.reason.empty()) err << "  reason       " << Printable(details.reason) << '\n';
    if (details.retry_after) err << "  retry after  " << absl::FormatDuration(*details.retry_after) << '\n';
    for (const auto& [key, value] : details.metadata) {
      err << "  " << Printable(key) << " = " << Printable(value) << '\n';
    }
    if (!hint.empty()) err << "  hint: " << hint << '\n';
  }
  return not_connected ? kNotConnected : kCallFailed;
}

}  // namespace kernd::cli
