#include "server/core/session_errors.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::core {
namespace {

// When a tensor that is being filled is worth asking for again, and when another session's place.
constexpr absl::Duration kRetryWhenFilled = absl::Milliseconds(50);
constexpr absl::Duration kRetryWhenFull = absl::Seconds(1);

absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
}

absl::Status Error(absl::StatusCode code, const std::string& message, std::string_view why, const char* field,
                   std::optional<absl::Duration> retry_after = std::nullopt,
                   std::map<std::string, std::string> metadata = {}) {
  return WithDetail(
      absl::Status(code, message),
      {.reason = std::string(why), .field = field, .retry_after = retry_after, .metadata = std::move(metadata)});
}

}  // namespace

absl::Status SessionsFull(std::int64_t limit) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("all ", limit, " sessions are taken; close one, or try again"), reason::kSessionsFull, "",
               kRetryWhenFull, {{"limit_sessions", absl::StrCat(limit)}});
}

absl::Status NoSession() {
  return Error(absl::StatusCode::kNotFound,
               "session_id is of no session: none was opened here under this id, or it was closed, or not used for its "
               "lease",
               reason::kSessionNotFound, "session_id");
}

absl::Status NoTensor(std::uint64_t id) {
  return Error(absl::StatusCode::kNotFound, absl::StrCat("id is ", id, ": the session holds no such tensor"),
               reason::kTensorNotFound, "id");
}

absl::Status TensorGone(std::uint64_t id) {
  return Error(absl::StatusCode::kNotFound,
               absl::StrCat("id is ", id, ": the tensor was deleted or replaced while it was filled"),
               reason::kTensorNotFound, "id");
}

absl::Status UploadDeleted(std::uint64_t id, std::uint64_t version) {
  return Error(absl::StatusCode::kNotFound,
               absl::StrCat("id is ", id, ": version ", version,
                            " of this tensor was deleted; a new upload has a higher version, or 0"),
               reason::kTensorNotFound, "id");
}

absl::Status StillFilling(std::uint64_t id, std::int64_t received, std::int64_t bytes) {
  return Error(
      absl::StatusCode::kFailedPrecondition,
      absl::StrCat("id is ", id, ": ", received, " of the ", bytes, " bytes of this tensor have arrived; try again"),
      reason::kNotReady, "id", kRetryWhenFilled);
}

absl::Status FillFailed(std::uint64_t id, std::string_view why) {
  return Error(absl::StatusCode::kFailedPrecondition,
               absl::StrCat("id is ", id, ": the upload of this tensor failed: ", View(why)), reason::kFillFailed,
               "id");
}

absl::Status OldVersion(std::uint64_t id, std::uint64_t version, std::uint64_t there) {
  return Error(absl::StatusCode::kFailedPrecondition,
               absl::StrCat("version is ", version, ": tensor ", id, " is at version ", there, " already"),
               reason::kOldVersion, "version");
}

absl::Status OtherSpec(std::uint64_t id, std::uint64_t version, const TensorSpec& spec, const TensorSpec& there) {
  return InvalidField("shape", spec.ToString(),
                      absl::StrCat("version ", version, " of tensor ", id, " is ", there.ToString(),
                                   "; a tensor of another shape or type has a higher version"));
}

absl::Status BeyondEnd(std::int64_t offset, std::int64_t bytes, std::int64_t size) {
  return Error(
      absl::StatusCode::kOutOfRange,
      absl::StrCat("offset_bytes is ", offset, ": ", bytes, " bytes from there lie not within the tensor's ", size),
      reason::kOutOfRange, "offset_bytes");
}

absl::Status Overlap(std::int64_t offset, std::int64_t bytes, std::int64_t there_begin, std::int64_t there_end) {
  return Error(
      absl::StatusCode::kInvalidArgument,
      absl::StrCat("offset_bytes is ", offset, ": [", offset, ", ", offset + bytes, ") overlaps in part with [",
                   there_begin, ", ", there_end, "), which is there; a repeated chunk lies wholly in what is there"),
      reason::kOverlap, "offset_bytes");
}

absl::Status TooManyPieces(std::int64_t offset, std::size_t limit) {
  return InvalidField("offset_bytes", absl::StrCat(offset),
                      absl::StrCat("the tensor is in ", limit,
                                   " pieces apart from each other already, the most for its size; fill the gaps first, "
                                   "or send larger chunks"));
}

absl::Status CanNeverFit(std::int64_t needed, std::int64_t limit, std::string_view of) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("the tensor needs ", needed, " bytes, its record included, and can never fit: ", limit,
                            " are ", View(of)),
               reason::kTooLarge, "", std::nullopt,
               {{"needed_bytes", absl::StrCat(needed)}, {"limit_bytes", absl::StrCat(limit)}});
}

absl::Status DoesNotFitNow(std::string_view reason, std::int64_t needed, std::int64_t used, std::int64_t limit,
                           std::string_view of, std::optional<absl::Duration> retry_after) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("the tensor needs ", needed, " bytes, its record included, and does not fit now: ", used,
                            " of the ", limit, " bytes of ", View(of), " are taken"),
               reason, "", retry_after,
               {{"needed_bytes", absl::StrCat(needed)},
                {"available_bytes", absl::StrCat(limit - used)},
                {"limit_bytes", absl::StrCat(limit)}});
}

absl::Status SessionHasTooMany(std::int64_t limit) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("id is of one tensor too many: a session has at most ", limit, "; delete some"),
               reason::kQuotaFull, "id", std::nullopt, {{"limit_tensors", absl::StrCat(limit)}});
}

absl::Status TooManyInAll(std::int64_t limit, absl::Duration retry_after) {
  return Error(absl::StatusCode::kResourceExhausted,
               absl::StrCat("id is of one tensor too many: all sessions together have at most ", limit, "; try again"),
               reason::kMemoryFull, "id", retry_after, {{"limit_tensors", absl::StrCat(limit)}});
}

}  // namespace kernd::core
