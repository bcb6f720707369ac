// Attention on tensor cores by mma.sync: F16 and BF16, every option.
// Tile: 128 rows (a row: a query of one head of a kv head's group) by 64 keys, 4 warps of 32 rows; 64 rows, 16 a warp,
//   past 128 channels or where rows are few. A row's bits do not depend on which. S, P and O stay in registers.
// Shared memory: Q, and one buffer each of K and V, swizzled (device/shared.cuh): 64 KiB and 2 for the rows at D128, so
//   that an SM of an H100 has two blocks and a block fits on SM 8.6. K of the next tile is copied while P V is
//   computed, V while Q K^T and the softmax are. SM 7.5 copies at once, through registers.
// Sequences with few rows and many keys are cut along the keys: 16 rows and less by attention_mma_decode.cuh.
// Values that are not finite: attention_mma_fragment.cuh.
// Limits: channels and strides are multiples of 8; positions below 2^31. Channels are padded to 32, 64, 96, 128,
//   192 (V to 128 or 192) or 256.
// Time, for D128 on an H200: a tile is 256 mma.sync of each warp, 8 clocks apiece at A100's rate and about 6.4 at what
//   mma.sync is known to get out of Hopper: 1640 clocks for 2 x 128 x 64 x 256 FLOP, so at most 132 SMs x 1.7 GHz x
//   2560 FLOP a clock = 570 TFLOP/s. Beside them a warp issues 80 ldmatrix and about 950 others, and its exponentials
//   take 512 clocks: hidden if the SM's two blocks are out of step. ldmatrix reads 160 KiB, 1280 clocks: the next
//   bound. Measured: 275 at L16384, 232 at L1024.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/gpu/attention_mma.h"
#include "kernels/gpu/cuda.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {
namespace {

// The smallest padding that holds both numbers of channels.
MmaFamily FamilyFor(MmaKind kind, const AttentionGeometry& g) {
  const std::int64_t d = g.head_dim, dv = g.v_head_dim, most = std::max(d, dv);
  if (most <= 32) return MmaFamilyOf<32, 32>(kind);
  if (most <= 64) return MmaFamilyOf<64, 64>(kind);
  if (most <= 96) return MmaFamilyOf<96, 96>(kind);
  if (most <= 128) return MmaFamilyOf<128, 128>(kind);
  if (d <= 192 && dv <= 128) return MmaFamilyOf<192, 128>(kind);
  if (most <= 192) return MmaFamilyOf<192, 192>(kind);
  return MmaFamilyOf<256, 256>(kind);
}

bool Fits(const MmaKernel& kernel, const DeviceInfo& device) {
  return kernel.rows > 0 && static_cast<std::int64_t>(kernel.shared_bytes) <= device.shared_memory_optin;
}

// Rows of 16-byte chunks: what copies and ldmatrix take.
std::string WhyNotRows(std::string_view name, const HeadStrides& strides, const AttentionGeometry& g,
                       std::int64_t heads, std::int64_t channels) {
  if (channels % 8 != 0 || channels == 0 || channels > 256) {
    return absl::StrCat(std::string(name), " has ", channels, " channels: a multiple of 8, at most 256");
  }
  const bool aligned =
      strides.row % 8 == 0 && (heads <= 1 || strides.head % 8 == 0) && (g.batch <= 1 || strides.batch % 8 == 0);
  return aligned ? "" : absl::StrCat(std::string(name), " has strides that are no multiples of 8 elements");
}

template <MmaKind kKind>
std::string WhyNot(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo& device) {
  for (const std::string& why :
       {WhyNotRows("q", g.q, g, g.q_heads, g.head_dim), WhyNotRows("k", g.k, g, g.kv_heads, g.head_dim),
        WhyNotRows("v", g.v, g, g.kv_heads, g.v_head_dim)}) {
    if (!why.empty()) return why;
  }
  constexpr std::int64_t kMost = 0x7fffff00;  // positions are ints
  if (g.max_kv_length > kMost || g.max_q_rows * g.heads_per_kv > kMost || g.q_heads > kMost) {
    return absl::StrCat("takes at most ", kMost, " keys and query rows of a kv head");
  }
  const MmaFamily family = FamilyFor(kKind, g);
  if (family.small.rows == 0) return absl::StrCat("has no tile for ", std::max(g.head_dim, g.v_head_dim), " channels");
  if (!Fits(family.small, device)) {
    return absl::StrCat("needs ", family.small.shared_bytes, " bytes of shared memory, and a block here gets ",
                        device.shared_memory_optin);
  }
  return "";
}

// The large tile where there are enough of it for the device, and it fits.
const MmaKernel& TileFor(const MmaFamily& family, std::int64_t rows, std::int64_t heads, const DeviceInfo& device) {
  const std::int64_t size = family.large.rows;
  const bool enough = rows > family.small.rows && (rows + size - 1) / size * heads >= device.multiprocessors;
  return Fits(family.large, device) && enough ? family.large : family.small;
}

absl::Status LaunchTiles(const AttentionParams& params, AttentionPlan plan, const MmaKernel& kernel, std::int64_t rows,
                         std::int64_t all_rows, Stream stream) {
  CutIntoPieces(params, kernel.rows, params.v_head_dim, rows, all_rows, plan);
  return kernel.launch(params, plan, stream);
}

template <MmaKind kKind>
absl::Status Launch(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device,
                    const AttentionArgs& args, const AttentionTables& tables, void* workspace, Stream stream) {
  if (g.o_spec.elements() == 0) return absl::OkStatus();  // LSE alone would have been refused: V has no columns
  const AttentionParams params = ParamsOf(p, g, args, tables);
  const MmaFamily family = FamilyFor(kKind, g);
  const SplitPlan split = PlanSplits(g);
  if (!split.all) {
    const AttentionPlan plan{.section = SectionOf(g, params.type_bytes, device),
                             .packed = p.layout == AttentionLayout::kPacked};
    const std::int64_t rows = g.max_q_rows * g.heads_per_kv;
    const std::int64_t all_rows = plan.packed ? p.q.shape[0] * g.heads_per_kv : 0;
    KERND_RETURN_IF_ERROR(
        LaunchTiles(params, plan, TileFor(family, rows, g.batch * g.kv_heads, device), rows, all_rows, stream));
  }
  const std::int64_t decode_rows = Fits(family.decode, device) ? family.decode.rows : 0;
  for (const SplitGroup& group : split.groups) {
    AttentionPlan plan{.split = true, .group = group, .workspace = split.At(workspace)};
    std::int64_t few = 0, many = 0;  // the most rows of sequences for `decode`, and of the others
    for (std::int64_t b = group.first; b < group.first + group.count; ++b) {
      const AttentionSequence& s = g.sequences[b];
      if (SplitKeys(s, g.heads_per_kv, g.kv_heads) == 0) continue;
      const std::int64_t rows = s.q_length * g.heads_per_kv;
      std::int64_t& most = rows <= decode_rows ? few : many;
      most = std::max(most, rows);
    }
    if (few > 0) {
      plan.min_rows = 0;
      plan.max_rows = decode_rows;
      KERND_RETURN_IF_ERROR(LaunchTiles(params, plan, family.decode, few, 0, stream));
    }
    if (many > 0) {
      plan.min_rows = decode_rows + 1;
      plan.max_rows = 0;
      const std::int64_t pieces = group.count * group.splits * g.kv_heads;
      KERND_RETURN_IF_ERROR(LaunchTiles(params, plan, TileFor(family, many, pieces, device), many, 0, stream));
    }
    KERND_RETURN_IF_ERROR(LaunchMerge(params, group, plan.workspace, stream));
  }
  return absl::OkStatus();
}

std::int64_t WorkspaceBytes(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo&) {
  return PlanSplits(g).bytes;
}

template <MmaKind kKind>
absl::Status Load(const DeviceInfo& device) {
  for (const MmaFamily& family : {MmaFamilyOf<32, 32>(kKind), MmaFamilyOf<64, 64>(kKind), MmaFamilyOf<96, 96>(kKind),
                                  MmaFamilyOf<128, 128>(kKind), MmaFamilyOf<192, 128>(kKind),
                                  MmaFamilyOf<192, 192>(kKind), MmaFamilyOf<256, 256>(kKind)}) {
    for (const MmaKernel& kernel : {family.large, family.small, family.decode}) {
      if (Fits(kernel, device)) KERND_RETURN_IF_ERROR(kernel.load());
    }
  }
  return absl::OkStatus();
}

// The larger of the times for arithmetic and for reading K and V, fitted to an H200 (kernels/README.md): clocks for
// each score, and for each tile of 128 rows those in which nothing is multiplied.
template <MmaKind kKind>
double Estimate(const AttentionProblem&, const AttentionGeometry& g, const DeviceInfo& device) {
  constexpr double kLaunchMicroseconds = 8, kShareOfMemory = 0.85, kClocksOfTile = 11500;
  constexpr std::int64_t kRows = 128;
  const double fmas_per_clock =
      (kKind == MmaKind::kF16Sm75 || device.sm < 80 ? 256 : 512) * (device.sm >= 90 ? 1.2 : 1.0);
  const double channels = static_cast<double>(g.head_dim + g.v_head_dim);
  double keys = 0, all_rows = 0, blocks = 0;
  for (const AttentionSequence& s : g.sequences) {
    const std::int64_t rows = s.q_length * g.heads_per_kv, split_keys = SplitKeys(s, g.heads_per_kv, g.kv_heads);
    const std::int64_t of_sequence = split_keys > 0 ? NumSplits(s, split_keys) : (rows + kRows - 1) / kRows;
    keys += static_cast<double>(s.kv_length);
    all_rows += static_cast<double>(rows * g.kv_heads);
    blocks += static_cast<double>(of_sequence * g.kv_heads);
  }
  const double clocks = VisibleScores(g) * (channels + 40) / fmas_per_clock + all_rows / kRows * kClocksOfTile;
  const double rate = std::clamp<double>(blocks, 1, device.multiprocessors) * (device.clock_khz * 1e-3);
  const double bytes = keys * static_cast<double>(g.kv_heads) * channels * 2;
  return kLaunchMicroseconds +
         std::max(clocks / rate, bytes / (kShareOfMemory * static_cast<double>(device.memory_bytes_per_second) * 1e-6));
}

template <MmaKind kKind>
AttentionVariant Row(DataType type, int min_sm, std::string method) {
  return {.info = {.name = absl::StrCat("attention_", std::string(Token(type)), "_sm", min_sm, "_mma"),
                   .op = OpKind::kAttention,
                   .dtypes = {type},
                   .method = std::move(method),
                   .limits = "head dimensions are multiples of 8 up to 256; strides are multiples of 8 elements"},
          .min_sm = min_sm,
          .why_not = WhyNot<kKind>,
          .estimate = Estimate<kKind>,
          .workspace_bytes = WorkspaceBytes,
          .load = Load<kKind>,
          .launch = Launch<kKind>};
}

}  // namespace
}  // namespace gpu

absl::Span<const AttentionVariant> AttentionMmaVariants() {
  static const auto& rows = *new std::vector<AttentionVariant>{
      gpu::Row<gpu::MmaKind::kF16Sm80>(DataType::kF16, 80, "tensor cores (mma.sync), asynchronous copies"),
      gpu::Row<gpu::MmaKind::kBF16Sm80>(DataType::kBF16, 80, "tensor cores (mma.sync), asynchronous copies"),
      gpu::Row<gpu::MmaKind::kF16Sm75>(DataType::kF16, 75, "tensor cores (mma.sync), as SM 7.5 has them")};
  return rows;
}

}  // namespace kernd
