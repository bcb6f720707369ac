// Tensors to and from a session, over the stripes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/src/connection.h"
#include "client/src/stripes.h"
#include "kernd/client/tensor.h"

namespace kernd::client {

struct Upload {
  std::uint64_t id = 0;
  TensorView tensor;
  std::string device;  // as in CallOptions
};

struct Download {
  std::uint64_t id = 0;
  std::int64_t offset_bytes = 0;
  std::span<std::byte> into;
  std::uint64_t version = 0;  // 0: whichever is there, for each range anew
};

// Both: valid views; the session's id; terms with its metadata. Thread-safe. When they return, nothing holds the memory
// that they were given.

// Sends tensors, all at once, each under a version of its own: a stream that breaks is sent again, and the daemon takes
// what it has not got yet. OK: all are READY. Else some may be FILLING.
absl::Status PutTensors(Stripes& stripes, const std::string& session, const std::vector<Upload>& uploads,
                        const CallTerms& terms);

// Receives ranges of tensors, each byte copied once.
absl::Status GetTensors(Stripes& stripes, const std::string& session, const std::vector<Download>& downloads,
                        const CallTerms& terms);

// A range of one version of a tensor that others may replace meanwhile.
absl::Status GetRange(Stripes& stripes, const std::string& session, Download download, const CallTerms& terms);

// Receives a tensor of which nothing is known, all of it of one version.
absl::StatusOr<Tensor> GetTensor(Stripes& stripes, const std::string& session, std::uint64_t id,
                                 const CallTerms& terms);

}  // namespace kernd::client
