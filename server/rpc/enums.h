// Enums of the wire and of the kernels, one to one. An enum value that this version does not know is refused with its
// number (INVALID_ARGUMENT), never taken for a default.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernd/v1/compute.pb.h"

namespace kernd::rpc {

absl::StatusOr<DataType> DecodeDataType(v1::DataType type, const std::string& field);  // UNSPECIFIED is refused
absl::StatusOr<Activation> DecodeActivation(v1::Activation activation, const std::string& field);
absl::StatusOr<Numerics> DecodeNumerics(v1::Numerics numerics, const std::string& field);
absl::StatusOr<ScaleSpec::Kind> DecodeScaleKind(v1::Scales::Kind kind, const std::string& field);
absl::StatusOr<AttentionLayout> DecodeLayout(v1::AttentionLayout layout, const std::string& field);
absl::StatusOr<MaskAlignment> DecodeAlignment(v1::MaskAlignment alignment, const std::string& field);

v1::DataType EncodeDataType(DataType type);

}  // namespace kernd::rpc
