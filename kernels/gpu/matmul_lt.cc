// matmul_*_lt_heuristic: cuBLASLt, with the algorithm that its own heuristic puts first.
//
// What its interface takes as it is goes straight in. What it refuses or does slowly is packed before (rows that are
// not multiples of 16 bytes, F8 and I8 that are not contiguous along K), and what its epilogue does not do exactly is
// done after, from sums that are not yet rounded: matmul_passes.cu.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/cublaslt.h"
#include "kernels/gpu/matmul_lt_plan.h"
#include "kernels/gpu/matmul_lt_recipe.h"
#include "kernels/gpu/matmul_passes.h"
#include "kernels/gpu/variants.h"

namespace kernd {
namespace {

struct Planned {
  LtRecipe recipe;
  std::shared_ptr<const LtPlan> plan;  // null: nothing to multiply
};

// NOT_FOUND: neither recipe nor library has a way, and why.
absl::StatusOr<Planned> MakePlanned(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  std::string refusal;
  // Some kernels do not add a bias; one of ours does it then.
  for (const bool fuse_bias : {true, false}) {
    if (!fuse_bias && !p.bias) break;
    Planned planned{.recipe = LtRecipeOf(p, g, device, fuse_bias)};
    const LtRecipe& recipe = planned.recipe;
    if (!recipe.refusal.empty()) return absl::NotFoundError(recipe.refusal);
    if (HasNoProduct(p, g) || g.d.elements() == 0) return planned;
    KERND_ASSIGN_OR_RETURN(planned.plan, LtPlanOf(recipe.call, device));
    if (planned.plan->refusal.empty()) return planned;
    refusal = planned.plan->refusal;
  }
  return absl::NotFoundError(refusal);
}

// The same, made once for the questions that follow each other about one problem: whether it runs, how long, with how
// many bytes; and, on a thread that launches one problem again and again, once for all of them. Until the next call on
// this thread.
absl::StatusOr<const Planned*> PlanFor(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  struct Last {
    MatmulProblem problem;
    int ordinal = 0, sm = 0, multiprocessors = 0;
    std::optional<Planned> planned;
  };
  thread_local Last last;
  const bool known = last.planned && last.ordinal == device.ordinal && last.sm == device.sm &&
                     last.multiprocessors == device.multiprocessors && last.problem == p;
  if (!known) {
    last.planned.reset();
    KERND_ASSIGN_OR_RETURN(Planned planned, MakePlanned(p, g, device));
    last = {p, device.ordinal, device.sm, device.multiprocessors, std::move(planned)};
  }
  return &*last.planned;
}

std::int64_t Aligned(std::int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

// The parts of the workspace, one after the other.
struct Layout {
  std::int64_t a = 0, b = 0, sums = 0, bytes = 0;  // cuBLASLt's own is at 0
};

std::optional<Layout> LayoutOf(const Planned& planned) {
  Layout at;
  std::optional<std::int64_t> end = planned.plan ? Aligned(planned.plan->workspace_bytes) : 0;
  const auto place = [&](std::int64_t bytes) {
    const std::int64_t start = end.value_or(0);
    if (end) end = CheckedAdd(*end, bytes > INT64_MAX - kDeviceAlignment ? INT64_MAX : Aligned(bytes));
    return start;
  };
  at.a = place(planned.recipe.a.bytes);
  at.b = place(planned.recipe.b.bytes);
  at.sums = place(planned.recipe.sums_bytes);
  if (!end) return std::nullopt;
  at.bytes = *end;
  return at;
}

std::string WhyNot(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  const absl::StatusOr<const Planned*> planned = PlanFor(p, g, device);
  return planned.ok() ? "" : std::string(planned.status().message());
}

double Estimate(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  const absl::StatusOr<const Planned*> planned = PlanFor(p, g, device);
  return planned.ok() ? (*planned)->recipe.microseconds : LtRecipeOf(p, g, device, true).microseconds;
}

std::int64_t WorkspaceBytes(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device) {
  const absl::StatusOr<const Planned*> planned = PlanFor(p, g, device);
  if (!planned.ok()) return 0;  // the launch meets the same obstacle, and says so
  const std::optional<Layout> layout = LayoutOf(**planned);
  return layout ? layout->bytes : -1;
}

absl::Status Load(const DeviceInfo& device) {
  // Without the library there is nothing to load, and why_not says so.
  if (!OpenCublasLt().ok()) return absl::OkStatus();
  KERND_RETURN_IF_ERROR(CublasLtHandle(device.ordinal).status());
  return LoadMatmulPasses();
}

// `operand` as the call reads it: packed into `to`, or where it is.
absl::StatusOr<const void*> Place(const LtOperand& operand, DataType type, std::int64_t k, const void* from, void* to,
                                  Stream stream) {
  if (!operand.packed) return from;
  KERND_RETURN_IF_ERROR(EnqueuePack({.from = from,
                                     .type = type,
                                     .to_type = operand.type,
                                     .k_contiguous = operand.source_k_contiguous,
                                     .rows = operand.source_rows,
                                     .k = k,
                                     .ld = operand.source_ld,
                                     .items = operand.items,
                                     .batch = BatchStridesOf(operand.item_shape, operand.item_strides),
                                     .to = to,
                                     .to_rows = operand.rows,
                                     .to_k = operand.k},
                                    stream));
  return to;
}

const void* At(const void* base, std::int64_t elements, DataType type) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + elements * ElementBytes(type);
}

// The plan's alignments start from this promise of kernd/kernels/gpu.h.
absl::Status CheckAlignment(const void* pointer, std::string_view name) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % kDeviceAlignment == 0) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("matmul.", std::string(name), " is not at a multiple of ", kDeviceAlignment, " bytes"));
}

absl::Status Launch(const MatmulProblem& p, const MatmulGeometry& g, const DeviceInfo& device, const MatmulArgs& args,
                    void* workspace, Stream stream) {
  if (g.d.elements() == 0) return absl::OkStatus();
  MatmulEpilogue epilogue = MatmulEpilogueOf(p, g, args);
  if (HasNoProduct(p, g)) return EnqueueFinish(epilogue, {}, stream);
  KERND_RETURN_IF_ERROR(CheckAlignment(args.a, "a"));
  KERND_RETURN_IF_ERROR(CheckAlignment(args.b, "b"));
  KERND_RETURN_IF_ERROR(CheckAlignment(args.d, "d"));

  KERND_ASSIGN_OR_RETURN(const Planned* const planned, PlanFor(p, g, device));
  const LtRecipe& recipe = planned->recipe;
  const std::optional<Layout> layout = LayoutOf(*planned);
  if (!layout) return absl::InternalError("the workspace is past 2^63 bytes");
  char* const base = static_cast<char*>(workspace);
  KERND_ASSIGN_OR_RETURN(const void* const a, Place(recipe.a, p.a.dtype, g.k, args.a, base + layout->a, stream));
  KERND_ASSIGN_OR_RETURN(const void* const b, Place(recipe.b, p.b.dtype, g.k, args.b, base + layout->b, stream));
  void* const sums = recipe.sums_in_d ? args.d : base + layout->sums;
  const LtCall& call = recipe.call;
  if (call.reads_c) KERND_RETURN_IF_ERROR(CheckAlignment(args.c, "c"));
  if (call.adds_bias) KERND_RETURN_IF_ERROR(CheckAlignment(args.bias, "bias"));
  for (const LtRecipe::Start& start : recipe.starts) {
    const LtPointers pointers{.x = At(b, start.b, call.x_type),
                              .y = At(a, start.a, call.y_type),
                              .c = At(args.c, start.c, call.d_type),
                              .d = static_cast<char*>(sums) + start.d * ElementBytes(call.d_type),
                              .bias = args.bias,
                              .x_scale = args.b_scale,
                              .y_scale = args.a_scale,
                              .workspace = base};
    KERND_RETURN_IF_ERROR(
        EnqueueLt(call, *planned->plan, recipe.applied ? p.alpha : 1, call.reads_c ? p.beta : 0, pointers, stream));
  }
  if (!recipe.finish) return absl::OkStatus();
  epilogue.plain |= recipe.applied;
  return EnqueueFinish(epilogue, {.data = sums, .type = call.d_type, .ld = call.ldd}, stream);
}

MatmulVariant Row(DataType type) {
  return {.info = {.name = absl::StrCat("matmul_", std::string(Token(type)), "_lt_heuristic"),
                   .op = OpKind::kMatmul,
                   .dtypes = {type},
                   .method = "cuBLASLt's first algorithm; crooked operands packed before, epilogue after where its own "
                             "is not exact",
                   .limits = "not batch-invariant; no block scales; at most 2^31 elements a matrix"},
          .min_sm = type == DataType::kBF16 ? 80 : 75,
          .why_not = WhyNot,
          .estimate = Estimate,
          .workspace_bytes = WorkspaceBytes,
          .load = Load,
          .launch = Launch};
}

}  // namespace

absl::Span<const MatmulVariant> MatmulLtVariants() {
  static const auto& rows = *new std::vector<MatmulVariant>{
      Row(DataType::kF16), Row(DataType::kBF16),   Row(DataType::kF32),   Row(DataType::kF64),
      Row(DataType::kI8),  Row(DataType::kF8E4M3), Row(DataType::kF8E5M2)};
  return rows;
}

}  // namespace kernd
