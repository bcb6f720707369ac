// Downloads. What is asked for is cut into ranges, one for each lane; a lane that is done takes another one.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "client/src/chunk.h"
#include "client/src/status.h"
#include "client/src/transfer.h"
#include "kernd/client/error.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

Pieces Request(const std::string& session, std::uint64_t id, std::uint64_t version, std::int64_t offset,
               std::int64_t length) {
  v1::GetRequest request;
  request.set_session_id(session);
  request.set_id(id);
  request.set_offset_bytes(offset);
  request.set_length_bytes(length);
  request.set_chunk_bytes(kChunkBytes);
  request.set_version(version);
  Pieces pieces;
  pieces.Message(request);
  return pieces;
}

// Fills `range` from `*done` on, which moves along.
absl::Status Receive(Stream& stream, const Download& range, std::int64_t* done) {
  grpc::ByteBuffer message;
  while (stream.Read(&message)) {
    const absl::StatusOr<std::int64_t> bytes =
        ReadChunk(message, range.offset_bytes + *done, range.into.subspan(static_cast<std::size_t>(*done)));
    KERND_CLIENT_RETURN_IF_ERROR(bytes.status());
    *done += *bytes;
  }
  return absl::OkStatus();
}

absl::Status FillRange(const Stripe& stripe, const CallTerms& terms, const std::string& session,
                       const Download& range) {
  std::int64_t done = 0;
  return Repeat(terms, [&](Pushback* pushback) {
    const std::int64_t left = std::ssize(range.into) - done;
    if (left == 0) return absl::OkStatus();  // what broke off had been all
    Stream stream(stripe, "/kernd.v1.Tensors/Get", terms);
    if (stream.Write(Request(session, range.id, range.version, range.offset_bytes + done, left)) &&
        stream.HalfClose()) {
      KERND_CLIENT_RETURN_IF_ERROR(Receive(stream, range, &done));
    }
    KERND_CLIENT_RETURN_IF_ERROR(stream.Finish(pushback));
    return done == std::ssize(range.into) ? absl::OkStatus()
                                          : BadReply("tensor " + std::to_string(range.id) + " ends early");
  });
}

std::vector<Download> Ranges(const std::vector<Download>& downloads, int lanes) {
  std::vector<Download> ranges;
  for (const Download& download : downloads) {
    const std::int64_t size = std::ssize(download.into);
    const std::int64_t row = lanes * kChunkBytes;
    const std::int64_t share = (size / row + (size % row == 0 ? 0 : 1)) * kChunkBytes;
    for (std::int64_t begin = 0; begin < size; begin += share) {
      ranges.push_back({download.id, download.offset_bytes + begin,
                        download.into.subspan(static_cast<std::size_t>(begin),
                                              static_cast<std::size_t>(std::min(share, size - begin))),
                        download.version});
    }
  }
  return ranges;
}

// The version of the tensor that is there.
absl::StatusOr<std::uint64_t> VersionNow(Stripes& stripes, const std::string& session, const Download& download,
                                         const CallTerms& terms) {
  std::uint64_t version = 0;
  const absl::Status asked = stripes.Run(1, terms, [&](int, const Stripe& stripe, const CallTerms& lane_terms) {
    return Repeat(lane_terms, [&](Pushback* pushback) -> absl::Status {
      Stream stream(stripe, "/kernd.v1.Tensors/Get", lane_terms);
      grpc::ByteBuffer message;
      if (stream.Write(Request(session, download.id, 0, download.offset_bytes, 1)) && stream.HalfClose() &&
          stream.Read(&message)) {
        const absl::StatusOr<v1::TensorInfo> info = ReadHeader(message);
        KERND_CLIENT_RETURN_IF_ERROR(info.status());
        version = info->version();
      }
      return stream.Finish(pushback);
    });
  });
  KERND_CLIENT_RETURN_IF_ERROR(asked);
  return version;
}

// Replaced while it was read in parts.
bool IsReplaced(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && DetailsOf(status).reason == "OLD_VERSION";
}

// How often a tensor may be replaced while it is read in parts before that is for the caller to arrange.
constexpr int kTries = 8;

}  // namespace

absl::Status GetTensors(Stripes& stripes, const std::string& session, const std::vector<Download>& downloads,
                        const CallTerms& terms) {
  std::int64_t bytes = 0;
  for (const Download& download : downloads) bytes += std::ssize(download.into);
  const std::vector<Download> ranges = Ranges(downloads, stripes.Lanes(bytes));
  if (ranges.empty()) return absl::OkStatus();
  const int lanes = static_cast<int>(std::min<std::size_t>(stripes.Lanes(bytes), ranges.size()));
  std::atomic<std::size_t> next = 0;
  return stripes.Run(lanes, terms, [&](int, const Stripe& stripe, const CallTerms& lane_terms) {
    for (std::size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < ranges.size();) {
      KERND_CLIENT_RETURN_IF_ERROR(FillRange(stripe, lane_terms, session, ranges[i]));
    }
    return absl::OkStatus();
  });
}

namespace {

absl::StatusOr<Tensor> TryGetTensor(Stripes& stripes, const std::string& session, std::uint64_t id,
                                    const CallTerms& terms) {
  Tensor tensor;
  std::uint64_t version = 0;
  std::int64_t done = 0;
  // The whole of it, until the header says how much that is: the rest of a large one is then asked for in ranges.
  const auto begin = [&](const Stripe& stripe, const CallTerms& lane_terms, Pushback* pushback) -> absl::Status {
    Stream stream(stripe, "/kernd.v1.Tensors/Get", lane_terms);
    grpc::ByteBuffer message;
    if (stream.Write(Request(session, id, 0, 0, 0)) && stream.HalfClose() && stream.Read(&message)) {
      const absl::StatusOr<v1::TensorInfo> info = ReadHeader(message);
      KERND_CLIENT_RETURN_IF_ERROR(info.status());
      version = info->version();
      absl::StatusOr<Tensor> found = TensorOf(*info);
      KERND_CLIENT_RETURN_IF_ERROR(found.status());
      tensor = *std::move(found);
      const Download all = {id, 0, tensor.mutable_bytes()};
      const absl::StatusOr<std::int64_t> bytes = ReadChunk(message, 0, all.into);
      KERND_CLIENT_RETURN_IF_ERROR(bytes.status());
      done = *bytes;
      if (stripes.Lanes(std::ssize(all.into)) > 1) return absl::OkStatus();  // the stream is cancelled
      KERND_CLIENT_RETURN_IF_ERROR(Receive(stream, all, &done));
    }
    return stream.Finish(pushback);
  };
  const absl::Status begun = stripes.Run(1, terms, [&](int, const Stripe& stripe, const CallTerms& lane_terms) {
    return Repeat(lane_terms, [&](Pushback* pushback) { return begin(stripe, lane_terms, pushback); });
  });
  KERND_CLIENT_RETURN_IF_ERROR(begun);
  if (tensor.dtype() == DataType::kUnspecified) return BadReply("tensor " + std::to_string(id) + " has no header");
  const std::span<std::byte> rest = tensor.mutable_bytes().subspan(static_cast<std::size_t>(done));
  KERND_CLIENT_RETURN_IF_ERROR(GetTensors(stripes, session, {{id, done, rest, version}}, terms));
  return tensor;
}

}  // namespace

absl::StatusOr<Tensor> GetTensor(Stripes& stripes, const std::string& session, std::uint64_t id,
                                 const CallTerms& terms) {
  absl::StatusOr<Tensor> tensor = TryGetTensor(stripes, session, id, terms);
  for (int i = 1; i < kTries && IsReplaced(tensor.status()); ++i) tensor = TryGetTensor(stripes, session, id, terms);
  return tensor;
}

absl::Status GetRange(Stripes& stripes, const std::string& session, Download download, const CallTerms& terms) {
  if (stripes.Lanes(std::ssize(download.into)) == 1) return GetTensors(stripes, session, {download}, terms);
  absl::Status got;
  for (int i = 0; i < kTries && (i == 0 || IsReplaced(got)); ++i) {
    const absl::StatusOr<std::uint64_t> version = VersionNow(stripes, session, download, terms);
    KERND_CLIENT_RETURN_IF_ERROR(version.status());
    download.version = *version;
    got = GetTensors(stripes, session, {download}, terms);
  }
  return got;
}

}  // namespace kernd::client
