// What the session store refuses, in words: field, value and rule, and the reason for programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernd/kernels/tensor.h"

namespace kernd::core {

absl::Status SessionsFull(std::int64_t limit);
absl::Status NoSession();
absl::Status NoTensor(std::uint64_t id);
// Deleted or replaced while it was filled.
absl::Status TensorGone(std::uint64_t id);
// A stream of the upload `version`, which was deleted.
absl::Status UploadDeleted(std::uint64_t id, std::uint64_t version);
absl::Status StillFilling(std::uint64_t id, std::int64_t received, std::int64_t bytes);
absl::Status FillFailed(std::uint64_t id, std::string_view why);
absl::Status OldVersion(std::uint64_t id, std::uint64_t version, std::uint64_t there);
absl::Status OtherSpec(std::uint64_t id, std::uint64_t version, const TensorSpec& spec, const TensorSpec& there);

// Of a chunk of `bytes` at `offset`.
absl::Status BeyondEnd(std::int64_t offset, std::int64_t bytes, std::int64_t size);
absl::Status Overlap(std::int64_t offset, std::int64_t bytes, std::int64_t there_begin, std::int64_t there_end);
absl::Status TooManyPieces(std::int64_t offset, std::size_t limit);

// `needed` bytes are more than `limit`, which are `of` something: for ever (TOO_LARGE), or beside the `used` ones.
absl::Status CanNeverFit(std::int64_t needed, std::int64_t limit, std::string_view of);
absl::Status DoesNotFitNow(std::string_view reason, std::int64_t needed, std::int64_t used, std::int64_t limit,
                           std::string_view of, std::optional<absl::Duration> retry_after);
// One tensor more than a session, or all together, may have.
absl::Status SessionHasTooMany(std::int64_t limit);
absl::Status TooManyInAll(std::int64_t limit, absl::Duration retry_after);

}  // namespace kernd::core
