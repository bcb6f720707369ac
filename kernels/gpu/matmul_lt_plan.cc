#include "kernels/gpu/matmul_lt_plan.h"

#include <library_types.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernels/gpu/cuda.h"
#include "kernels/gpu/plan_cache.h"

namespace kernd {
namespace {

constexpr std::size_t kPlans = 1024;

cudaDataType CudaType(DataType type) {
  switch (type) {
    case DataType::kF16: return CUDA_R_16F;
    case DataType::kBF16: return CUDA_R_16BF;
    case DataType::kF64: return CUDA_R_64F;
    case DataType::kI8: return CUDA_R_8I;
    case DataType::kI32: return CUDA_R_32I;
    case DataType::kF8E4M3: return CUDA_R_8F_E4M3;
    case DataType::kF8E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

struct Arithmetic {
  cublasComputeType_t compute;
  cudaDataType scale;  // of alpha and beta
};

Arithmetic ArithmeticOf(const LtCall& call) {
  if (call.x_type == DataType::kF64) return {CUBLAS_COMPUTE_64F, CUDA_R_64F};
  if (call.x_type == DataType::kI8) return {CUBLAS_COMPUTE_32I, CUDA_R_32I};
  return {call.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

// Fills descriptors; the first error stays.
class Describer {
 public:
  explicit Describer(const CublasLt& lt) : lt_(lt) {}

  void Desc(cublasLtMatmulDescOpaque_t& desc, Arithmetic arithmetic) {
    Note(lt_.MatmulDescInit(&desc, sizeof(desc), arithmetic.compute, arithmetic.scale), "cublasLtMatmulDescInit");
  }
  template <typename T>
  void Set(cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    Note(lt_.MatmulDescSetAttribute(&desc, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }
  // Column-major.
  void Layout(cublasLtMatrixLayoutOpaque_t& layout, DataType type, std::int64_t rows, std::int64_t cols,
              std::int64_t ld, std::int64_t batch, std::int64_t stride) {
    Note(lt_.MatrixLayoutInit(&layout, sizeof(layout), CudaType(type), static_cast<std::uint64_t>(rows),
                              static_cast<std::uint64_t>(cols), ld),
         "cublasLtMatrixLayoutInit");
    const auto count = static_cast<std::int32_t>(batch);
    Note(lt_.MatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
         "cublasLtMatrixLayoutSetAttribute");
    Note(lt_.MatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
         "cublasLtMatrixLayoutSetAttribute");
  }
  template <typename T>
  void Prefer(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
              const T& value) {
    Note(lt_.MatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
         "cublasLtMatmulPreferenceSetAttribute");
  }
  void Note(cublasStatus_t status, std::string_view call) { status_.Update(lt_.Check(status, call)); }
  const absl::Status& status() const { return status_; }

 private:
  const CublasLt& lt_;
  absl::Status status_;
};

void Describe(const LtCall& call, Describer& to, LtPlan& plan) {
  to.Desc(plan.desc, ArithmeticOf(call));
  to.Set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, call.x_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  to.Set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, call.y_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  // The heuristic looks at the values of these pointers, not at what they point to.
  const void* const some_pointer = reinterpret_cast<const void*>(kDeviceAlignment);
  if (call.adds_bias) {
    to.Set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    to.Set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, some_pointer);
    to.Set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(CudaType(call.d_type)));
  }
  if (call.scales_x) to.Set(plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, some_pointer);
  if (call.scales_y) to.Set(plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, some_pointer);
  const auto operand = [&](cublasLtMatrixLayoutOpaque_t& layout, DataType type, bool transposed, std::int64_t rows,
                           std::int64_t cols, std::int64_t ld, std::int64_t stride) {
    if (transposed) std::swap(rows, cols);
    to.Layout(layout, type, rows, cols, ld, call.batch, stride);
  };
  operand(plan.x, call.x_type, call.x_transposed, call.m, call.k, call.ldx, call.x_stride);
  operand(plan.y, call.y_type, call.y_transposed, call.k, call.n, call.ldy, call.y_stride);
  operand(plan.c, call.d_type, false, call.m, call.n, call.ldc, call.c_stride);
  operand(plan.d, call.d_type, false, call.m, call.n, call.ldd, call.d_stride);
}

// The library's algorithms for a call, best first by its own estimate; none where it has none, and `refusal` says why.
absl::StatusOr<std::vector<LtPlan>> MakePlans(const LtCall& call, const DeviceInfo& device, int most,
                                              std::string& refusal) {
  KERND_ASSIGN_OR_RETURN(const CublasLt* lt, OpenCublasLt());
  KERND_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, CublasLtHandle(device.ordinal));
  const DeviceScope scope(device.ordinal);
  KERND_RETURN_IF_ERROR(scope.status());

  LtPlan plan{};
  Describer describer(*lt);
  Describe(call, describer, plan);
  cublasLtMatmulPreferenceOpaque_t preference;
  describer.Note(lt->MatmulPreferenceInit(&preference, sizeof(preference)), "cublasLtMatmulPreferenceInit");
  const std::uint64_t workspace = device.sm >= 90 ? 32 << 20 : 4 << 20;
  describer.Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  // Parts of a split K meet in the type of the sums, never in that of the result (which "in place" means as well).
  describer.Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                   static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, std::int64_t bytes) {
    describer.Prefer(preference, attribute, static_cast<std::uint32_t>(bytes));
  };
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call.x_align);
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call.y_align);
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, call.c_align);
  alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, call.d_align);
  KERND_RETURN_IF_ERROR(describer.status());

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status = lt->MatmulAlgoGetHeuristic(handle, &plan.desc, &plan.x, &plan.y, &plan.c, &plan.d,
                                                           &preference, most, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    refusal = absl::StrCat("cuBLASLt has no algorithm for it (", lt->GetStatusName(status), ")");
    return std::vector<LtPlan>();
  }
  KERND_RETURN_IF_ERROR(lt->Check(status, "cublasLtMatmulAlgoGetHeuristic"));
  results.resize(static_cast<std::size_t>(count));
  std::vector<LtPlan> plans;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace) continue;
    plan.algo = result.algo;
    plan.workspace_bytes = static_cast<std::int64_t>(result.workspaceSize);
    plans.push_back(plan);
  }
  if (plans.empty()) refusal = "cuBLASLt has no algorithm for it";
  return plans;
}

// That there is none is an answer, and kept like any other.
absl::StatusOr<LtPlan> MakePlan(const LtCall& call, const DeviceInfo& device) {
  constexpr int kWanted = 8;
  std::string refusal;
  KERND_ASSIGN_OR_RETURN(const std::vector<LtPlan> plans, MakePlans(call, device, kWanted, refusal));
  if (!plans.empty()) return plans.front();
  LtPlan none{};
  none.refusal = std::move(refusal);
  return none;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LtPlan>> LtPlanOf(const LtCall& call, const DeviceInfo& device) {
  static auto& plans = *new PlanCache<LtCall, LtPlan>(kPlans);
  return plans.Get(call, [&] { return MakePlan(call, device); });
}

absl::StatusOr<std::vector<LtPlan>> LtCandidatesOf(const LtCall& call, const DeviceInfo& device, int most) {
  std::string refusal;
  return MakePlans(call, device, most, refusal);
}

absl::Status EnqueueLt(const LtCall& call, const LtPlan& plan, double alpha, double beta, const LtPointers& p,
                       Stream stream) {
  KERND_ASSIGN_OR_RETURN(const CublasLt* lt, OpenCublasLt());
  KERND_ASSIGN_OR_RETURN(const cublasLtHandle_t handle, CublasLtHandle(call.device));
  // Copies, as the interface takes them without const and other threads use the same plan.
  cublasLtMatmulDescOpaque_t desc = plan.desc;
  cublasLtMatrixLayoutOpaque_t x = plan.x, y = plan.y, c = plan.c, d = plan.d;
  Describer describer(*lt);
  if (call.adds_bias) describer.Set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (call.scales_x) describer.Set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.x_scale);
  if (call.scales_y) describer.Set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.y_scale);
  KERND_RETURN_IF_ERROR(describer.status());
  // Every type that a factor may have.
  struct Factor {
    double f64;
    float f32;
    std::int32_t i32;
    explicit Factor(double x) : f64(x), f32(static_cast<float>(x)), i32(x != 0) {}
    const void* As(cudaDataType type) const {
      if (type == CUDA_R_64F) return &f64;
      if (type == CUDA_R_32I) return &i32;
      return &f32;
    }
  };
  const cudaDataType scale = ArithmeticOf(call).scale;
  const Factor a(alpha), b(beta);
  return lt->Check(lt->Matmul(handle, &desc, a.As(scale), p.x, &x, p.y, &y, b.As(scale), call.reads_c ? p.c : p.d, &c,
                              p.d, &d, &plan.algo, p.workspace, static_cast<std::size_t>(plan.workspace_bytes), stream),
                   "cublasLtMatmul");
}

}  // namespace kernd
