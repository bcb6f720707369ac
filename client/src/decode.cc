#include "client/src/decode.h"

#include <string>
#include <utility>

#include "client/src/payload.h"
#include "client/src/status.h"
#include "grpc/health/v1/health.pb.h"
#include "kernd/v1/compute.pb.h"
#include "kernd/v1/device.pb.h"
#include "kernd/v1/tensors.pb.h"

namespace kernd::client {
namespace {

static_assert(static_cast<int>(Tier::kCpu) == v1::DeviceInfo::TIER_CPU);
static_assert(static_cast<int>(TuneEvent::kEnd) == v1::AutotuneProgress::EVENT_END);
static_assert(static_cast<int>(TuneVerdict::kFailed) == v1::AutotuneProgress::VERDICT_FAILED);
static_assert(static_cast<int>(TuneOutcome::kNotReached) == v1::AutotuneProgress::OUTCOME_NOT_REACHED);
constexpr TensorFields kMatmulTensors = {v1::MatmulReply::kDFieldNumber, v1::MatmulReply::kDFieldNumber};
constexpr TensorFields kAttentionTensors = {v1::AttentionReply::kLseFieldNumber, v1::AttentionReply::kOFieldNumber};
static_assert(static_cast<int>(TensorState::kFailed) == v1::TENSOR_STATE_FAILED);
static_assert(kAttentionTensors.first + 1 == kAttentionTensors.last);

template <typename Message>
absl::Status Parse(const std::string& bytes, Message* message) {
  if (message->ParseFromString(bytes)) return absl::OkStatus();
  return BadReply("no " + message->GetTypeName());
}

template <typename Message>
absl::Status Parse(grpc::ByteBuffer buffer, Message* message) {
  absl::StatusOr<ParsedReply> parsed = PartReply(std::move(buffer), TensorFields());
  KERND_CLIENT_RETURN_IF_ERROR(parsed.status());
  return Parse(parsed->rest, message);
}

std::vector<std::int64_t> ShapeOf(const v1::Tensor& tensor) {
  return {tensor.shape().begin(), tensor.shape().end()};
}

// The tensor of the reply's field `field`, which was to be at `place`.
absl::Status Take(const v1::Tensor& head, int field, const char* name, const ResultPlace& place,
                  const SharedRegions* shared, ParsedReply& parsed, Tensor* out) {
  Payload payload = std::move(parsed.tensors[field]);
  const bool written = shared != nullptr && !place.resident && shared->Find(place.into, kResultAlignment).has_value();
  if (written && payload.size == 0) payload.into = place.into;
  if (!place.into.empty() && payload.into.empty()) {
    return InvalidField(std::string(name) + ".into", std::to_string(place.into.size()) + " bytes",
                        "the result has " + std::to_string(payload.size));
  }
  const DataType type = TypeOf(head.dtype());
  absl::StatusOr<Tensor> tensor = place.resident ? Tensor::WithoutBytes(type, ShapeOf(head))
                                  : !payload.into.empty()
                                      ? Tensor::Borrow(type, ShapeOf(head), payload.into)
                                      : Tensor::Adopt(type, ShapeOf(head), std::move(payload.data), payload.size);
  if (!tensor.ok()) return BadReply(std::string(name) + ": " + std::string(tensor.status().message()));
  *out = *std::move(tensor);
  return absl::OkStatus();
}

Timing TimingOf(const v1::Timing& t) {
  return {t.total_us(),    t.headers_us(), t.decode_us(), t.validate_us(), t.admit_us(), t.queue_us(),
          t.stage_in_us(), t.h2d_us(),     t.kernel_us(), t.d2h_us(),      t.encode_us()};
}

Memory MemoryOf(const v1::Memory& m) {
  return {m.peak_bytes(), m.input_bytes(), m.output_bytes(), m.workspace_bytes(), m.pinned_bytes(), m.naive_bytes()};
}

Tile TileOf(const v1::Tile& tile) {
  return {tile.m(), tile.n(), tile.k()};
}

KernelUsed KernelOf(const v1::KernelUsed& k) {
  KernelUsed kernel{k.name(), std::nullopt, k.device(), k.numerics(), k.reason()};
  if (k.has_tile()) kernel.tile = TileOf(k.tile());
  return kernel;
}

std::vector<std::string> Strings(const google::protobuf::RepeatedPtrField<std::string>& field) {
  return {field.begin(), field.end()};
}

DeviceInfo DeviceOf(const v1::DeviceInfo& d) {
  DeviceInfo device;
  device.uuid = d.uuid();
  device.name = d.name();
  device.tier = v1::DeviceInfo::Tier_IsValid(d.tier()) ? static_cast<Tier>(d.tier()) : Tier::kUnspecified;
  device.compute_capability = d.compute_capability();
  device.processors = d.processors();
  device.memory_total_bytes = d.memory_total_bytes();
  device.memory_limit_bytes = d.memory_limit_bytes();
  device.memory_reserved_bytes = d.memory_reserved_bytes();
  device.hardware_has = Strings(d.hardware_has());
  device.build_has = Strings(d.build_has());
  device.kernels_use = Strings(d.kernels_use());
  device.pci_bus_id = d.pci_bus_id();
  device.shared_memory_per_block_bytes = d.shared_memory_per_block_bytes();
  device.l2_bytes = d.l2_bytes();
  device.driver = d.driver();
  device.runtime = d.runtime();
  device.driver_version = d.driver_version();
  if (d.has_ecc()) device.ecc = d.ecc();
  if (d.has_mig()) device.mig = d.mig();
  if (d.has_sm_clock_mhz()) device.sm_clock_mhz = d.sm_clock_mhz();
  if (d.has_sm_clock_max_mhz()) device.sm_clock_max_mhz = d.sm_clock_max_mhz();
  if (d.has_memory_clock_mhz()) device.memory_clock_mhz = d.memory_clock_mhz();
  if (d.has_memory_clock_max_mhz()) device.memory_clock_max_mhz = d.memory_clock_max_mhz();
  return device;
}

absl::Duration DurationOf(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

TensorInfo InfoOf(const v1::TensorInfo& t) {
  const bool known = t.state() > v1::TENSOR_STATE_UNSPECIFIED && t.state() <= v1::TENSOR_STATE_FAILED;
  return {t.id(),
          TypeOf(t.dtype()),
          {t.shape().begin(), t.shape().end()},
          known ? static_cast<TensorState>(t.state()) : TensorState::kUnspecified,
          t.bytes(),
          t.device(),
          t.users()};
}

}  // namespace

DataType TypeOf(int wire) {
  const auto type = static_cast<DataType>(wire);
  return wire > 0 && wire < 256 && ElementBytes(type) > 0 ? type : DataType::kUnspecified;
}

absl::StatusOr<MatmulReply> DecodeMatmul(grpc::ByteBuffer buffer, const ResultPlace& d, const SharedRegions* shared) {
  absl::StatusOr<ParsedReply> parsed =
      PartReply(std::move(buffer), kMatmulTensors, {{v1::MatmulReply::kDFieldNumber, d.into}});
  KERND_CLIENT_RETURN_IF_ERROR(parsed.status());
  v1::MatmulReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(parsed->rest, &message));
  MatmulReply reply{Tensor(), TimingOf(message.timing()), MemoryOf(message.memory()), KernelOf(message.kernel())};
  KERND_CLIENT_RETURN_IF_ERROR(
      Take(message.d(), v1::MatmulReply::kDFieldNumber, "matmul.d", d, shared, *parsed, &reply.d));
  return reply;
}

absl::StatusOr<AttentionReply> DecodeAttention(grpc::ByteBuffer buffer, const ResultPlace& o, const ResultPlace& lse,
                                               const SharedRegions* shared) {
  absl::StatusOr<ParsedReply> parsed =
      PartReply(std::move(buffer), kAttentionTensors,
                {{v1::AttentionReply::kOFieldNumber, o.into}, {v1::AttentionReply::kLseFieldNumber, lse.into}});
  KERND_CLIENT_RETURN_IF_ERROR(parsed.status());
  v1::AttentionReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(parsed->rest, &message));
  AttentionReply reply{Tensor(), Tensor(), TimingOf(message.timing()), MemoryOf(message.memory()),
                       KernelOf(message.kernel())};
  KERND_CLIENT_RETURN_IF_ERROR(
      Take(message.o(), v1::AttentionReply::kOFieldNumber, "attention.o", o, shared, *parsed, &reply.o));
  if (message.has_lse()) {
    KERND_CLIENT_RETURN_IF_ERROR(
        Take(message.lse(), v1::AttentionReply::kLseFieldNumber, "attention.lse", lse, shared, *parsed, &reply.lse));
  }
  return reply;
}

absl::StatusOr<PlanReply> DecodePlan(grpc::ByteBuffer buffer) {
  v1::PlanReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  if (message.steps_size() != 1) return BadReply(std::to_string(message.steps_size()) + " steps for a plan of one");
  const v1::PlanReply::Step& step = message.steps(0);
  PlanReply reply{KernelOf(step.kernel()), {}, MemoryOf(step.memory())};
  for (const v1::Tensor& result : step.results()) reply.results.push_back({TypeOf(result.dtype()), ShapeOf(result)});
  return reply;
}

absl::StatusOr<Capabilities> DecodeCapabilities(grpc::ByteBuffer buffer) {
  v1::GetCapabilitiesReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  Capabilities reply;
  reply.version = message.version();
  reply.revision = message.revision();
  reply.compiler = message.compiler();
  reply.cuda_toolkit = message.cuda_toolkit();
  reply.backend = message.backend();
  reply.server_epoch = message.server_epoch();
  for (const v1::DeviceInfo& device : message.devices()) reply.devices.push_back(DeviceOf(device));
  for (const v1::OperationSupport& row : message.operations()) {
    reply.operations.push_back({row.operation(), TypeOf(row.dtype()), row.supported(), row.reason()});
  }
  reply.max_message_bytes = message.limits().max_message_bytes();
  reply.max_queued_calls = message.limits().max_queued_calls();
  reply.memory_limit_bytes = message.limits().memory_limit_bytes();
  reply.shared_memory_socket = message.shared_memory_socket();
  reply.not_used = Strings(message.not_used());
  return reply;
}

absl::StatusOr<std::vector<KernelInfo>> DecodeKernels(grpc::ByteBuffer buffer) {
  v1::ListKernelsReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  std::vector<KernelInfo> kernels;
  for (const v1::Kernel& k : message.kernels()) {
    KernelInfo& kernel = kernels.emplace_back();
    kernel.name = k.name();
    kernel.operation = k.operation();
    for (const int dtype : k.dtypes()) kernel.dtypes.push_back(TypeOf(dtype));
    if (k.has_tile()) kernel.tile = TileOf(k.tile());
    kernel.device = k.device();
    kernel.method = k.method();
    kernel.limits = k.limits();
  }
  return kernels;
}

absl::StatusOr<AutotuneProgress> DecodeAutotune(grpc::ByteBuffer buffer) {
  v1::AutotuneProgress message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  AutotuneProgress progress;
  // What a later daemon may add is not known here.
  const auto known = [](auto last, int value) {
    return static_cast<decltype(last)>(value >= 0 && value <= static_cast<int>(last) ? value : 0);
  };
  progress.event = known(TuneEvent::kEnd, message.event());
  progress.verdict = known(TuneVerdict::kFailed, message.verdict());
  progress.outcome = known(TuneOutcome::kNotReached, message.outcome());
  progress.done = message.done();
  progress.total = message.total();
  progress.shape = message.shape();
  progress.part = message.part();
  progress.best = message.best();
  progress.best_us = message.best_us();
  progress.kernel = message.kernel();
  if (message.has_tile()) progress.tile = TileOf(message.tile());
  progress.median_us = message.median_us();
  progress.p20_us = message.p20_us();
  progress.p80_us = message.p80_us();
  progress.runs = message.runs();
  progress.why = message.why();
  progress.model = message.model();
  progress.model_us = message.model_us();
  return progress;
}

absl::StatusOr<HealthStatus> DecodeHealth(grpc::ByteBuffer buffer) {
  grpc::health::v1::HealthCheckResponse message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  switch (message.status()) {
    case grpc::health::v1::HealthCheckResponse::SERVING: return HealthStatus::kServing;
    case grpc::health::v1::HealthCheckResponse::NOT_SERVING: return HealthStatus::kNotServing;
    default: return HealthStatus::kUnknown;
  }
}

absl::StatusOr<OpenedSession> DecodeOpenSession(grpc::ByteBuffer buffer) {
  v1::OpenSessionReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  if (message.session_id().empty()) return BadReply("a session without an id");
  return OpenedSession{message.session_id(), message.server_epoch(), message.endpoint(), DurationOf(message.lease()),
                       message.quota_bytes()};
}

absl::StatusOr<SessionContents> DecodeList(grpc::ByteBuffer buffer) {
  v1::ListReply message;
  KERND_CLIENT_RETURN_IF_ERROR(Parse(std::move(buffer), &message));
  SessionContents contents{{}, message.used_bytes(), message.quota_bytes(), DurationOf(message.lease_left())};
  for (const v1::TensorInfo& tensor : message.tensors()) contents.tensors.push_back(InfoOf(tensor));
  return contents;
}

}  // namespace kernd::client
