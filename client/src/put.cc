// Uploads. Tensors are cut into chunks, which the lanes take as they come: a slow connection takes fewer.
#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>

#include "client/src/payload.h"
#include "client/src/status.h"
#include "client/src/transfer.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

// More than that of any upload before, in this process and, by the clock, in others that use the same session.
std::uint64_t FreshVersion() {
  static std::atomic<std::uint64_t> last = 0;
  std::uint64_t before = last.load(std::memory_order_relaxed), version;
  do {
    version = std::max(before + 1, static_cast<std::uint64_t>(absl::ToUnixNanos(absl::Now())));
  } while (!last.compare_exchange_weak(before, version, std::memory_order_relaxed));
  return version;
}

// A tensor on its way, shared by the lanes.
class Parcel {
 public:
  Parcel(const std::string& session, const Upload& upload)
      : data_(upload.tensor.data), num_chunks_((std::ssize(data_) + kChunkBytes - 1) / kChunkBytes) {
    v1::PutRequest request;
    v1::PutHeader& header = *request.mutable_header();
    header.set_session_id(session);
    header.set_id(upload.id);
    header.set_dtype(static_cast<v1::DataType>(upload.tensor.dtype));
    header.mutable_shape()->Add(upload.tensor.shape.begin(), upload.tensor.shape.end());
    if (!upload.device.empty()) header.mutable_placement()->set_device_uuid(upload.device);
    header.set_version(FreshVersion());
    header_.Message(request);
  }

  const Pieces& header() const { return header_; }

  // A chunk that nobody else has; of a tensor without bytes there is one, empty.
  std::optional<std::int64_t> Take() {
    const std::int64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
    return chunk < std::max<std::int64_t>(num_chunks_, 1) ? std::optional(chunk) : std::nullopt;
  }

  Pieces Chunk(std::int64_t chunk) const {
    const std::int64_t offset = chunk * kChunkBytes;
    v1::PutRequest request;
    request.set_offset_bytes(offset);
    Pieces pieces;
    pieces.Message(request);
    pieces.Bytes(v1::PutRequest::kDataFieldNumber,
                 data_.subspan(offset, std::min<std::int64_t>(kChunkBytes, std::ssize(data_) - offset)));
    return pieces;
  }

  void SetReady() { ready_.store(true, std::memory_order_relaxed); }
  bool ready() const { return ready_.load(std::memory_order_relaxed); }

 private:
  const std::span<const std::byte> data_;
  const std::int64_t num_chunks_;
  Pieces header_;
  std::atomic<std::int64_t> next_ = 0;
  std::atomic<bool> ready_ = false;
};

absl::Status ReadReply(Stream& stream, Parcel& parcel) {
  grpc::ByteBuffer buffer;
  if (!stream.Read(&buffer)) return absl::OkStatus();  // Finish says why
  absl::StatusOr<ParsedReply> parsed = PartReply(std::move(buffer), {});
  KERND_CLIENT_RETURN_IF_ERROR(parsed.status());
  v1::PutReply reply;
  if (!reply.ParseFromString(parsed->rest)) return BadReply("no PutReply");
  if (reply.state() == v1::TENSOR_STATE_READY) parcel.SetReady();
  return absl::OkStatus();
}

// Sends `chunk`, and all that are left when it is on its way, in one stream.
absl::Status Send(const Stripe& stripe, const CallTerms& terms, Parcel& parcel, std::int64_t chunk) {
  std::vector<std::int64_t> mine = {chunk};
  return Repeat(terms, [&](Pushback* pushback) {
    Stream stream(stripe, "/kernd.v1.Tensors/Put", terms);
    bool alive = stream.Write(parcel.header());
    for (std::size_t i = 0; alive && i < mine.size(); ++i) {
      const Pieces message = parcel.Chunk(mine[i]);
      alive = stream.Write(message);
      if (i + 1 < mine.size()) continue;
      if (const std::optional<std::int64_t> next = alive ? parcel.Take() : std::nullopt) mine.push_back(*next);
    }
    absl::Status read;
    if (alive && stream.HalfClose()) read = ReadReply(stream, parcel);
    const absl::Status status = stream.Finish(pushback);
    return status.ok() ? read : status;
  });
}

}  // namespace

absl::Status PutTensors(Stripes& stripes, const std::string& session, const std::vector<Upload>& uploads,
                        const CallTerms& terms) {
  std::deque<Parcel> parcels;
  std::int64_t bytes = 0;
  for (const Upload& upload : uploads) {
    parcels.emplace_back(session, upload);
    bytes += std::ssize(upload.tensor.data);
  }
  // Lanes begin with different tensors, so that few streams are needed.
  const absl::Status sent =
      stripes.Run(stripes.Lanes(bytes), terms, [&](int lane, const Stripe& stripe, const CallTerms& lane_terms) {
        for (std::size_t i = 0; i < parcels.size(); ++i) {
          Parcel& parcel = parcels[(i + static_cast<std::size_t>(lane)) % parcels.size()];
          if (const std::optional<std::int64_t> chunk = parcel.Take()) {
            KERND_CLIENT_RETURN_IF_ERROR(Send(stripe, lane_terms, parcel, *chunk));
          }
        }
        return absl::OkStatus();
      });
  KERND_CLIENT_RETURN_IF_ERROR(sent);
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    if (!parcels[i].ready())
      return BadReply("tensor " + std::to_string(uploads[i].id) + " is not READY after all of it");
  }
  return absl::OkStatus();
}

}  // namespace kernd::client
