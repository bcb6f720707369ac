#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/report.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "kernd/client/device.h"

namespace kernd::cli {
namespace {

using nlohmann::json;

std::vector<std::string> TypeNames(const std::vector<client::DataType>& types) {
  std::vector<std::string> names;
  for (const client::DataType type : types) names.emplace_back(client::Name(type));
  return names;
}

// What is not known is left out.
template <typename T>
void AddTo(json& out, const char* name, const std::optional<T>& value) {
  if (value) out[name] = *value;
}

json DeviceJson(const client::DeviceInfo& d) {
  json out = {{"uuid", d.uuid},
              {"name", d.name},
              {"tier", std::string(client::Name(d.tier))},
              {"compute_capability", d.compute_capability},
              {"processors", d.processors},
              {"memory_total_bytes", d.memory_total_bytes},
              {"memory_limit_bytes", d.memory_limit_bytes},
              {"memory_reserved_bytes", d.memory_reserved_bytes},
              {"hardware_has", d.hardware_has},
              {"build_has", d.build_has},
              {"kernels_use", d.kernels_use},
              {"pci_bus_id", d.pci_bus_id},
              {"shared_memory_per_block_bytes", d.shared_memory_per_block_bytes},
              {"l2_bytes", d.l2_bytes},
              {"driver", d.driver},
              {"runtime", d.runtime},
              {"driver_version", d.driver_version}};
  AddTo(out, "ecc", d.ecc);
  AddTo(out, "mig", d.mig);
  AddTo(out, "sm_clock_mhz", d.sm_clock_mhz);
  AddTo(out, "sm_clock_max_mhz", d.sm_clock_max_mhz);
  AddTo(out, "memory_clock_mhz", d.memory_clock_mhz);
  AddTo(out, "memory_clock_max_mhz", d.memory_clock_max_mhz);
  return out;
}

json CapabilitiesJson(const client::Capabilities& c) {
  json devices = json::array(), operations = json::array();
  for (const client::DeviceInfo& device : c.devices) devices.push_back(DeviceJson(device));
  for (const client::OperationSupport& row : c.operations) {
    operations.push_back({{"operation", row.operation},
                          {"dtype", std::string(client::Name(row.dtype))},
                          {"supported", row.supported},
                          {"reason", row.reason}});
  }
  return {{"version", c.version},
          {"revision", c.revision},
          {"compiler", c.compiler},
          {"cuda_toolkit", c.cuda_toolkit},
          {"backend", c.backend},
          {"server_epoch", c.server_epoch},
          {"devices", devices},
          {"operations", operations},
          {"limits",
           {{"max_message_bytes", c.max_message_bytes},
            {"max_queued_calls", c.max_queued_calls},
            {"memory_limit_bytes", c.memory_limit_bytes}}},
          {"not_used", c.not_used}};
}

// A row, unless there is nothing to say.
void AddRow(Table& table, const char* name, const std::string& value) {
  if (!value.empty()) table.Add({name, value});
}

std::string OnOrOff(const std::optional<bool>& value) {
  return !value ? "" : *value ? "on" : "off";
}

// "1755 MHz, at most 1980 MHz"
std::string Clock(const std::optional<std::int32_t>& now, const std::optional<std::int32_t>& most) {
  std::string text = now ? absl::StrFormat("%d MHz", *now) : "";
  if (most) text += absl::StrFormat("%sat most %d MHz", now ? ", " : "", *most);
  return text;
}

void PrintDevice(const Context& context, const client::DeviceInfo& d) {
  context.out << '\n' << Printable(d.uuid + ": " + d.name) << '\n';
  Table table;
  AddRow(table, "tier", std::string(client::Name(d.tier)));
  AddRow(table, "compute capability", d.compute_capability);
  AddRow(table, "processors", std::to_string(d.processors));
  AddRow(table, "memory",
         absl::StrFormat("%s, calls may hold %s, hold %s now", FormatBytes(d.memory_total_bytes),
                         FormatBytes(d.memory_limit_bytes), FormatBytes(d.memory_reserved_bytes)));
  AddRow(table, "hardware has", Join(d.hardware_has, ", "));
  AddRow(table, "build has", Join(d.build_has, ", "));
  AddRow(table, "kernels use", Join(d.kernels_use, ", "));
  AddRow(table, "PCI bus id", d.pci_bus_id);
  if (d.shared_memory_per_block_bytes > 0) {
    AddRow(table, "shared memory", FormatBytes(d.shared_memory_per_block_bytes) + " a block");
  }
  if (d.l2_bytes > 0) AddRow(table, "L2", FormatBytes(d.l2_bytes));
  AddRow(table, "ECC", OnOrOff(d.ecc));
  AddRow(table, "MIG", OnOrOff(d.mig));
  AddRow(table, "SM clock", Clock(d.sm_clock_mhz, d.sm_clock_max_mhz));
  AddRow(table, "memory clock", Clock(d.memory_clock_mhz, d.memory_clock_max_mhz));
  AddRow(table, "driver", d.driver + (d.driver_version.empty() ? "" : " (" + d.driver_version + ")"));
  AddRow(table, "runtime", d.runtime);
  table.Print(context.out, 2);
}

int RunGpuInfo(const Context& context) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  const absl::StatusOr<client::Capabilities> reply = client->GetCapabilities(context.CallOptions());
  if (!reply.ok()) return context.CallFailed(reply.status());
  if (context.json) {
    PrintJson(context, CapabilitiesJson(*reply));
    return kOk;
  }
  context.out << Printable("kernd " + reply->version + " (" + reply->revision + "), " + reply->compiler +
                           ", CUDA toolkit " + reply->cuda_toolkit + ", backend " + reply->backend)
              << '\n';
  for (const client::DeviceInfo& device : reply->devices) PrintDevice(context, device);

  std::map<std::string, std::vector<std::string>> supported;
  Table refused;
  for (const client::OperationSupport& row : reply->operations) {
    const std::string dtype(client::Name(row.dtype));
    std::vector<std::string>& types = supported[row.operation];
    if (row.supported) {
      types.push_back(dtype);
    } else {
      refused.Add({"not " + row.operation + " " + dtype, row.reason});
    }
  }
  context.out << '\n';
  Table table;
  for (const auto& [operation, types] : supported) table.Add({operation, Join(types, " ")});
  table.Add({"message", FormatBytes(reply->max_message_bytes) + " at most"});
  table.Add({"queue", std::to_string(reply->max_queued_calls) + " calls at most"});
  table.Print(context.out);
  refused.Print(context.out);
  for (const std::string& line : reply->not_used) context.out << "not used: " << Printable(line) << '\n';
  return kOk;
}

std::string TileText(const std::optional<client::Tile>& tile) {
  return tile ? absl::StrFormat("%dx%dx%d", tile->m, tile->n, tile->k) : "-";
}

int RunKernels(const Context& context) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  const absl::StatusOr<std::vector<client::KernelInfo>> kernels = client->ListKernels(context.CallOptions());
  if (!kernels.ok()) return context.CallFailed(kernels.status());
  if (context.json) {
    json out = json::array();
    for (const client::KernelInfo& kernel : *kernels) {
      json row = {{"name", kernel.name},     {"operation", kernel.operation}, {"dtypes", TypeNames(kernel.dtypes)},
                  {"device", kernel.device}, {"method", kernel.method},       {"limits", kernel.limits}};
      if (kernel.tile) row["tile"] = {kernel.tile->m, kernel.tile->n, kernel.tile->k};
      out.push_back(row);
    }
    PrintJson(context, out);
    return kOk;
  }
  Table table;
  table.Add({"name", "operation", "dtypes", "tile", "device", "method", "limits"});
  for (const client::KernelInfo& kernel : *kernels) {
    table.Add({kernel.name, kernel.operation, Join(TypeNames(kernel.dtypes), " "), TileText(kernel.tile), kernel.device,
               kernel.method, kernel.limits});
  }
  table.Print(context.out);
  return kOk;
}

}  // namespace

void AddGpuInfo(CLI::App& app, const Context& context, Action& action) {
  CLI::App* command = app.add_subcommand("gpu-info", "The daemon, its devices, and what it can compute");
  command->callback([&context, &action] { action = [&context] { return RunGpuInfo(context); }; });
}

void AddKernels(CLI::App& app, const Context& context, Action& action) {
  CLI::App* command = app.add_subcommand("kernels", "The kernels of the daemon");
  command->callback([&context, &action] { action = [&context] { return RunKernels(context); }; });
}

}  // namespace kernd::cli
