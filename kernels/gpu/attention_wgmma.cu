// Attention on Hopper's tensor cores: F16 and BF16, wgmma on tiles that bulk copies (TMA) bring, warps in roles.
// Tile: 128 rows by 128 keys (D64: 192 rows; D192 and D256: fewer keys). A row: a query of one of the heads that
//   share a kv head, as many of them to a tile as the largest power of two that divides the group.
// Roles: a warpgroup of which one thread finds jobs ahead of time and another copies, 32 or 40 registers a thread;
//   two or three that compute 64 rows each, 232 or 160: S, P and O stay in registers, from which O is written. Q K^T of
//   a tile runs beside the softmax of the tile after it (attention_wgmma_consumer.cuh), and the warpgroups take turns
//   at issuing products. Each skips tiles of which its rows see nothing.
// Shared memory: two buffers of Q (one past 128 channels), free again after a job's last Q K^T; rings of two tiles of K
//   and V, swizzled over 128 bytes. D128: 192 KiB and one block an SM, which goes on from job to job; of causal rows it
//   gets a long and a short one at a time.
// Values that are not finite: attention_wgmma_care.cuh.
// Limits: no mask, bias or slopes; channels and strides are multiples of 8; positions below 2^31; code for SM 9.0
//   alone. Channels are padded by what copies leave out, to 64, 96, 128, 192 (V to 128 or 192) or 256.
// Time, for D128 on an H200: products take 2048 clocks of a tile's 128 x 128 scores, exponentials 1024 and what else
// the softmax is about 700 of issue, all of which must hide behind the products: at most 132 SMs x 1.7 GHz x 4096 FLOP
// a clock = 920 TFLOP/s. Measured: 668 full at L16384, about 2800 clocks a tile; 522 at L1024, where a job's first
// scores, last products and results add some 5000 to its eight tiles.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/attention_wgmma.h"
#include "kernels/gpu/tensor_map.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace gpu {
namespace {

// The smallest padding that holds both numbers of channels.
WgmmaKernel KernelFor(DataType type, const AttentionGeometry& g) {
  const std::int64_t d = g.head_dim, dv = g.v_head_dim, most = std::max(d, dv);
  const bool positional = g.window_left.has_value() || g.window_right.has_value();
  if (most <= 64) return WgmmaKernelOf<64, 64>(type, positional);
  if (most <= 96) return WgmmaKernelOf<96, 96>(type, positional);
  if (most <= 128) return WgmmaKernelOf<128, 128>(type, positional);
  if (d <= 192 && dv <= 128) return WgmmaKernelOf<192, 128>(type, positional);
  if (most <= 192) return WgmmaKernelOf<192, 192>(type, positional);
  return WgmmaKernelOf<256, 256>(type, positional);
}

// Rows that the maps of Q, or of K and V, have: padding past the last sequence's is never read.
struct MapRows {
  std::int64_t q = 0, kv = 0;
};
MapRows MapRowsOf(const AttentionGeometry& g) {
  MapRows rows;
  for (const AttentionSequence& s : g.sequences) {
    rows.q = std::max(rows.q, s.q_start + s.q_length);
    rows.kv = std::max(rows.kv, s.kv_start + s.kv_length);
  }
  return rows;
}

constexpr std::int64_t kMostRows = 0x7fffff00;  // positions are ints

// What a map of the tensor needs.
std::string WhyNotTensor(std::string_view name, const HeadStrides& strides, std::int64_t batch, std::int64_t heads,
                         std::int64_t rows, std::int64_t channels) {
  if (channels % 8 != 0 || channels == 0 || channels > 256) {
    return absl::StrCat(std::string(name), " has ", channels, " channels: a multiple of 8, at most 256");
  }
  for (const auto& [stride, size] : {std::pair{strides.row, rows}, {strides.head, heads}, {strides.batch, batch}}) {
    if (size > 1 && (stride % 8 != 0 || stride == 0 || stride > kMaxTensorStride)) {
      return absl::StrCat(std::string(name), " has a stride of ", stride, ": a multiple of 8 elements up to ",
                          kMaxTensorStride);
    }
  }
  return "";
}

std::string WhyNot(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device) {
  if (device.sm != 90)
    return absl::StrCat("is for SM 9.0 alone, and this device is ", device.sm / 10, ".", device.sm % 10);
  if (p.mask || p.bias || !p.alibi_slopes.empty()) return "takes no mask, bias or slopes";
  const MapRows rows = MapRowsOf(g);
  if (rows.q > kMostRows || rows.kv > kMostRows || g.q_heads > kMostRows) {
    return absl::StrCat("takes at most ", kMostRows, " rows and heads");
  }
  const std::int64_t batch = p.layout == AttentionLayout::kPacked ? 1 : g.batch;
  for (const std::string& why : {WhyNotTensor("q", g.q, batch, g.q_heads, rows.q, g.head_dim),
                                 WhyNotTensor("k", g.k, batch, g.kv_heads, rows.kv, g.head_dim),
                                 WhyNotTensor("v", g.v, batch, g.kv_heads, rows.kv, g.v_head_dim)}) {
    if (!why.empty()) return why;
  }
  const WgmmaKernel kernel = KernelFor(p.q.dtype, g);
  if (static_cast<std::int64_t>(kernel.shared_bytes) > device.shared_memory_optin) {
    return absl::StrCat("needs ", kernel.shared_bytes, " bytes of shared memory, and a block here gets ",
                        device.shared_memory_optin);
  }
  return "";
}

TensorView ViewOf(const AttentionProblem& p, const AttentionGeometry& g, const void* address,
                  const HeadStrides& strides, std::int64_t channels, std::int64_t heads, std::int64_t rows) {
  const std::int64_t batch = p.layout == AttentionLayout::kPacked ? 1 : g.batch;
  return {.type = p.q.dtype,
          .address = address,
          .sizes = {channels, heads, std::max<std::int64_t>(1, rows), batch},
          .strides = {strides.head, strides.row, strides.batch}};
}

absl::Status Launch(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device,
                    const AttentionArgs& args, const AttentionTables& tables, void*, Stream stream) {
  if (g.o_spec.elements() == 0) return absl::OkStatus();  // LSE alone would have been refused: V has no columns
  return LaunchWgmma(KernelFor(p.q.dtype, g), p, g, device, args, tables, stream);
}

template <DataType kType>
absl::Status Load(const DeviceInfo& device) {
  if (device.sm != 90) return absl::OkStatus();  // there is no code for it, and it takes no problem
  for (const bool positional : {false, true}) {
    for (const WgmmaKernel& kernel :
         {WgmmaKernelOf<64, 64>(kType, positional), WgmmaKernelOf<96, 96>(kType, positional),
          WgmmaKernelOf<128, 128>(kType, positional), WgmmaKernelOf<192, 128>(kType, positional),
          WgmmaKernelOf<192, 192>(kType, positional), WgmmaKernelOf<256, 256>(kType, positional)}) {
      KERND_RETURN_IF_ERROR(kernel.load());
    }
  }
  return absl::OkStatus();
}

// The larger of the times for arithmetic and for reading K and V, fitted to an H200 (kernels/README.md) within 11 %:
// clocks for each score, and for each tile of rows those in which products wait for its first scores and its last
// results; and what of reading and writing all operands once nothing hides. Few tiles leave SMs idle, as nothing is cut
// along the keys.
double Estimate(const AttentionProblem& p, const AttentionGeometry& g, const DeviceInfo& device) {
  constexpr double kLaunchMicroseconds = 8, kShareOfMemory = 0.6, kClocksOfTile = 4000, kExposed = 0.63;
  const std::int64_t rows = KernelFor(p.q.dtype, g).rows;
  const double channels = static_cast<double>(g.head_dim + g.v_head_dim);
  double queries = 0, keys = 0, tiles = 0, scores = 0;
  for (const AttentionSequence& s : g.sequences) {
    const auto of_sequence = static_cast<double>((s.q_length * g.heads_per_kv + rows - 1) / rows * g.kv_heads);
    queries += static_cast<double>(s.q_length);
    keys += static_cast<double>(s.kv_length);
    tiles += of_sequence;
    scores += of_sequence * static_cast<double>(rows * s.kv_length);
  }
  // Rows that fill no tile cost as much as any.
  if (g.window_left || g.window_right) scores = std::max(VisibleScores(g), scores / 2);
  const double clocks = scores * (1.25 * channels + 85) / 2048 + tiles * kClocksOfTile;
  const double rate = std::clamp<double>(tiles, 1, device.multiprocessors) * (device.clock_khz * 1e-3);
  const double bytes = static_cast<double>(device.memory_bytes_per_second) * 1e-6;  // in a microsecond
  const double of_kv = keys * static_cast<double>(g.kv_heads) * channels * 2 / bytes;
  const double of_qo = queries * static_cast<double>(g.q_heads) * channels * 2 / bytes;
  return kLaunchMicroseconds + std::max(clocks / rate + kExposed * (of_kv + of_qo), of_kv / kShareOfMemory);
}

template <DataType kType>
AttentionVariant Row() {
  return {.info = {.name = absl::StrCat("attention_", std::string(Token(kType)), "_sm90_wgmma"),
                   .op = OpKind::kAttention,
                   .dtypes = {kType},
                   .method = "Hopper's tensor cores (wgmma), bulk copies, warps in roles",
                   .limits = "SM 9.0 alone; no mask, bias or slopes; head dimensions are multiples of 8 up to 256; "
                             "strides are multiples of 8 elements"},
          .min_sm = 90,
          .why_not = WhyNot,
          .estimate = Estimate,
          .workspace_bytes = [](const AttentionProblem&, const AttentionGeometry&, const DeviceInfo&) -> std::int64_t {
            return 0;
          },
          .load = Load<kType>,
          .launch = Launch};
}

// Decides how the grid takes turns at the pieces of causal rows. A head after the other: dealing out one by one, there
// and back again, leaves some blocks with nearly twice the work of others where a head has about as many pieces as the
// grid; pairs are all alike, but come in whole rounds. Where the last of few rounds would be mostly empty, all heads
// are one section: then pieces come in the order of their lengths, and there and back again is as even.
void Pair(const AttentionGeometry& g, std::int64_t blocks, WgmmaLaunch& launch) {
  if (launch.plan.packed || launch.plan.works <= blocks || !(g.window_left || g.window_right)) return;
  if (launch.plan.section == 1) launch.plan.section += launch.plan.blocks % 2;  // else one of a head's is alone
  const std::int64_t pairs = WgmmaPairs(launch.plan), rounds = (pairs + blocks - 1) / blocks;
  if (pairs * 100 >= rounds * blocks * 85) {
    launch.pairs = pairs;
  } else {
    launch.plan.section = launch.params.batch * launch.params.kv_heads;
  }
}

}  // namespace

absl::Status LaunchWgmma(const WgmmaKernel& kernel, const AttentionProblem& p, const AttentionGeometry& g,
                         const DeviceInfo& device, const AttentionArgs& args, const AttentionTables& tables,
                         Stream stream) {
  // Heads of a tile, by no other measure than the group: a power of two that divides 64 rows.
  const std::int64_t group = std::min<std::int64_t>(64, g.heads_per_kv & -g.heads_per_kv);
  WgmmaLaunch launch{.params = ParamsOf(p, g, args, tables)};
  launch.fold = g.heads_per_kv / group;
  launch.group_shift = static_cast<unsigned>(std::countr_zero(static_cast<std::uint64_t>(group)));
  launch.params.group = group;
  launch.params.kv_heads = g.q_heads / group;
  const MapRows rows = MapRowsOf(g);
  launch.kv_rows = rows.kv;
  const bool packed = p.layout == AttentionLayout::kPacked;
  launch.sequence_step = packed ? 0 : 1;
  const auto box = [](std::int64_t heads, std::int64_t of_rows) {
    return std::array<std::uint32_t, 4>{64, static_cast<std::uint32_t>(heads), static_cast<std::uint32_t>(of_rows), 1};
  };
  TensorView q = ViewOf(p, g, args.q, g.q, g.head_dim, g.q_heads, rows.q),
             k = ViewOf(p, g, args.k, g.k, g.head_dim, g.kv_heads, rows.kv),
             v = ViewOf(p, g, args.v, g.v, g.v_head_dim, g.kv_heads, rows.kv);
  q.box = box(group, kernel.rows / group);
  k.box = v.box = box(1, kernel.keys);
  KERND_RETURN_IF_ERROR(MakeTensorMap(q, launch.q));
  KERND_RETURN_IF_ERROR(MakeTensorMap(k, launch.k));
  KERND_RETURN_IF_ERROR(MakeTensorMap(v, launch.v));
  launch.plan = {.packed = packed, .whole = true};
  if (kernel.sections) launch.plan.section = SectionOf(g, launch.params.type_bytes, device) * launch.fold;
  CutIntoPieces(launch.params, kernel.rows, g.v_head_dim, g.max_q_rows * group, packed ? p.q.shape[0] * group : 0,
                launch.plan);
  const std::int64_t blocks = std::min<std::int64_t>(launch.plan.works, device.multiprocessors);
  Pair(g, blocks, launch);
  return kernel.launch(launch, static_cast<unsigned>(blocks), stream);
}

}  // namespace gpu

absl::Span<const AttentionVariant> AttentionWgmmaVariants() {
  static const auto& rows = *new std::vector<AttentionVariant>{gpu::Row<DataType::kF16>(), gpu::Row<DataType::kBF16>()};
  return rows;
}

}  // namespace kernd
