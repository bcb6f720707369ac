#include "tests/fuzz/request.h"

#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "client/src/status.h"
#include "kernd/client/error.h"
#include "kernd/kernels/error.h"
#include "server/rpc/status_codec.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {
namespace {

[[maybe_unused]] auto* const kLoud = google::protobuf::SetLogHandler(nullptr);  // it has a line for each bad string

constexpr std::size_t kMaxMetadata = 8 << 10;
constexpr std::int64_t kStringRoom = 50'000'000;

// One past the last element of a tensor's last row, where it starts at `rows` times `row` behind `start`.
std::int64_t End(std::int64_t start, std::int64_t rows, std::int64_t row, std::int64_t columns) {
  return start + (rows - 1) * row + columns;
}

void RequireInside(std::int64_t end, const TensorSpec& spec, std::string_view rule) {
  if (spec.strides.empty()) Require(end <= spec.elements(), rule);
}

}  // namespace

grpc::ByteBuffer BodyOf(std::string_view bytes) {
  AllowMemory(kStringRoom);
  const std::size_t cut = bytes.size() / 3;
  const grpc::Slice slices[] = {grpc::Slice(bytes.data(), cut), grpc::Slice(bytes.data() + cut, bytes.size() - cut)};
  return {slices, 2};
}

std::string BytesOf(const grpc::ByteBuffer& body) {
  std::vector<grpc::Slice> slices;
  Require(body.Dump(&slices).ok(), "a body can be read");
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

std::string BytesOf(const core::Operand& operand) {
  std::string bytes;
  for (const auto run : operand.runs) bytes.append(reinterpret_cast<const char*>(run.data()), run.size());
  return bytes;
}

void RequireRefusal(const absl::Status& status) {
  using absl::StatusCode;
  const ErrorDetail detail = DetailOf(status);
  const StatusCode code = status.code();
  Require(code == StatusCode::kInvalidArgument || code == StatusCode::kUnimplemented || code == StatusCode::kNotFound,
          "a request is refused as invalid, unimplemented or for another device");
  Require(!detail.reason.empty(), "a refusal has a reason");
  Require(!detail.field.empty() || detail.reason == reason::kMalformed, "a refusal names the field at fault");

  const grpc::Status wire = rpc::ToGrpc(status);
  // On the wire a "%" takes three bytes, and the details are in base64.
  const std::size_t percents = std::ranges::count(wire.error_message(), '%');
  const std::size_t metadata = wire.error_message().size() + 2 * percents + (wire.error_details().size() + 2) / 3 * 4;
  Require(metadata < kMaxMetadata, "a refusal fits into gRPC's metadata");
  const client::ErrorDetails read = client::DetailsOf(client::FromGrpc(wire));
  Require(read.reason == detail.reason && read.field == detail.field && read.metadata == detail.metadata,
          "a refusal reaches the client whole");
}

void RequireSizes(const MatmulProblem& p, const MatmulGeometry& g) {
  const std::optional<std::int64_t> batch = CheckedProduct(g.batch_shape);
  Require(batch == g.batch, "batch is the product of its dimensions");
  const std::int64_t factors[] = {*batch, g.m, g.n};
  Require(CheckedProduct(factors) == g.d.elements(), "D has batch * M * N elements");
  Require(CheckedMul(g.d.elements(), ElementBytes(g.output_dtype)) == g.d.bytes(), "D's bytes do not wrap");
  Require(g.batch_shape.size() == g.a_batch_strides.size() && g.batch_shape.size() == g.b_batch_strides.size(),
          "each dimension of the batch has its strides");
  if (g.d.elements() == 0 || g.k == 0) return;
  const std::int64_t last = g.batch - 1;
  const auto end = [](std::int64_t start, bool transposed, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
    return transposed ? End(start, columns, ld, rows) : End(start, rows, ld, columns);
  };
  RequireInside(end(g.AOffset(last), p.transpose_a, g.m, g.k, g.lda), p.a, "the last item of A is inside");
  RequireInside(end(g.BOffset(last), p.transpose_b, g.k, g.n, g.ldb), p.b, "the last item of B is inside");
  if (p.c) RequireInside(End(g.COffset(last), g.m, g.ldc, g.n), *p.c, "the last item of C is inside");
}

void RequireSizes(const AttentionProblem& p, const AttentionGeometry& g) {
  Require(static_cast<std::int64_t>(g.sequences.size()) == g.batch, "there are as many sequences as `batch` says");
  Require(NaiveBytes(p, g) >= 0, "the textbook's bytes do not wrap");
  Require(!p.want_lse || g.lse_spec.has_value(), "LSE has a shape where it is wanted");
  const std::optional<std::int64_t> o = CheckedProduct(g.o_spec.shape);
  Require(o && CheckedMul(*o, ElementBytes(g.output_dtype)) == g.o_spec.bytes(), "O's bytes do not wrap");
  for (std::int64_t b = 0; b < g.batch; ++b) {
    const AttentionSequence& s = g.sequences[b];
    Require(s.q_start >= 0 && s.q_length >= 0 && s.q_length <= s.q_rows, "q_length is some of the rows");
    Require(s.kv_start >= 0 && s.kv_length >= 0, "keys are counted from 0");
    const auto end = [&](const HeadStrides& strides, std::int64_t heads, std::int64_t start, std::int64_t rows,
                         std::int64_t columns) {
      return End(b * strides.batch + (heads - 1) * strides.head + start * strides.row, rows, strides.row, columns);
    };
    if (s.q_rows > 0 && g.q_heads > 0) {
      if (g.head_dim > 0) {
        RequireInside(end(g.q, g.q_heads, s.q_start, s.q_rows, g.head_dim), p.q, "the last row of Q is inside");
      }
      if (g.v_head_dim > 0) {
        RequireInside(end(g.o, g.q_heads, s.q_start, s.q_rows, g.v_head_dim), g.o_spec, "the last row of O is inside");
      }
    }
    if (s.kv_length == 0 || g.kv_heads == 0) continue;
    if (g.head_dim > 0) {
      RequireInside(end(g.k, g.kv_heads, s.kv_start, s.kv_length, g.head_dim), p.k, "the last key is inside");
    }
    if (g.v_head_dim > 0) {
      RequireInside(end(g.v, g.kv_heads, s.kv_start, s.kv_length, g.v_head_dim), p.v, "the last value is inside");
    }
  }
}

}  // namespace kernd::fuzz
