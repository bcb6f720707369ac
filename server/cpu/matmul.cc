#include "server/cpu/matmul.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/cpu/matmul_job.h"
#include "server/cpu/matmul_onednn.h"
#include "server/cpu/onednn.h"
#include "server/cpu/team.h"

namespace kernd::cpu {
namespace {

constexpr DataType kOperandTypes[] = {DataType::kF32, DataType::kBF16,   DataType::kF16,   DataType::kI8,
                                      DataType::kF64, DataType::kF8E4M3, DataType::kF8E5M2};

// Up to so many products the packed kernel is done before oneDNN's call has got to its kernel (1.6 against 6 us, F32).
constexpr std::int64_t kTinyProducts = 32 * 32 * 32;

bool IsTiny(const MatmulGeometry& g) {
  const std::optional<std::int64_t> products = CheckedProduct({g.batch, g.m, g.n, g.k});
  return products && *products <= kTinyProducts;
}

std::string VariantName(DataType type, std::string_view method) {
  const std::string_view token = Token(type);
  return absl::StrCat("matmul_", absl::string_view(token.data(), token.size()), "_cpu_",
                      absl::string_view(method.data(), method.size()));
}

// Tiles large enough that packing costs little beside the products, small enough for the second-level cache and for
// every thread to have work. The result does not depend on them.
void SetTile(const MatmulGeometry& g, MatmulChoice& choice) {
  const MatmulKernel& kernel = MatmulKernelFor(choice.isa);
  constexpr std::int64_t kRows = 384, kCols = 512;
  const auto divide = [](std::int64_t size, std::int64_t most, std::int64_t unit) {
    const std::int64_t parts = (size + most - 1) / most;  // equal parts leave no sliver at the end
    return std::max(unit, AlignUp((size + parts - 1) / parts, unit));
  };
  choice.tile_rows = divide(g.m, kRows, kernel.panel_rows);
  choice.tile_cols = divide(g.n, kCols, kernel.panel_cols);
  const auto tiles = [&] {
    return g.batch * ((g.m + choice.tile_rows - 1) / choice.tile_rows) *
           ((g.n + choice.tile_cols - 1) / choice.tile_cols);
  };
  while (tiles() < 2 * choice.threads && choice.threads > 1) {
    if (choice.tile_cols >= 4 * kernel.panel_cols) {
      choice.tile_cols = AlignUp(choice.tile_cols / 2, kernel.panel_cols);
    } else if (choice.tile_rows >= 4 * kernel.panel_rows) {
      choice.tile_rows = AlignUp(choice.tile_rows / 2, kernel.panel_rows);
    } else {
      break;
    }
  }
  choice.threads = static_cast<int>(std::min<std::int64_t>(choice.threads, tiles()));
}

std::int64_t TileScratchBytes(const MatmulProblem& p, const MatmulChoice& choice) {
  return MatmulKernelFor(choice.isa).scratch_bytes(SumOf(p), choice.tile_rows, choice.tile_cols);
}

void RunPacked(const MatmulChoice& choice, const MatmulProblem& p, const MatmulGeometry& g, const MatmulArgs& args,
               void* workspace, Stop stop) {
  const MatmulJob job = JobOf(p, g, args);
  const std::int64_t down = (g.m + choice.tile_rows - 1) / choice.tile_rows;
  const std::int64_t across = (g.n + choice.tile_cols - 1) / choice.tile_cols;
  const std::int64_t scratch_bytes = TileScratchBytes(p, choice);
  ForEach(choice.threads, g.batch * across * down, stop, [&](int thread, std::int64_t index) {
    MatmulTile tile = ItemOf(p, g, args, index / (across * down));
    tile.n0 = index / down % across * choice.tile_cols;
    tile.m0 = index % down * choice.tile_rows;
    tile.rows = std::min(choice.tile_rows, g.m - tile.m0);
    tile.cols = std::min(choice.tile_cols, g.n - tile.n0);
    MatmulKernelFor(choice.isa).run(job, tile, static_cast<char*>(workspace) + thread * scratch_bytes);
  });
}

}  // namespace

const MatmulKernel& MatmulKernelFor(Isa isa) {
#ifdef KERND_CPU_X86
  if (isa == Isa::kAvx512) return avx512::kMatmulKernel;
  if (isa == Isa::kAvx2) return avx2::kMatmulKernel;
#endif
  (void)isa;
  return baseline::kMatmulKernel;
}

std::vector<VariantInfo> MatmulVariants() {
  std::vector<VariantInfo> variants;
  for (const DataType type : kOperandTypes) {
    if (onednn::IsNative(type)) {
      variants.push_back({.name = VariantName(type, "onednn"),
                          .op = OpKind::kMatmul,
                          .dtypes = {type},
                          .method = "oneDNN primitive, kept by shape; epilogue in a pass of its own",
                          .limits = type == DataType::kI8 ? "no block scales; rows must not overlap"
                                                          : "not batch-invariant; rows must not overlap"});
    }
    variants.push_back(
        {.name = VariantName(type, "packed"),
         .op = OpKind::kMatmul,
         .dtypes = {type},  // of A; B may be the other F8
         .method = "panels converted while packing, register blocks, epilogue in the cache; batch-invariant"});
  }
  return variants;
}

absl::StatusOr<MatmulChoice> ChooseMatmul(const MatmulProblem& p, const MatmulGeometry& g, const KernelRequest& request,
                                          int threads, Isa isa) {
  if (request.tile) {
    const Tile& t = *request.tile;
    return InvalidField("matmul.kernel.tile", ToString({t.m, t.n, t.k}), "CPU kernels have no tiles to choose");
  }
  MatmulChoice choice{.threads = std::max(1, threads), .isa = isa};
  const std::string packed = VariantName(p.a.dtype, "packed"), onednn_name = VariantName(p.a.dtype, "onednn");
  const bool native = onednn::IsNative(p.a.dtype);
  const std::string_view refusal = OneDnnRefusal(p, g);
  if (request.name.empty()) {
    choice.onednn = native && refusal.empty() && !IsTiny(g);
  } else {
    choice.reason = ChoiceReason::kForced;
    choice.onednn = native && request.name == onednn_name;
    if (choice.onednn && !refusal.empty()) {
      return InvalidField("matmul.kernel.name", request.name,
                          absl::StrCat("cannot run this problem: ", std::string(refusal)));
    }
    if (!choice.onednn && request.name != packed) {
      const std::vector<VariantInfo> all = MatmulVariants();
      const bool known =
          std::any_of(all.begin(), all.end(), [&](const VariantInfo& v) { return v.name == request.name; });
      return InvalidField("matmul.kernel.name", request.name,
                          known ? absl::StrCat("cannot run operands of ", std::string(Name(p.a.dtype)))
                                : absl::StrCat("no such kernel on this device; for this problem: ", packed,
                                               native && refusal.empty() ? absl::StrCat(", ", onednn_name) : ""));
    }
  }
  choice.name = choice.onednn ? onednn_name : packed;
  if (g.d.elements() == 0) {
    choice.threads = 1;
    return choice;
  }
  if (HasNoProduct(p, g) && choice.onednn) {  // nothing to multiply: the packed kernel's epilogue is all there is
    choice.onednn = false;
    if (choice.reason == ChoiceReason::kRule) choice.name = packed;
  }
  std::optional<std::int64_t> bytes;
  if (choice.onednn) {
    const auto onednn_bytes = OneDnnWorkspaceBytes(p, g, choice.threads);
    if (onednn_bytes.ok()) {
      bytes = *onednn_bytes;
    } else if (choice.reason == ChoiceReason::kForced) {
      return InvalidField("matmul.kernel.name", request.name,
                          absl::StrCat("cannot run this problem: ", onednn_bytes.status().message()));
    } else {
      choice.onednn = false;
      choice.name = packed;
    }
  }
  if (!choice.onednn) {
    SetTile(g, choice);
    bytes = CheckedMul(choice.threads, TileScratchBytes(p, choice));
  }
  choice.workspace_bytes = bytes.value_or(std::numeric_limits<std::int64_t>::max());
  return choice;
}

absl::Status RunMatmul(const MatmulChoice& choice, const MatmulProblem& problem, const MatmulGeometry& geometry,
                       const MatmulArgs& args, void* workspace, Stop stop) {
  if (geometry.d.elements() == 0) return absl::OkStatus();
  if (choice.onednn) {
    return RunOneDnn(problem, geometry, args, choice.threads, choice.isa, workspace, stop);
  }
  RunPacked(choice, problem, geometry, args, workspace, stop);
  return absl::OkStatus();
}

}  // namespace kernd::cpu
