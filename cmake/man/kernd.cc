// kernd(8), from the daemon's option table.
#include <algorithm>

#include "cmake/man/page.h"
#include "server/config/option_table.h"
#include "server/config/server_options.h"

namespace {

using kernd::config::Option;
using kernd::man::Entry;
using kernd::man::Page;
using kernd::man::Section;

// As it would be typed: without the quotes and brackets of the file's syntax. Empty where it depends on the machine,
// which is seen from its being different on another one.
std::string DefaultOf(const Option& option) {
  const auto on = [&option](int cpus, std::int64_t memory_bytes) {
    std::string text = option.print(kernd::config::DefaultOptions({.cpus = cpus, .memory_bytes = memory_bytes}));
    std::erase_if(text, [](char c) { return c == '"' || c == '[' || c == ']'; });
    return text;
  };
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  const std::string small = on(4, 8 * kGiB), large = on(64, 256 * kGiB);
  return small == large ? small : "";
}

Entry EntryOf(const Option& option) {
  Entry entry{std::string("--") + option.name + " " + option.value, option.help};
  const std::string text = DefaultOf(option);
  if (!text.empty()) entry.text += "\nDefault: " + text + ".";
  entry.text += "\nVariable: " + kernd::config::VariableOf(option) + ".";
  return entry;
}

Page Make() {
  Page page{.name = "kernd", .number = 8, .summary = "serve matrix products and attention over gRPC"};
  page.synopsis = {"[OPTIONS]"};
  page.see_also = {{"kernctl", 1}};
  page.sections.push_back(
      {.title = "Description",
       .paragraphs = {
           "kernd owns a GPU, or the processors where there is none, and computes matrix products and "
           "attention for its clients. It serves gRPC, and over HTTP /metrics for Prometheus, /healthz, /readyz "
           "and a page for people at /. It has neither TLS nor passwords: it listens on the loopback unless "
           "told otherwise.",
           "Each option is a flag (--log-level debug), a variable (KERND_LOG_LEVEL=debug) or a line of the file "
           "given by --config (log-level = \"debug\"). A flag beats a variable, a variable beats the file, the "
           "file beats the default."}});
  page.sections.push_back({.title = "Options"});
  page.sections.push_back(
      {.title = "General",
       .sub = true,
       .entries = {{"-h, --help", "Print all options and leave."},
                   {"--version", "Print the version and leave."},
                   {"--check-config",
                    "Validate, print the effective configuration and where each value comes from, and leave."},
                   {"--config FILE", "Read options from this file: lines of NAME = VALUE.\nVariable: KERND_CONFIG."}}});
  for (const Option& option : kernd::config::OptionTable()) {
    if (page.sections.back().title != option.group) page.sections.push_back({.title = option.group, .sub = true});
    page.sections.back().entries.push_back(EntryOf(option));
  }
  page.sections.push_back(
      {.title = "Signals",
       .entries = {{"SIGTERM, SIGINT",
                    "End in order: /readyz says no, after --drain-delay no more calls are taken, and "
                    "those in flight have --drain-timeout to end. A second one ends the process at once."}}});
  page.sections.push_back({.title = "Exit status",
                           .entries = {{"0", "Drained, or printed what was asked for."},
                                       {"1", "Calls had to be cancelled, or a failure."},
                                       {"2", "Bad options, or too few open files allowed."},
                                       {"3", "An address cannot be bound."},
                                       {"4", "No such backend or GPU here."},
                                       {"5", "The GPU driver is missing or too old."},
                                       {"6", "No kernels for the GPU."},
                                       {"7", "The GPU was lost while serving."}}});
  page.sections.push_back({.title = "Examples",
                           .lines = {"kernd", "kernd --listen 0.0.0.0:50051 --http-listen 0.0.0.0:9464",
                                     "kernd --listen unix:/run/kernd/kernd.sock --config /etc/kernd/kernd.conf"}});
  return page;
}

}  // namespace

int main(int argc, char** argv) {
  return kernd::man::Main(argc, argv, Make);
}
