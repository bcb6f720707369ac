// Sizes of a problem as people write them: "128x64x32", "1x32x4096x128,8".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kernd::cli {

// [batch..., M, K] times [batch..., K, N].
struct MatmulDims {
  std::vector<std::int64_t> batch;
  std::int64_t m = 0, n = 0, k = 0;
};

struct AttentionDims {
  std::int64_t batch = 0, q_heads = 0, q_length = 0, head_dim = 0;
  std::int64_t kv_heads = 0, kv_length = 0, v_head_dim = 0;
};

// MxNxK, or BATCHxMxNxK. INVALID_ARGUMENT: "<where> <text>: must be ...".
absl::StatusOr<MatmulDims> ParseMatmulDims(const std::string& where, const std::string& text);

// BxHqxLqxD, and ,Hkv,Lkv,Dv behind it where they differ. INVALID_ARGUMENT as above.
absl::StatusOr<AttentionDims> ParseAttentionDims(const std::string& where, const std::string& text);

}  // namespace kernd::cli
