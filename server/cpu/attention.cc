#include "server/cpu/attention.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/cpu/attention_naive.h"
#include "server/cpu/attention_tile.h"
#include "server/cpu/team.h"

namespace kernd::cpu {
namespace {

constexpr DataType kOperandTypes[] = {DataType::kF32, DataType::kBF16, DataType::kF16, DataType::kF8E4M3,
                                      DataType::kF8E5M2};

std::string VariantName(DataType type, std::string_view method) {
  return absl::StrCat("attention_", std::string(Token(type)), "_cpu_", std::string(method));
}

AttentionJob JobOf(const AttentionProblem& p, const AttentionGeometry& g) {
  constexpr std::int64_t kUnbounded = std::int64_t{1} << 61;  // sums with positions stay far from overflow
  AttentionJob job;
  job.type = p.q.dtype;
  job.o_type = g.output_dtype;
  job.group = g.heads_per_kv;
  job.head_dim = g.head_dim;
  job.v_head_dim = g.v_head_dim;
  job.q_head = g.q.head;
  job.q_row = g.q.row;
  job.k_row = g.k.row;
  job.v_row = g.v.row;
  job.o_head = g.o.head;
  job.o_row = g.o.row;
  job.lse_head = g.lse.head;
  job.mask_head = g.mask.head;
  job.mask_row = g.mask.row;
  if (p.bias) job.bias_type = p.bias->dtype;
  job.bias_head = g.bias.head;
  job.bias_row = g.bias.row;
  job.window_left = std::min(g.window_left.value_or(kUnbounded), kUnbounded);
  job.window_right = std::min(g.window_right.value_or(kUnbounded), kUnbounded);
  job.softcap = static_cast<float>(p.softcap.value_or(0));
  return job;
}

const void* Offset(const void* base, std::int64_t elements, DataType type) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + elements * ElementBytes(type);
}

// All rows of sequence `b` and key/value head `h`; the caller sets their range.
AttentionTile HeadOf(const AttentionProblem& p, const AttentionGeometry& g, const AttentionArgs& args, std::int64_t b,
                     std::int64_t h) {
  const AttentionSequence& s = g.sequences[b];
  const std::int64_t q_head = h * g.heads_per_kv;
  const auto at = [&](const HeadStrides& t, std::int64_t head, std::int64_t start) {
    return b * t.batch + head * t.head + start * t.row;
  };
  AttentionTile tile;
  tile.q = Offset(args.q, at(g.q, q_head, s.q_start), p.q.dtype);
  tile.k = Offset(args.k, at(g.k, h, s.kv_start), p.k.dtype);
  tile.v = Offset(args.v, at(g.v, h, s.kv_start), p.v.dtype);
  if (p.mask) tile.mask = Offset(args.mask, b * g.mask.batch + q_head * g.mask.head, DataType::kBool);
  if (p.bias) tile.bias = Offset(args.bias, b * g.bias.batch + q_head * g.bias.head, p.bias->dtype);
  if (!p.alibi_slopes.empty()) tile.slopes = p.alibi_slopes.data() + q_head;
  if (!p.sinks.empty()) tile.sinks = p.sinks.data() + q_head;
  tile.o = static_cast<char*>(args.o) + at(g.o, q_head, s.q_start) * ElementBytes(g.output_dtype);
  if (p.want_lse) tile.lse = args.lse + at(g.lse, q_head, s.q_start);
  tile.q_length = s.q_length;
  tile.kv_length = s.kv_length;
  tile.diagonal = s.diagonal;
  tile.logit_factor = static_cast<float>(g.scale * g.OperandScale(p.q_scale, b, h) * g.OperandScale(p.k_scale, b, h));
  tile.v_factor = g.OperandScale(p.v_scale, b, h);
  return tile;
}

// Shapes without a result may still name any number of heads and sequences, more than can be counted: neither count nor
// walk them.
bool WritesNothing(const AttentionGeometry& g) {
  return g.o_spec.elements() == 0 && (!g.lse_spec || g.lse_spec->elements() == 0);
}

// Rows of a task: as many as let packed keys be used often while Q, O and the packed block stay in the second-level
// cache; fewer where threads would have nothing to do. The result does not depend on it.
std::int64_t TileRows(const AttentionGeometry& g, std::int64_t unit, int threads) {
  constexpr std::int64_t kMost = 252, kCacheFloats = 160 << 10;
  const std::int64_t rows = std::max<std::int64_t>(1, g.max_q_rows * g.heads_per_kv);
  std::int64_t most = std::min(kMost, kCacheFloats / std::max<std::int64_t>(1, g.head_dim + g.v_head_dim));
  most = std::max(unit, most / unit * unit);
  const std::int64_t heads = std::max<std::int64_t>(1, g.batch * g.kv_heads);
  const std::int64_t wanted = (4 * threads + heads - 1) / heads;  // tasks of each head
  if (threads > 1) most = std::min(most, std::max(4 * unit, AlignUp((rows + wanted - 1) / wanted, unit)));
  return std::min(most, AlignUp(rows, unit));
}

}  // namespace

const AttentionKernel& AttentionKernelFor(Isa isa) {
#ifdef KERND_CPU_X86
  if (isa == Isa::kAvx512) return avx512::kAttentionKernel;
  if (isa == Isa::kAvx2) return avx2::kAttentionKernel;
#endif
  (void)isa;
  return baseline::kAttentionKernel;
}

std::vector<VariantInfo> AttentionVariants() {
  std::vector<VariantInfo> variants;
  for (const DataType type : kOperandTypes) {
    variants.push_back({.name = VariantName(type, "online"),
                        .op = OpKind::kAttention,
                        .dtypes = {type},
                        .method = "blocked online softmax, 128 keys a block, F32 sums; batch-invariant"});
    variants.push_back(
        {.name = VariantName(type, "naive"),
         .op = OpKind::kAttention,
         .dtypes = {type},
         .method = "textbook: all logits of the call in memory, then softmax, then the product with V; slow"});
  }
  return variants;
}

absl::StatusOr<AttentionChoice> ChooseAttention(const AttentionProblem& p, const AttentionGeometry& g,
                                                const KernelRequest& request, int threads, Isa isa) {
  if (request.tile) {
    const Tile& t = *request.tile;
    return InvalidField("attention.kernel.tile", ToString({t.m, t.n, t.k}), "CPU kernels have no tiles to choose");
  }
  AttentionChoice choice{.name = VariantName(p.q.dtype, "online"), .threads = std::max(1, threads), .isa = isa};
  if (!request.name.empty()) {
    const std::string naive = VariantName(p.q.dtype, "naive");
    choice.reason = ChoiceReason::kForced;
    choice.naive = request.name == naive;
    if (!choice.naive && request.name != choice.name) {
      const std::vector<VariantInfo> all = AttentionVariants();
      const bool known =
          std::any_of(all.begin(), all.end(), [&](const VariantInfo& v) { return v.name == request.name; });
      return InvalidField(
          "attention.kernel.name", request.name,
          known ? absl::StrCat("cannot run operands of ", std::string(Name(p.q.dtype)))
                : absl::StrCat("no such kernel on this device; for this problem: ", choice.name, ", ", naive));
    }
    choice.name = request.name;
  }
  if (WritesNothing(g)) {
    choice.threads = 1;
    return choice;
  }
  if (choice.naive) {
    choice.workspace_bytes = NaiveWorkspaceBytes(g);
    return choice;
  }
  const AttentionKernel& kernel = AttentionKernelFor(isa);
  choice.tile_rows = TileRows(g, kernel.block_rows, choice.threads);
  const std::int64_t tiles = (g.max_q_rows * g.heads_per_kv + choice.tile_rows - 1) / choice.tile_rows;
  const std::int64_t tasks = CheckedProduct({tiles, g.batch, g.kv_heads}).value_or(choice.threads);
  choice.threads = static_cast<int>(std::clamp<std::int64_t>(tasks, 1, choice.threads));
  // A head dimension that no memory could hold must not wrap around here.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (tasks == 0) return choice;
  if (std::max(g.head_dim, g.v_head_dim) > (std::int64_t{1} << 40)) {
    choice.workspace_bytes = kMost;
  } else {
    choice.workspace_bytes =
        CheckedMul(choice.threads, kernel.scratch_bytes(choice.tile_rows, g.head_dim, g.v_head_dim)).value_or(kMost);
  }
  return choice;
}

void RunAttention(const AttentionChoice& choice, const AttentionProblem& problem, const AttentionGeometry& geometry,
                  const AttentionArgs& args, void* workspace, Stop stop) {
  if (WritesNothing(geometry)) return;
  if (choice.naive) {
    return RunNaiveAttention(problem, geometry, args, static_cast<float*>(workspace), choice.threads, stop);
  }
  const AttentionKernel& kernel = AttentionKernelFor(choice.isa);
  AttentionJob job = JobOf(problem, geometry);
  job.stop = stop;
  const std::int64_t tiles = (geometry.max_q_rows * geometry.heads_per_kv + choice.tile_rows - 1) / choice.tile_rows;
  const std::int64_t scratch_bytes = kernel.scratch_bytes(choice.tile_rows, geometry.head_dim, geometry.v_head_dim);
  ForEach(choice.threads, geometry.batch * geometry.kv_heads * tiles, stop, [&](int thread, std::int64_t index) {
    const std::int64_t b = index / tiles / geometry.kv_heads, h = index / tiles % geometry.kv_heads;
    AttentionTile tile = HeadOf(problem, geometry, args, b, h);
    // The last rows of a causal head see the most keys: they go first, so that no thread ends with a long one.
    tile.row_begin = (tiles - 1 - index % tiles) * choice.tile_rows;
    tile.row_end = std::min(tile.row_begin + choice.tile_rows, geometry.sequences[b].q_rows * geometry.heads_per_kv);
    if (tile.row_begin < tile.row_end) {
      kernel.run(job, tile, static_cast<char*>(workspace) + thread * scratch_bytes);
    }
  });
}

}  // namespace kernd::cpu
