// What the targets of requests share: how a body comes, and what holds for all that is refused and accepted.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "server/core/operand.h"

namespace kernd::fuzz {

// `bytes` in two slices: a reader must not care where a body is cut.
// Allows for the 50 MB of room, never touched, that protobuf makes for a string that says it is as long.
grpc::ByteBuffer BodyOf(std::string_view bytes);
std::string BytesOf(const grpc::ByteBuffer& body);
std::string BytesOf(const core::Operand& operand);

// A refusal has a code of its stage, a reason, a field where one is at fault, fits into gRPC's 8 KiB of metadata, and
// reaches a client whole.
void RequireRefusal(const absl::Status& status);

// Sizes of a validated problem are products of its own dimensions, and no row that a kernel may touch is outside.
void RequireSizes(const MatmulProblem& problem, const MatmulGeometry& geometry);
void RequireSizes(const AttentionProblem& problem, const AttentionGeometry& geometry);

}  // namespace kernd::fuzz
