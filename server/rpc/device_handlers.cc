#include "kernd/v1/device.pb.h"
#include "server/rpc/encode.h"
#include "server/rpc/enums.h"
#include "server/rpc/handlers.h"
#include "server/rpc/message.h"

namespace kernd::rpc {
namespace {

v1::DeviceInfo::Tier EncodeTier(core::DeviceDescription::Tier tier) {
  using Tier = core::DeviceDescription::Tier;
  switch (tier) {
    case Tier::kUnsupported: return v1::DeviceInfo::TIER_UNSUPPORTED;
    case Tier::kBasic: return v1::DeviceInfo::TIER_BASIC;
    case Tier::kFull: return v1::DeviceInfo::TIER_FULL;
    case Tier::kAdvanced: return v1::DeviceInfo::TIER_ADVANCED;
    case Tier::kCpu: return v1::DeviceInfo::TIER_CPU;
  }
  return v1::DeviceInfo::TIER_UNSPECIFIED;
}

v1::GetCapabilitiesReply Capabilities(const core::Engine& engine, const ServerFacts& facts) {
  v1::GetCapabilitiesReply reply;
  reply.set_version(facts.version);
  reply.set_revision(facts.revision);
  reply.set_compiler(facts.compiler);
  reply.set_cuda_toolkit(facts.cuda_toolkit);
  reply.set_backend(std::string(engine.backend().name()));
  reply.set_server_epoch(facts.epoch);
  const core::Engine::Load load = engine.load();
  for (const core::DeviceDescription& device : engine.backend().Devices()) {
    v1::DeviceInfo& out = *reply.add_devices();
    out.set_uuid(device.uuid);
    out.set_name(device.name);
    out.set_tier(EncodeTier(device.tier));
    out.set_compute_capability(device.compute_capability);
    out.set_processors(device.processors);
    out.set_memory_total_bytes(device.memory_total);
    out.set_memory_limit_bytes(load.memory_limit);
    out.set_memory_reserved_bytes(load.memory_used);
    out.mutable_hardware_has()->Assign(device.hardware_has.begin(), device.hardware_has.end());
    out.mutable_build_has()->Assign(device.build_has.begin(), device.build_has.end());
    out.mutable_kernels_use()->Assign(device.kernels_use.begin(), device.kernels_use.end());
    out.set_pci_bus_id(device.pci);
    out.set_shared_memory_per_block_bytes(device.shared_memory_per_block);
    out.set_l2_bytes(device.l2);
    out.set_driver(device.driver);
    out.set_runtime(device.runtime);
    out.set_driver_version(device.driver_version);
    if (device.ecc) out.set_ecc(*device.ecc);
    if (device.mig) out.set_mig(*device.mig);
    if (device.sm_clock_mhz) out.set_sm_clock_mhz(*device.sm_clock_mhz);
    if (device.sm_clock_max_mhz) out.set_sm_clock_max_mhz(*device.sm_clock_max_mhz);
    if (device.memory_clock_mhz) out.set_memory_clock_mhz(*device.memory_clock_mhz);
    if (device.memory_clock_max_mhz) out.set_memory_clock_max_mhz(*device.memory_clock_max_mhz);
  }
  for (const core::DtypeSupport& support : engine.backend().Support()) {
    v1::OperationSupport& out = *reply.add_operations();
    out.set_operation(std::string(Name(support.op)));
    out.set_dtype(EncodeDataType(support.dtype));
    out.set_supported(support.why_not.empty());
    out.set_reason(support.why_not);
  }
  reply.mutable_limits()->set_max_message_bytes(facts.max_message_bytes);
  reply.mutable_limits()->set_max_queued_calls(engine.options().max_queued_calls);
  reply.mutable_limits()->set_memory_limit_bytes(load.memory_limit);
  reply.set_shared_memory_socket(facts.shared_memory_socket);
  reply.mutable_not_used()->Assign(facts.not_used.begin(), facts.not_used.end());
  return reply;
}

v1::ListKernelsReply Kernels(const core::Backend& backend) {
  v1::ListKernelsReply reply;
  for (const VariantInfo& variant : backend.Variants()) {
    v1::Kernel& out = *reply.add_kernels();
    out.set_name(variant.name);
    out.set_operation(std::string(Name(variant.op)));
    for (const DataType dtype : variant.dtypes) out.add_dtypes(EncodeDataType(dtype));
    if (variant.tile) EncodeTile(*variant.tile, *out.mutable_tile());
    out.set_device(std::string(backend.device_id()));
    out.set_method(variant.method);
    out.set_limits(variant.limits);
  }
  return reply;
}

// A method that parses `Request` and answers at once.
template <typename Request, typename Answer>
Handler Simple(Answer answer) {
  return [answer](const ExchangePtr& exchange) {
    Request request;
    if (const absl::Status parsed = Parse(exchange->request, request); !parsed.ok()) return exchange->Fail(parsed);
    exchange->Reply(Serialize(answer()));
  };
}

}  // namespace

void AddDeviceMethods(core::Engine& engine, const ServerFacts& facts, MethodTable& table) {
  table.Add("/kernd.v1.Device/GetCapabilities",
            {.name = "Device/GetCapabilities",
             .handler = Simple<v1::GetCapabilitiesRequest>([&engine, facts] { return Capabilities(engine, facts); })});
  table.Add("/kernd.v1.Device/ListKernels",
            {.name = "Device/ListKernels",
             .handler = Simple<v1::ListKernelsRequest>([&engine] { return Kernels(engine.backend()); })});
  table.Add("/kernd.v1.Device/TrimPool", {.name = "Device/TrimPool", .handler = Simple<v1::TrimPoolRequest>([&engine] {
                                                                       v1::TrimPoolReply reply;
                                                                       reply.set_freed_bytes(engine.backend().Trim());
                                                                       return reply;
                                                                     })});
}

}  // namespace kernd::rpc
