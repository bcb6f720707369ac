#include "server/rpc/enums.h"

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::rpc {
namespace {

absl::Status Unknown(const std::string& field, int value) {
  return InvalidField(field, absl::StrCat(value),
                      value == 0 ? "unset: name one" : "not a value that this version knows");
}

}  // namespace

absl::StatusOr<DataType> DecodeDataType(v1::DataType type, const std::string& field) {
  switch (type) {
    case v1::DATA_TYPE_BOOL: return DataType::kBool;
    case v1::DATA_TYPE_U8: return DataType::kU8;
    case v1::DATA_TYPE_I8: return DataType::kI8;
    case v1::DATA_TYPE_I32: return DataType::kI32;
    case v1::DATA_TYPE_I64: return DataType::kI64;
    case v1::DATA_TYPE_F16: return DataType::kF16;
    case v1::DATA_TYPE_BF16: return DataType::kBF16;
    case v1::DATA_TYPE_F32: return DataType::kF32;
    case v1::DATA_TYPE_F64: return DataType::kF64;
    case v1::DATA_TYPE_F8E4M3: return DataType::kF8E4M3;
    case v1::DATA_TYPE_F8E5M2: return DataType::kF8E5M2;
    default: return Unknown(field, type);
  }
}

absl::StatusOr<Activation> DecodeActivation(v1::Activation activation, const std::string& field) {
  switch (activation) {
    case v1::ACTIVATION_UNSPECIFIED: return Activation::kNone;
    case v1::ACTIVATION_RELU: return Activation::kRelu;
    case v1::ACTIVATION_GELU: return Activation::kGelu;
    case v1::ACTIVATION_SILU: return Activation::kSilu;
    default: return Unknown(field, activation);
  }
}

absl::StatusOr<Numerics> DecodeNumerics(v1::Numerics numerics, const std::string& field) {
  switch (numerics) {
    case v1::NUMERICS_UNSPECIFIED: return Numerics::kDefault;
    case v1::NUMERICS_TF32: return Numerics::kTf32;
    case v1::NUMERICS_BATCH_INVARIANT: return Numerics::kBatchInvariant;
    default: return Unknown(field, numerics);
  }
}

absl::StatusOr<ScaleSpec::Kind> DecodeScaleKind(v1::Scales::Kind kind, const std::string& field) {
  switch (kind) {
    case v1::Scales::KIND_TENSOR: return ScaleSpec::Kind::kTensor;
    case v1::Scales::KIND_ROW: return ScaleSpec::Kind::kRow;
    case v1::Scales::KIND_BLOCK: return ScaleSpec::Kind::kBlock;
    default: return Unknown(field, kind);
  }
}

absl::StatusOr<AttentionLayout> DecodeLayout(v1::AttentionLayout layout, const std::string& field) {
  switch (layout) {
    case v1::ATTENTION_LAYOUT_BHLD: return AttentionLayout::kBHLD;
    case v1::ATTENTION_LAYOUT_BLHD: return AttentionLayout::kBLHD;
    case v1::ATTENTION_LAYOUT_PACKED: return AttentionLayout::kPacked;
    default: return Unknown(field, layout);
  }
}

absl::StatusOr<MaskAlignment> DecodeAlignment(v1::MaskAlignment alignment, const std::string& field) {
  switch (alignment) {
    case v1::MASK_ALIGNMENT_UNSPECIFIED: return MaskAlignment::kUnset;
    case v1::MASK_ALIGNMENT_TOP_LEFT: return MaskAlignment::kTopLeft;
    case v1::MASK_ALIGNMENT_BOTTOM_RIGHT: return MaskAlignment::kBottomRight;
    default: return Unknown(field, alignment);
  }
}

v1::DataType EncodeDataType(DataType type) {
  switch (type) {
    case DataType::kInvalid: return v1::DATA_TYPE_UNSPECIFIED;
    case DataType::kBool: return v1::DATA_TYPE_BOOL;
    case DataType::kU8: return v1::DATA_TYPE_U8;
    case DataType::kI8: return v1::DATA_TYPE_I8;
    case DataType::kI32: return v1::DATA_TYPE_I32;
    case DataType::kI64: return v1::DATA_TYPE_I64;
    case DataType::kF16: return v1::DATA_TYPE_F16;
    case DataType::kBF16: return v1::DATA_TYPE_BF16;
    case DataType::kF32: return v1::DATA_TYPE_F32;
    case DataType::kF64: return v1::DATA_TYPE_F64;
    case DataType::kF8E4M3: return v1::DATA_TYPE_F8E4M3;
    case DataType::kF8E5M2: return v1::DATA_TYPE_F8E5M2;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

}  // namespace kernd::rpc
