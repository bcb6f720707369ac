#include "server/rpc/decode.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/core/shared_region.h"
#include "server/rpc/enums.h"

namespace kernd::rpc {
namespace {

constexpr std::size_t kMaxRequestId = 128;
constexpr int kMaxPriority = 100;
constexpr int kMaxSteps = 64;

absl::Status NotBuilt(const std::string& field, std::string_view what) {
  return WithDetail(
      absl::UnimplementedError(absl::StrCat(field, ": ", std::string(what), " are not offered by this version")),
      {.reason = std::string(reason::kNotBuilt), .field = field});
}

// Elements from the first to the last; CheckSpec has seen that they, and their bytes, can be counted.
std::int64_t SpanOf(const TensorSpec& spec) {
  std::int64_t span = 1;
  const Dims strides = spec.EffectiveStrides();
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    span = spec.shape[i] == 0 || span == 0 ? 0 : span + (spec.shape[i] - 1) * strides[i];
  }
  return span;
}

// The operand is the contiguous copy of what lies at `operand.device`.
void CopyFirst(TensorSpec& spec, core::Operand& operand) {
  operand.copy_of =
      core::View{.shape = spec.shape, .strides = spec.EffectiveStrides(), .element_bytes = ElementBytes(spec.dtype)};
  spec.strides.clear();
}

// The view of a resident tensor that `tensor` asks for. Its elements are used where they are, or, where kernels could
// not, copied on the device.
absl::Status DecodeResident(const v1::Tensor& tensor, const std::string& field, const Places& places, TensorSpec& spec,
                            core::Operand& operand) {
  if (places.session.store == nullptr) {
    return InvalidField("options.session_id", "absent", absl::StrCat(field, ".resident is in a session: name it"));
  }
  const v1::ResidentRef& ref = tensor.resident();
  absl::StatusOr<core::SessionStore::Resident> found = places.session.store->Find(places.session.id, ref.id());
  if (!found.ok()) return AtTensor(found.status(), field + ".resident.id");
  if (found->spec.dtype != spec.dtype) {
    return InvalidField(field + ".dtype", Name(spec.dtype),
                        absl::StrCat("tensor ", ref.id(), " is ", found->spec.ToString()));
  }
  const std::int64_t span = SpanOf(spec);
  const std::int64_t elements = found->spec.elements();
  if (ref.offset() < 0 || span > elements || ref.offset() > elements - span) {
    const std::string at = field + ".resident.offset";
    return WithDetail(
        absl::OutOfRangeError(absl::StrCat(at, " is ", ref.offset(), ": ", span,
                                           " elements from there lie not within the tensor's ", elements)),
        {.reason = std::string(reason::kOutOfRange), .field = at});
  }
  if (span == 0) return absl::OkStatus();
  operand.device = found->memory->data() + ref.offset() * ElementBytes(spec.dtype);
  operand.owner = std::move(found->memory);
  if (reinterpret_cast<std::uintptr_t>(operand.device) % static_cast<std::uintptr_t>(places.alignment) != 0) {
    CopyFirst(spec, operand);
  }
  return absl::OkStatus();
}

// The region that `ref` names, and that its offset is one for elements of so many bytes; `field` is the path of `ref`.
absl::StatusOr<std::shared_ptr<core::SharedRegion>> FindRegion(const v1::SharedRef& ref, const std::string& field,
                                                               const Places& places, std::int64_t element_bytes) {
  if (places.session.store == nullptr) {
    return InvalidField("options.session_id", "absent", absl::StrCat(field, " is in a session: name it"));
  }
  absl::StatusOr<std::shared_ptr<core::SharedRegion>> region =
      places.session.store->FindRegion(places.session.id, ref.region_id());
  if (!region.ok()) return AtTensor(region.status(), field + ".region_id");
  if (ref.offset_bytes() % element_bytes != 0) {
    return InvalidField(field + ".offset_bytes", absl::StrCat(ref.offset_bytes()),
                        absl::StrCat("must be a multiple of the element's ", element_bytes, " bytes"));
  }
  return region;
}

// The view of a shared region that `tensor` asks for. The client may change it at any time, so that nothing may depend
// on what it holds but the values of the result.
absl::Status DecodeShared(const v1::Tensor& tensor, const std::string& field, const Places& places, TensorSpec& spec,
                          core::Operand& operand) {
  const v1::SharedRef& ref = tensor.shared();
  const std::int64_t element_bytes = ElementBytes(spec.dtype);
  KERND_ASSIGN_OR_RETURN(std::shared_ptr<core::SharedRegion> region,
                         FindRegion(ref, field + ".shared", places, element_bytes));
  if (ref.size_bytes() != 0) {
    return InvalidField(field + ".shared.size_bytes", absl::StrCat(ref.size_bytes()), "is for results");
  }
  const std::int64_t span = SpanOf(spec) * element_bytes;
  KERND_ASSIGN_OR_RETURN(const absl::Span<std::byte> bytes,
                         region->Range(ref.offset_bytes(), span, field + ".shared.offset_bytes"));
  if (bytes.empty()) return absl::OkStatus();
  operand.device = bytes.data();
  operand.owner = std::move(region);
  if (!places.host_in_place) CopyFirst(spec, operand);
  return absl::OkStatus();
}

// A tensor's type, shape and, where the rule asks for them, its bytes.
absl::Status DecodeTensor(const v1::Tensor& tensor, const std::string& field, const Places& places, TensorSpec& spec,
                          core::Operand& operand) {
  KERND_ASSIGN_OR_RETURN(spec.dtype, DecodeDataType(tensor.dtype(), field + ".dtype"));
  spec.shape.assign(tensor.shape().begin(), tensor.shape().end());
  if (tensor.has_resident() || tensor.has_shared())
    spec.strides.assign(tensor.strides().begin(), tensor.strides().end());
  KERND_RETURN_IF_ERROR(CheckSpec(field, spec));
  if (tensor.has_resident()) return DecodeResident(tensor, field, places, spec, operand);
  if (tensor.has_shared()) return DecodeShared(tensor, field, places, spec, operand);
  if (!tensor.strides().empty()) {
    return InvalidField(field + ".strides", absl::StrCat(tensor.strides_size(), " strides"),
                        "only resident and shared tensors have strides; inline data are contiguous");
  }
  switch (tensor.place_case()) {
    case v1::Tensor::kStep: return NotBuilt(field + ".step", "results of earlier steps");
    case v1::Tensor::kShared:
    case v1::Tensor::kResident:
    case v1::Tensor::kData:
    case v1::Tensor::PLACE_NOT_SET: break;
  }
  if (places.payloads == nullptr) return absl::OkStatus();
  operand = places.payloads->Find(tensor.data());
  const std::int64_t given = operand.bytes();
  if (given != spec.bytes()) {
    return InvalidField(field + ".data", absl::StrCat(given, " bytes"),
                        absl::StrCat(spec.ToString(), " is ", spec.bytes(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status DecodeRequired(bool present, const v1::Tensor& tensor, const std::string& field, const Places& places,
                            TensorSpec& spec, core::Operand& operand) {
  if (!present) return InvalidField(field, "absent", "the operation needs it");
  return DecodeTensor(tensor, field, places, spec, operand);
}

absl::Status DecodeOptional(bool present, const v1::Tensor& tensor, const std::string& field, const Places& places,
                            std::optional<TensorSpec>& spec, core::Operand& operand) {
  if (!present) return absl::OkStatus();
  return DecodeTensor(tensor, field, places, spec.emplace(), operand);
}

absl::Status DecodeScales(bool present, const v1::Scales& scales, const std::string& field, const Places& places,
                          std::optional<ScaleSpec>& spec, core::Operand& operand) {
  if (!present) return absl::OkStatus();
  ScaleSpec& out = spec.emplace();
  KERND_ASSIGN_OR_RETURN(out.kind, DecodeScaleKind(scales.kind(), field + ".kind"));
  out.block_rows = scales.block_rows();
  out.block_k = scales.block_k();
  return DecodeRequired(scales.has_values(), scales.values(), field + ".values", places, out.spec, operand);
}

absl::Status DecodeResult(const v1::ResultSpec& result, const std::string& field, const Places& places, DataType& dtype,
                          core::ResultPlace& place) {
  switch (result.place_case()) {
    case v1::ResultSpec::kResident:
      if (places.session.store == nullptr) {
        return InvalidField("options.session_id", "absent", absl::StrCat(field, ".resident is in a session: name it"));
      }
      if (result.resident().offset() != 0) {
        return InvalidField(field + ".resident.offset", absl::StrCat(result.resident().offset()),
                            "0: a result is a tensor of its own");
      }
      place.resident = result.resident().id();
      break;
    case v1::ResultSpec::kShared: {
      // The element's size, as all else that depends on the result's spec, is checked with the plan.
      KERND_ASSIGN_OR_RETURN(place.region, FindRegion(result.shared(), field + ".shared", places, 1));
      place.offset = result.shared().offset_bytes();
      place.room = result.shared().size_bytes();
      break;
    }
    case v1::ResultSpec::kDiscard: return NotBuilt(field + ".discard", "discarded results");
    case v1::ResultSpec::kInline:
    case v1::ResultSpec::PLACE_NOT_SET: break;
  }
  if (result.dtype() == v1::DATA_TYPE_UNSPECIFIED) return absl::OkStatus();
  KERND_ASSIGN_OR_RETURN(dtype, DecodeDataType(result.dtype(), field + ".dtype"));
  return absl::OkStatus();
}

bool IsRequestId(const std::string& id) {
  return id.size() <= kMaxRequestId && std::all_of(id.begin(), id.end(), [](char c) { return c >= 0x20 && c <= 0x7e; });
}

KernelRequest DecodeKernel(const v1::KernelChoice& choice) {
  KernelRequest request;
  if (choice.has_name()) request.name = choice.name();
  if (choice.has_tile()) request.tile = Tile{.m = choice.tile().m(), .n = choice.tile().n(), .k = choice.tile().k()};
  return request;
}

}  // namespace

std::string RequestId(const v1::CallOptions& options) {
  const std::string& id = options.request_id();
  return IsRequestId(id) ? id : "";
}

absl::StatusOr<CallWish> DecodeOptions(const v1::CallOptions& options, std::string_view device,
                                       core::SessionStore* sessions) {
  if (!IsRequestId(options.request_id())) {
    return InvalidField("options.request_id", absl::StrCat(options.request_id().size(), " bytes"),
                        "at most 128 bytes of printable ASCII");
  }
  if (options.priority() < -kMaxPriority || options.priority() > kMaxPriority) {
    return InvalidField("options.priority", absl::StrCat(options.priority()), "must lie in -100..100");
  }
  CallWish wish = {.priority = options.priority()};
  if (!options.session_id().empty()) {
    KERND_ASSIGN_OR_RETURN(wish.session.id, DecodeSessionId(options.session_id(), "options.session_id"));
    if (sessions == nullptr) return NotBuilt("options.session_id", "sessions");
    wish.session.store = sessions;
    absl::StatusOr<core::SessionStore::Hold> hold = sessions->KeepOpen(wish.session.id);
    if (!hold.ok()) return Under(hold.status(), "options.");
    wish.session.hold = *std::move(hold);
  }
  KERND_RETURN_IF_ERROR(DecodePlacement(options.placement(), "options.placement", device, wish.session));
  return wish;
}

absl::StatusOr<core::MatmulStep> DecodeMatmul(const v1::MatmulOp& op, const std::string& field, const Places& places) {
  core::MatmulStep step;
  MatmulProblem& p = step.problem;
  KERND_RETURN_IF_ERROR(DecodeRequired(op.has_a(), op.a(), field + ".a", places, p.a, step.a));
  KERND_RETURN_IF_ERROR(DecodeRequired(op.has_b(), op.b(), field + ".b", places, p.b, step.b));
  KERND_RETURN_IF_ERROR(DecodeOptional(op.has_c(), op.c(), field + ".c", places, p.c, step.c));
  KERND_RETURN_IF_ERROR(DecodeOptional(op.has_bias(), op.bias(), field + ".bias", places, p.bias, step.bias));
  KERND_RETURN_IF_ERROR(
      DecodeScales(op.has_a_scale(), op.a_scale(), field + ".a_scale", places, p.a_scale, step.a_scale));
  KERND_RETURN_IF_ERROR(
      DecodeScales(op.has_b_scale(), op.b_scale(), field + ".b_scale", places, p.b_scale, step.b_scale));
  KERND_RETURN_IF_ERROR(DecodeResult(op.d(), field + ".d", places, p.output_dtype, step.places[0]));
  KERND_ASSIGN_OR_RETURN(p.activation, DecodeActivation(op.activation(), field + ".activation"));
  KERND_ASSIGN_OR_RETURN(p.numerics, DecodeNumerics(op.numerics(), field + ".numerics"));
  p.transpose_a = op.transpose_a();
  p.transpose_b = op.transpose_b();
  if (op.has_alpha()) p.alpha = op.alpha();
  if (op.has_beta()) p.beta = op.beta();
  step.kernel = DecodeKernel(op.kernel());
  return step;
}

absl::StatusOr<core::AttentionStep> DecodeAttention(const v1::AttentionOp& op, const std::string& field,
                                                    const Places& places) {
  if (op.has_cache()) return NotBuilt(field + ".cache", "key/value caches");
  core::AttentionStep step;
  AttentionProblem& p = step.problem;
  KERND_ASSIGN_OR_RETURN(p.layout, DecodeLayout(op.layout(), field + ".layout"));
  KERND_RETURN_IF_ERROR(DecodeRequired(op.has_q(), op.q(), field + ".q", places, p.q, step.q));
  KERND_RETURN_IF_ERROR(DecodeRequired(op.has_k(), op.k(), field + ".k", places, p.k, step.k));
  KERND_RETURN_IF_ERROR(DecodeRequired(op.has_v(), op.v(), field + ".v", places, p.v, step.v));
  KERND_RETURN_IF_ERROR(DecodeOptional(op.has_mask(), op.mask(), field + ".mask", places, p.mask, step.mask));
  KERND_RETURN_IF_ERROR(DecodeOptional(op.has_bias(), op.bias(), field + ".bias", places, p.bias, step.bias));
  if (op.has_scale()) p.scale = op.scale();
  if (op.has_softcap()) p.softcap = op.softcap();
  p.causal = op.causal();
  KERND_ASSIGN_OR_RETURN(p.alignment, DecodeAlignment(op.alignment(), field + ".alignment"));
  if (op.has_window_left()) p.window_left = op.window_left();
  if (op.has_window_right()) p.window_right = op.window_right();
  p.q_lengths.assign(op.q_lengths().begin(), op.q_lengths().end());
  p.kv_lengths.assign(op.kv_lengths().begin(), op.kv_lengths().end());
  p.q_offsets.assign(op.q_offsets().begin(), op.q_offsets().end());
  p.kv_offsets.assign(op.kv_offsets().begin(), op.kv_offsets().end());
  p.alibi_slopes.assign(op.alibi_slopes().begin(), op.alibi_slopes().end());
  p.sinks.assign(op.sinks().begin(), op.sinks().end());
  p.q_scale.assign(op.q_scale().begin(), op.q_scale().end());
  p.k_scale.assign(op.k_scale().begin(), op.k_scale().end());
  p.v_scale.assign(op.v_scale().begin(), op.v_scale().end());
  KERND_RETURN_IF_ERROR(DecodeResult(op.o(), field + ".o", places, p.output_dtype, step.places[0]));
  p.want_lse = op.want_lse();
  DataType lse_dtype = DataType::kF32;
  KERND_RETURN_IF_ERROR(DecodeResult(op.lse(), field + ".lse", places, lse_dtype, step.places[1]));
  if (lse_dtype != DataType::kF32) return InvalidField(field + ".lse.dtype", Name(lse_dtype), "LSE is F32");
  if (step.places[0].resident && step.places[0].resident == step.places[1].resident) {
    return InvalidField(field + ".lse.resident.id", absl::StrCat(*step.places[1].resident), "is that of o already");
  }
  if (op.has_lse() && !op.want_lse()) return InvalidField(field + ".lse", "set", "only with want_lse");
  KERND_ASSIGN_OR_RETURN(step.numerics, DecodeNumerics(op.numerics(), field + ".numerics"));
  if (step.numerics == Numerics::kTf32) return InvalidField(field + ".numerics", "TF32", "is for matmul");
  step.kernel = DecodeKernel(op.kernel());
  return step;
}

absl::StatusOr<core::Program> DecodeSteps(const google::protobuf::RepeatedPtrField<v1::Step>& steps,
                                          const Places& places) {
  if (steps.empty() || steps.size() > kMaxSteps) {
    return InvalidField("steps", absl::StrCat(steps.size(), " steps"), "1 to 64");
  }
  core::Program program;
  for (int i = 0; i < steps.size(); ++i) {
    const std::string field = absl::StrCat("steps[", i, "]");
    switch (steps[i].op_case()) {
      case v1::Step::kMatmul: {
        KERND_ASSIGN_OR_RETURN(core::MatmulStep step, DecodeMatmul(steps[i].matmul(), field + ".matmul", places));
        program.steps.emplace_back(std::move(step));
        break;
      }
      case v1::Step::kAttention: {
        KERND_ASSIGN_OR_RETURN(core::AttentionStep step,
                               DecodeAttention(steps[i].attention(), field + ".attention", places));
        program.steps.emplace_back(std::move(step));
        break;
      }
      case v1::Step::kMerge: return NotBuilt(field + ".merge", "merges");
      case v1::Step::OP_NOT_SET: return InvalidField(field + ".op", "unset", "name an operation");
    }
  }
  return program;
}

}  // namespace kernd::rpc
