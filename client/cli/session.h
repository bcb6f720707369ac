// Sessions on the command line: their ids, and operands and results that are resident in one.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/cli/context.h"
#include "client/cli/operands.h"
#include "client/cli/values.h"
#include "kernd/client/session.h"

namespace kernd::cli {

// Larger ones are the client library's (kernd/client/session.h).
inline constexpr std::uint64_t kMaxTensorId = std::numeric_limits<std::int64_t>::max();

// For Option::transform, into a uint64_t.
CLI::Validator TensorId();

// 32 hexadecimal digits.
CLI::Validator IsSessionId();
std::string SessionIdText(const std::string& id);
// `text` has passed IsSessionId.
client::Session AttachSession(const client::Client& client, const std::string& text);

// The id in "resident:ID"; empty where `text` does not begin so, INVALID_ARGUMENT where no id follows.
absl::StatusOr<std::optional<std::uint64_t>> ParseResident(const std::string& text);

// The session `text` of --session, with its tensors made known to `operands`; none where it is empty. The errors of a
// call. The handle leaves the session open.
absl::StatusOr<std::optional<client::Session>> SessionFor(const Context& context, const client::Client& client,
                                                          const std::string& text, Operands& operands);

// Of --out and the like: a place in the session, or, for a file and nothing at all, none. The errors of CheckOutput, so
// that nobody computes what cannot be kept.
absl::StatusOr<client::ResultPlace> ResultPlaceOf(const std::string& out);

}  // namespace kernd::cli
