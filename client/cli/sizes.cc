#include "client/cli/sizes.h"

#include "client/cli/operands.h"

namespace kernd::cli {
namespace {

constexpr std::size_t kMaxDims = 8;

}  // namespace

absl::StatusOr<MatmulDims> ParseMatmulDims(const std::string& where, const std::string& text) {
  const absl::StatusOr<std::vector<std::int64_t>> dims = ParseDims(text, "x");
  if (!dims.ok() || dims->size() < 3 || dims->size() > kMaxDims) {
    return absl::InvalidArgumentError(where + " " + text + ": must be MxNxK, or BATCHxMxNxK");
  }
  const auto last = dims->end();
  return MatmulDims{.batch = {dims->begin(), last - 3}, .m = last[-3], .n = last[-2], .k = last[-1]};
}

absl::StatusOr<AttentionDims> ParseAttentionDims(const std::string& where, const std::string& text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      where + " " + text + ": must be BxHqxLqxD, with ,Hkv,Lkv,Dv after it where they differ");
  const std::size_t comma = text.find(',');
  const absl::StatusOr<std::vector<std::int64_t>> q = ParseDims(text.substr(0, comma), "x");
  if (!q.ok() || q->size() != 4) return wrong;
  AttentionDims dims{(*q)[0], (*q)[1], (*q)[2], (*q)[3], (*q)[1], (*q)[2], (*q)[3]};
  if (comma == std::string::npos) return dims;
  const absl::StatusOr<std::vector<std::int64_t>> kv = ParseDims(text.substr(comma + 1), ",x");
  if (!kv.ok() || kv->size() > 3) return wrong;
  dims.kv_heads = (*kv)[0];
  if (kv->size() > 1) dims.kv_length = (*kv)[1];
  if (kv->size() > 2) dims.v_head_dim = (*kv)[2];
  return dims;
}

}  // namespace kernd::cli
