#include "server/app/daemon_facts.h"

#include <string_view>
#include <utility>

namespace kernd {
namespace {

std::string_view Name(core::DeviceDescription::Tier tier) {
  using Tier = core::DeviceDescription::Tier;
  switch (tier) {
    case Tier::kUnsupported: return "unsupported";
    case Tier::kBasic: return "basic";
    case Tier::kFull: return "full";
    case Tier::kAdvanced: return "advanced";
    case Tier::kCpu: return "cpu";
  }
  return "unknown";
}

}  // namespace

telemetry::DaemonFacts FactsOf(const config::BuildInfo& build, const core::Backend& backend,
                               std::vector<std::string> devices_not_used, std::vector<std::string> options_not_used) {
  telemetry::DaemonFacts facts = {.build = {.version = build.version,
                                            .revision = build.revision,
                                            .backend = std::string(backend.name()),
                                            .compiler = build.compiler,
                                            .cuda_toolkit = build.cuda_toolkit},
                                  .devices_not_used = std::move(devices_not_used),
                                  .options_not_used = std::move(options_not_used)};
  for (const core::DeviceDescription& device : backend.Devices()) {
    facts.devices.push_back({.uuid = device.uuid,
                             .name = device.name,
                             .tier = std::string(Name(device.tier)),
                             .compute_capability = device.compute_capability,
                             .pci = device.pci,
                             .driver = device.driver,
                             .runtime = device.runtime,
                             .processors = device.processors,
                             .memory_bytes = device.memory_total,
                             .hardware_has = device.hardware_has,
                             .build_has = device.build_has,
                             .kernels_use = device.kernels_use});
  }
  for (const VariantInfo& variant : backend.Variants()) {
    facts.kernels.push_back({.name = variant.name, .operation = std::string(Name(variant.op)), .how = variant.method});
  }
  return facts;
}

}  // namespace kernd
