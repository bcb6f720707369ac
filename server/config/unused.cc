#include "server/config/unused.h"

#include <functional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/config/option_table.h"

namespace kernd::config {
namespace {

bool IsOfGpu(const Option& option) {
  return option.group == std::string_view("GPU");
}

bool IsOfCpu(const Option& option) {
  const std::string_view name = option.name;
  return name == "cpu-threads" || name == "memory-limit";
}

bool IsOfSharedMemory(const Option& option) {
  return option.name == std::string_view("shared-memory-limit");
}

}  // namespace

std::vector<std::string> UnusedOptions(const ServerOptions& options, const MachineLimits& machine, bool on_gpu) {
  const ServerOptions defaults = DefaultOptions(machine);
  std::vector<std::string> lines;
  const auto add = [&](const std::function<bool(const Option&)>& idle, const char* why) {
    std::vector<std::string> set;
    for (const Option& option : OptionTable()) {
      if (idle(option) && option.print(options) != option.print(defaults))
        set.push_back(absl::StrCat("--", option.name));
    }
    if (set.empty()) return;
    lines.push_back(absl::StrCat(absl::StrJoin(set, ", "), set.size() == 1 ? " has" : " have", " no effect: ", why));
  };
  add(on_gpu ? IsOfCpu : IsOfGpu, on_gpu ? "a GPU serves" : "the CPU serves");
  if (options.shared_memory.socket.empty()) add(IsOfSharedMemory, "there is no --shared-memory-socket");
  return lines;
}

}  // namespace kernd::config
