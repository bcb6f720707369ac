#include "server/rpc/encode.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/slice.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "server/rpc/enums.h"

namespace kernd::rpc {
namespace {

using google::protobuf::internal::WireFormatLite;

// Results up to this size are copied behind the headers: one slice is then cheaper than two.
constexpr std::int64_t kCopyLimit = 4096;

void AppendVarint(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void AppendTag(std::string& out, int field) {
  AppendVarint(out, WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
}

void EncodeSpec(const TensorSpec& spec, v1::Tensor& out) {
  out.set_dtype(EncodeDataType(spec.dtype));
  out.mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
}

// A `Tensor` field without data.
void AppendTensorSpec(std::string& out, int field, const TensorSpec& spec) {
  v1::Tensor tensor;
  EncodeSpec(spec, tensor);
  AppendTag(out, field);
  AppendVarint(out, tensor.ByteSizeLong());
  tensor.AppendToString(&out);
}

// The bytes of a `Tensor` field up to its data: tag, length of the whole, dtype, shape, tag and length of the data.
void AppendTensorHead(std::string& out, int field, const TensorSpec& spec) {
  v1::Tensor head;
  EncodeSpec(spec, head);
  std::string inner = head.SerializeAsString();
  AppendTag(inner, v1::Tensor::kDataFieldNumber);
  AppendVarint(inner, static_cast<std::uint64_t>(spec.bytes()));
  AppendTag(out, field);
  AppendVarint(out, inner.size() + static_cast<std::uint64_t>(spec.bytes()));
  out += inner;
}

// A slice over a result's memory. gRPC may let go of it on any thread, after the call has ended.
grpc::Slice OwnedSlice(const core::CallPtr& call, const core::HostBuffer& buffer) {
  const auto release = [](void* holder) { delete static_cast<core::CallPtr*>(holder); };
  return grpc::Slice(buffer.data(), static_cast<std::size_t>(buffer.size()), release, new core::CallPtr(call));
}

double Microseconds(absl::Duration d) {
  return absl::ToDoubleMicroseconds(d);
}

void EncodeTiming(const core::StageTimes& stages, absl::Duration total, v1::Timing& out) {
  using core::Stage;
  out.set_total_us(Microseconds(total));
  out.set_headers_us(Microseconds(stages[Stage::kHeaders]));
  out.set_decode_us(Microseconds(stages[Stage::kDecode]));
  out.set_validate_us(Microseconds(stages[Stage::kValidate]));
  out.set_admit_us(Microseconds(stages[Stage::kAdmit]));
  out.set_queue_us(Microseconds(stages[Stage::kQueue]));
  out.set_stage_in_us(Microseconds(stages[Stage::kStageIn]));
  out.set_h2d_us(Microseconds(stages[Stage::kH2d]));
  out.set_kernel_us(Microseconds(stages[Stage::kKernel]));
  out.set_d2h_us(Microseconds(stages[Stage::kD2h]));
  out.set_encode_us(Microseconds(stages[Stage::kEncode]));
}

void EncodeKernel(const core::StepPlan& step, const std::string& device, v1::KernelUsed& out) {
  out.set_name(step.kernel);
  if (step.tile) EncodeTile(*step.tile, *out.mutable_tile());
  out.set_device(device);
  out.set_numerics(std::string(Name(step.numerics)));
  out.set_reason(std::string(Name(step.reason)));
}

// `fields[i]` is the number of result i in Reply. Protobuf readers take fields in any order, so the tensors come last.
template <typename Reply>
grpc::ByteBuffer EncodeReply(const core::CallPtr& call, core::SteadyTime arrived, std::initializer_list<int> fields) {
  const core::SteadyTime start = core::SteadyNow();
  const core::StepPlan& step = call->plan.steps.front();
  std::vector<grpc::Slice> slices(1);  // the first is the reply's own head
  std::string pending;
  std::size_t i = 0;
  for (const int field : fields) {
    if (i == step.results.size()) break;
    const core::HostBuffer& data = call->results[i];
    const TensorSpec& spec = step.results[i];
    if (!core::PlaceOf(call->program.steps.front(), i++).in_reply()) {
      AppendTensorSpec(pending, field, spec);
      continue;
    }
    AppendTensorHead(pending, field, spec);
    if (data.size() <= kCopyLimit) {
      pending.append(reinterpret_cast<const char*>(data.data()), static_cast<std::size_t>(data.size()));
      call->copied_bytes += data.size();
    } else {
      slices.emplace_back(std::exchange(pending, {}));
      slices.push_back(OwnedSlice(call, data));
    }
  }

  Reply reply;
  EncodeMemory(call->plan.memory, *reply.mutable_memory());
  EncodeKernel(step, call->plan.device, *reply.mutable_kernel());
  call->stages.Add(core::Stage::kEncode, core::Since(start));
  EncodeTiming(call->stages, core::Since(arrived), *reply.mutable_timing());
  std::string head = reply.SerializeAsString();
  if (slices.size() == 1) head += std::exchange(pending, {});
  slices.front() = grpc::Slice(head);
  if (!pending.empty()) slices.emplace_back(pending);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

grpc::ByteBuffer EncodeMatmulReply(const core::CallPtr& call, core::SteadyTime arrived) {
  return EncodeReply<v1::MatmulReply>(call, arrived, {v1::MatmulReply::kDFieldNumber});
}

grpc::ByteBuffer EncodeAttentionReply(const core::CallPtr& call, core::SteadyTime arrived) {
  return EncodeReply<v1::AttentionReply>(call, arrived,
                                         {v1::AttentionReply::kOFieldNumber, v1::AttentionReply::kLseFieldNumber});
}

v1::PlanReply EncodePlan(const core::Plan& plan) {
  v1::PlanReply reply;
  for (const core::StepPlan& step : plan.steps) {
    v1::PlanReply::Step& out = *reply.add_steps();
    EncodeKernel(step, plan.device, *out.mutable_kernel());
    for (const TensorSpec& result : step.results) EncodeSpec(result, *out.add_results());
    EncodeMemory(step.memory, *out.mutable_memory());
  }
  EncodeMemory(plan.memory, *reply.mutable_memory());
  return reply;
}

void EncodeMemory(const core::MemoryUse& memory, v1::Memory& out) {
  out.set_peak_bytes(memory.peak());
  out.set_input_bytes(memory.inputs);
  out.set_output_bytes(memory.outputs);
  out.set_workspace_bytes(memory.workspace);
  out.set_pinned_bytes(memory.pinned);
  out.set_naive_bytes(memory.naive);
}

void EncodeTile(const Tile& tile, v1::Tile& out) {
  out.set_m(tile.m);
  out.set_n(tile.n);
  out.set_k(tile.k);
}

}  // namespace kernd::rpc
