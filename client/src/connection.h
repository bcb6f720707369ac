// What calls and streams share: a channel that is one connection, its errors, and the loop that tries again.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/src/retry.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "kernd/client/options.h"

namespace kernd::client {

// OK, or INVALID_ARGUMENT with the option's name.
absl::Status ValidateOptions(const ClientOptions& options);

// When, how often and with what a call is made: CallOptions, and ClientOptions where they say nothing.
struct CallTerms {
  absl::Time deadline;
  RetryPolicy retry;
  std::map<std::string, std::string> metadata;
  std::stop_token stop;
};

// INVALID_ARGUMENT, INVALID_FIELD: the option is named.
absl::StatusOr<CallTerms> TermsOf(const CallOptions& options, const ClientOptions& defaults);

bool IsUnix(const std::string& endpoint);

// A channel with a connection of its own to `options.endpoint`; valid options.
std::shared_ptr<grpc::Channel> Dial(const ClientOptions& options);

// Deadline and metadata.
void SetTerms(const CallTerms& terms, grpc::ClientContext& context);

// NOT_CONNECTED: UNAVAILABLE, or DEADLINE_EXCEEDED.
absl::Status NotConnected(const std::string& endpoint, absl::StatusCode code, const std::string& why);

// How a call over `channel` to `endpoint` ended; `pushback` as its trailers say.
absl::Status EndOf(const grpc::Status& status, const grpc::ClientContext& context, grpc::Channel& channel,
                   const std::string& endpoint, Pushback* pushback);

// Makes attempts until one succeeds, one fails for good, or time, number of attempts or patience of the caller is over.
absl::Status Repeat(const CallTerms& terms, const std::function<absl::Status(Pushback*)>& attempt);

}  // namespace kernd::client
