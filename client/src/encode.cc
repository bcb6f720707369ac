#include "client/src/encode.h"

#include <optional>
#include <string>
#include <utility>

#include "client/src/status.h"
#include "kernd/v1/compute.pb.h"

namespace kernd::client {
namespace {

static_assert(static_cast<int>(DataType::kBool) == v1::DATA_TYPE_BOOL);
static_assert(static_cast<int>(DataType::kU8) == v1::DATA_TYPE_U8);
static_assert(static_cast<int>(DataType::kI8) == v1::DATA_TYPE_I8);
static_assert(static_cast<int>(DataType::kI32) == v1::DATA_TYPE_I32);
static_assert(static_cast<int>(DataType::kI64) == v1::DATA_TYPE_I64);
static_assert(static_cast<int>(DataType::kF16) == v1::DATA_TYPE_F16);
static_assert(static_cast<int>(DataType::kBF16) == v1::DATA_TYPE_BF16);
static_assert(static_cast<int>(DataType::kF32) == v1::DATA_TYPE_F32);
static_assert(static_cast<int>(DataType::kF64) == v1::DATA_TYPE_F64);
static_assert(static_cast<int>(DataType::kF8E4M3) == v1::DATA_TYPE_F8E4M3);
static_assert(static_cast<int>(DataType::kF8E5M2) == v1::DATA_TYPE_F8E5M2);
static_assert(static_cast<int>(Activation::kRelu) == v1::ACTIVATION_RELU);
static_assert(static_cast<int>(Activation::kGelu) == v1::ACTIVATION_GELU);
static_assert(static_cast<int>(Activation::kSilu) == v1::ACTIVATION_SILU);
static_assert(static_cast<int>(Numerics::kTf32) == v1::NUMERICS_TF32);
static_assert(static_cast<int>(Numerics::kBatchInvariant) == v1::NUMERICS_BATCH_INVARIANT);
static_assert(static_cast<int>(Scales::Kind::kTensor) == v1::Scales::KIND_TENSOR);
static_assert(static_cast<int>(Scales::Kind::kRow) == v1::Scales::KIND_ROW);
static_assert(static_cast<int>(Scales::Kind::kBlock) == v1::Scales::KIND_BLOCK);
static_assert(static_cast<int>(AttentionLayout::kBHLD) == v1::ATTENTION_LAYOUT_BHLD);
static_assert(static_cast<int>(AttentionLayout::kBLHD) == v1::ATTENTION_LAYOUT_BLHD);
static_assert(static_cast<int>(AttentionLayout::kPacked) == v1::ATTENTION_LAYOUT_PACKED);
static_assert(static_cast<int>(MaskAlignment::kTopLeft) == v1::MASK_ALIGNMENT_TOP_LEFT);
static_assert(static_cast<int>(MaskAlignment::kBottomRight) == v1::MASK_ALIGNMENT_BOTTOM_RIGHT);

// What the wire's enums and ours have in common: their numbers.
template <typename Wire, typename Ours>
Wire As(Ours value) {
  return static_cast<Wire>(static_cast<int>(value));
}

// What of an operand goes into the request.
enum class Data {
  kNone,      // a plan: dtype and shape
  kInline,    // a call without a session: all must be bytes
  kResident,  // a call of a session: bytes, or where they are in it
};

const SharedRegions kNothingShared;

void Set(const SharedRegions::Place& place, v1::SharedRef* ref) {
  ref->set_region_id(place.region);
  ref->set_offset_bytes(place.offset_bytes);
}

// Adds tensors to the pieces of an operation.
class TensorWriter {
 public:
  TensorWriter(std::string operation, Data data, const SharedRegions& shared)
      : operation_(std::move(operation)), data_(data), shared_(shared) {}

  absl::Status Add(int field, const char* name, const Operand& operand, Pieces& pieces) const {
    const std::string path = operation_ + "." + name;
    const std::optional<std::int64_t> bytes = TensorBytes(operand.dtype, operand.shape);
    if (!bytes) {
      return InvalidField(path, ToString(operand.dtype, operand.shape),
                          "must have a dtype, at most 8 dimensions, none negative, and less than 2^63 bytes");
    }
    v1::Tensor head;
    head.set_dtype(As<v1::DataType>(operand.dtype));
    head.mutable_shape()->Add(operand.shape.begin(), operand.shape.end());
    if (operand.resident && data_ == Data::kInline) {
      return InvalidField(path, "resident", "must be in memory: only calls of a Session have resident operands");
    }
    if (operand.resident && data_ == Data::kResident) {
      head.mutable_resident()->set_id(operand.resident->id);
      head.mutable_resident()->set_offset(operand.resident->offset);
      head.mutable_strides()->Add(operand.resident->strides.begin(), operand.resident->strides.end());
    }
    const bool has_bytes = !operand.resident && data_ != Data::kNone;
    if (has_bytes && static_cast<std::uint64_t>(*bytes) != operand.data.size()) {
      return InvalidField(path, std::to_string(operand.data.size()) + " bytes",
                          ToString(operand.dtype, operand.shape) + " has " + std::to_string(*bytes));
    }
    const std::optional<SharedRegions::Place> place =
        has_bytes ? shared_.Find(operand.data, ElementBytes(operand.dtype)) : std::nullopt;
    if (place) Set(*place, head.mutable_shared());
    Pieces tensor;
    tensor.Message(head);
    if (has_bytes && !place) tensor.Bytes(v1::Tensor::kDataFieldNumber, operand.data);
    pieces.Field(field, std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status Add(int field, const char* name, const std::optional<Operand>& operand, Pieces& pieces) const {
    return operand ? Add(field, name, *operand, pieces) : absl::OkStatus();
  }

  absl::Status Add(int field, const char* name, const std::optional<Scales>& scales, Pieces& pieces) const {
    if (!scales) return absl::OkStatus();
    v1::Scales head;
    head.set_kind(As<v1::Scales::Kind>(scales->kind));
    head.set_block_rows(scales->block_rows);
    head.set_block_k(scales->block_k);
    Pieces message;
    message.Message(head);
    const std::string path = std::string(name) + ".values";
    KERND_CLIENT_RETURN_IF_ERROR(Add(v1::Scales::kValuesFieldNumber, path.c_str(), scales->values, message));
    pieces.Field(field, std::move(message));
    return absl::OkStatus();
  }

 private:
  const std::string operation_;
  const Data data_;
  const SharedRegions& shared_;
};

// `spec`, where something is wished for.
template <typename Op>
absl::Status SetResult(const std::string& path, DataType dtype, const ResultPlace& place, Data data,
                       const SharedRegions& shared, v1::ResultSpec* (Op::*spec)(), Op& op) {
  if (dtype != DataType::kUnspecified) (op.*spec)()->set_dtype(As<v1::DataType>(dtype));
  if (data == Data::kNone) return absl::OkStatus();
  if (!place.resident) {
    if (const std::optional<SharedRegions::Place> there = shared.Find(place.into, kResultAlignment)) {
      v1::SharedRef* const ref = (op.*spec)()->mutable_shared();
      Set(*there, ref);
      ref->set_size_bytes(std::ssize(place.into));
    }
    return absl::OkStatus();
  }
  if (data == Data::kInline) {
    return InvalidField(path, "resident", "must come back: only calls of a Session leave results there");
  }
  if (!place.into.empty()) return InvalidField(path, "resident and into", "must be one of them");
  (op.*spec)()->mutable_resident()->set_id(*place.resident);
  return absl::OkStatus();
}

template <typename Op>
absl::Status SetKernel(const std::string& operation, const KernelChoice& choice, Op& op) {
  if (!choice.name.empty() && choice.tile) {
    return InvalidField(operation + ".kernel", "name and tile", "must be one of them");
  }
  if (!choice.name.empty()) op.mutable_kernel()->set_name(choice.name);
  if (choice.tile) {
    v1::Tile* tile = op.mutable_kernel()->mutable_tile();
    tile->set_m(choice.tile->m);
    tile->set_n(choice.tile->n);
    tile->set_k(choice.tile->k);
  }
  return absl::OkStatus();
}

template <typename T>
void Set(const std::vector<T>& values, google::protobuf::RepeatedField<T>* field) {
  field->Add(values.begin(), values.end());
}

// kernd.v1.MatmulOp.
absl::StatusOr<Pieces> EncodeOp(const MatmulArgs& args, Data data, const SharedRegions& shared) {
  v1::MatmulOp op;
  op.set_transpose_a(args.transpose_a);
  op.set_transpose_b(args.transpose_b);
  if (args.alpha) op.set_alpha(*args.alpha);
  if (args.beta) op.set_beta(*args.beta);
  op.set_activation(As<v1::Activation>(args.activation));
  op.set_numerics(As<v1::Numerics>(args.numerics));
  KERND_CLIENT_RETURN_IF_ERROR(SetKernel("matmul", args.kernel, op));
  KERND_CLIENT_RETURN_IF_ERROR(SetResult("matmul.d", args.d_dtype, args.d, data, shared, &v1::MatmulOp::mutable_d, op));

  Pieces pieces;
  pieces.Message(op);
  const TensorWriter tensors("matmul", data, shared);
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::MatmulOp::kAFieldNumber, "a", args.a, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::MatmulOp::kBFieldNumber, "b", args.b, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::MatmulOp::kCFieldNumber, "c", args.c, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::MatmulOp::kBiasFieldNumber, "bias", args.bias, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::MatmulOp::kAScaleFieldNumber, "a_scale", args.a_scale, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::MatmulOp::kBScaleFieldNumber, "b_scale", args.b_scale, pieces));
  return pieces;
}

// kernd.v1.AttentionOp.
absl::StatusOr<Pieces> EncodeOp(const AttentionArgs& args, Data data, const SharedRegions& shared) {
  v1::AttentionOp op;
  op.set_layout(As<v1::AttentionLayout>(args.layout));
  if (args.scale) op.set_scale(*args.scale);
  op.set_causal(args.causal);
  op.set_alignment(As<v1::MaskAlignment>(args.alignment));
  if (args.window_left) op.set_window_left(*args.window_left);
  if (args.window_right) op.set_window_right(*args.window_right);
  if (args.softcap) op.set_softcap(*args.softcap);
  Set(args.alibi_slopes, op.mutable_alibi_slopes());
  Set(args.sinks, op.mutable_sinks());
  Set(args.q_lengths, op.mutable_q_lengths());
  Set(args.kv_lengths, op.mutable_kv_lengths());
  Set(args.q_offsets, op.mutable_q_offsets());
  Set(args.kv_offsets, op.mutable_kv_offsets());
  Set(args.q_scale, op.mutable_q_scale());
  Set(args.k_scale, op.mutable_k_scale());
  Set(args.v_scale, op.mutable_v_scale());
  op.set_numerics(As<v1::Numerics>(args.numerics));
  KERND_CLIENT_RETURN_IF_ERROR(SetKernel("attention", args.kernel, op));
  KERND_CLIENT_RETURN_IF_ERROR(
      SetResult("attention.o", args.o_dtype, args.o, data, shared, &v1::AttentionOp::mutable_o, op));
  op.set_want_lse(args.want_lse);
  if (args.want_lse) {
    KERND_CLIENT_RETURN_IF_ERROR(
        SetResult("attention.lse", DataType::kUnspecified, args.lse, data, shared, &v1::AttentionOp::mutable_lse, op));
  }

  Pieces pieces;
  pieces.Message(op);
  const TensorWriter tensors("attention", data, shared);
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::AttentionOp::kQFieldNumber, "q", args.q, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::AttentionOp::kKFieldNumber, "k", args.k, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::AttentionOp::kVFieldNumber, "v", args.v, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::AttentionOp::kMaskFieldNumber, "mask", args.mask, pieces));
  KERND_CLIENT_RETURN_IF_ERROR(tensors.Add(v1::AttentionOp::kBiasFieldNumber, "bias", args.bias, pieces));
  return pieces;
}

// The field `options` that every request has as its first.
void AddOptions(const CallOptions& options, const std::string& session, Pieces& request) {
  v1::CallOptions message;
  message.set_request_id(options.request_id);
  message.set_priority(options.priority);
  message.set_session_id(session);
  if (!options.device.empty()) message.mutable_placement()->set_device_uuid(options.device);
  static_assert(v1::MatmulRequest::kOptionsFieldNumber == 1 && v1::AttentionRequest::kOptionsFieldNumber == 1 &&
                v1::PlanRequest::kOptionsFieldNumber == 1);
  Pieces pieces;
  pieces.Message(message);
  if (pieces.size() > 0) request.Field(1, std::move(pieces));
}

template <typename Args>
absl::StatusOr<Pieces> EncodeCall(int field, const Args& args, const CallOptions& options, const std::string& session,
                                  const SharedRegions* shared) {
  absl::StatusOr<Pieces> op =
      EncodeOp(args, session.empty() ? Data::kInline : Data::kResident, shared == nullptr ? kNothingShared : *shared);
  KERND_CLIENT_RETURN_IF_ERROR(op.status());
  Pieces request;
  AddOptions(options, session, request);
  request.Field(field, *std::move(op));
  return request;
}

template <typename Args>
absl::StatusOr<Pieces> EncodeOneStep(int field, const Args& args, const CallOptions& options) {
  absl::StatusOr<Pieces> op = EncodeOp(args, Data::kNone, kNothingShared);
  KERND_CLIENT_RETURN_IF_ERROR(op.status());
  Pieces step, request;
  step.Field(field, *std::move(op));
  AddOptions(options, {}, request);
  request.Field(v1::PlanRequest::kStepsFieldNumber, std::move(step));
  return request;
}

}  // namespace

absl::StatusOr<Pieces> EncodeMatmul(const MatmulArgs& args, const CallOptions& options, const std::string& session,
                                    const SharedRegions* shared) {
  return EncodeCall(v1::MatmulRequest::kMatmulFieldNumber, args, options, session, shared);
}

absl::StatusOr<Pieces> EncodeAttention(const AttentionArgs& args, const CallOptions& options,
                                       const std::string& session, const SharedRegions* shared) {
  return EncodeCall(v1::AttentionRequest::kAttentionFieldNumber, args, options, session, shared);
}

absl::StatusOr<Pieces> EncodePlan(const MatmulArgs& args, const CallOptions& options) {
  return EncodeOneStep(v1::Step::kMatmulFieldNumber, args, options);
}

absl::StatusOr<Pieces> EncodePlan(const AttentionArgs& args, const CallOptions& options) {
  return EncodeOneStep(v1::Step::kAttentionFieldNumber, args, options);
}

}  // namespace kernd::client
