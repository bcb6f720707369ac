#include "client/cli/report.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/cli/table.h"

namespace kernd::cli {
namespace {

using nlohmann::json;

constexpr int kBarWidth = 40;

std::string TileText(const client::Tile& tile) {
  return absl::StrFormat("%dx%dx%d", tile.m, tile.n, tile.k);
}

json ShapesJson(const std::vector<NamedShape>& shapes) {
  json out = json::object();
  for (const NamedShape& entry : shapes) {
    out[entry.name] = {{"dtype", std::string(client::Name(entry.dtype))}, {"shape", entry.shape}};
  }
  return out;
}

json KernelJson(const client::KernelUsed& kernel) {
  json out = {
      {"name", kernel.name}, {"device", kernel.device}, {"numerics", kernel.numerics}, {"reason", kernel.reason}};
  if (kernel.tile) out["tile"] = {kernel.tile->m, kernel.tile->n, kernel.tile->k};
  return out;
}

json MemoryJson(const client::Memory& m) {
  return {{"peak_bytes", m.peak_bytes},           {"input_bytes", m.input_bytes},   {"output_bytes", m.output_bytes},
          {"workspace_bytes", m.workspace_bytes}, {"pinned_bytes", m.pinned_bytes}, {"naive_bytes", m.naive_bytes}};
}

json TimingJson(const client::Timing& timing, double connect_us, double client_us) {
  json out = {{"connect", connect_us}, {"client", client_us}, {"total", timing.total_us}};
  for (const StageTime& stage : Stages(timing)) out[stage.name] = stage.us;
  return out;
}

json ExpectationJson(const Expectation& e) {
  return {{"file", e.file},
          {"ok", e.comparison.ok()},
          {"tolerance", e.tolerance},
          {"max_abs_error", e.max_abs},
          {"max_rel_error", e.comparison.max_rel},
          {"mean_abs_error", e.comparison.mean_abs},
          {"mismatches", e.comparison.mismatches},
          {"elements", e.comparison.count}};
}

void AddShapes(const std::vector<NamedShape>& shapes, Table& table) {
  for (const NamedShape& entry : shapes) table.Add({entry.name, client::ToString(entry.dtype, entry.shape)});
}

std::string KernelText(const client::KernelUsed& kernel) {
  std::string text = kernel.name;
  if (kernel.tile) text += ", tile " + TileText(*kernel.tile);
  return text + ", on " + kernel.device + ", numerics " + kernel.numerics + ", chosen by " + kernel.reason;
}

std::string MemoryText(const client::Memory& m) {
  std::string text = FormatBytes(m.peak_bytes) + " at most: " + FormatBytes(m.input_bytes) + " in, " +
                     FormatBytes(m.output_bytes) + " out, " + FormatBytes(m.workspace_bytes) + " workspace";
  if (m.pinned_bytes > 0) text += "; " + FormatBytes(m.pinned_bytes) + " pinned";
  return text;
}

// What the textbook would hold, where that is more: buffers of a small call are rounded up to more than its scores.
void AddNaive(const client::Memory& m, Table& table) {
  constexpr double kWorthSaying = 1.05;
  const double times = static_cast<double>(m.naive_bytes) / static_cast<double>(m.peak_bytes);
  if (m.peak_bytes <= 0 || times < kWorthSaying) return;
  table.Add({"naive", absl::StrFormat("%s, %.1f times as much", FormatBytes(m.naive_bytes), times)});
}

std::string ExpectationText(const Expectation& e) {
  const reference::Comparison& c = e.comparison;
  std::string text = absl::StrFormat("max error %.3g, mean %.3g; tolerance %.3g of the largest value", e.max_abs,
                                     c.mean_abs, e.tolerance);
  if (c.ok()) return "OK: " + text;
  return "WRONG: " + text +
         absl::StrFormat("; %d of %d differ, first at [%d]: %.9g, expected %.9g", c.mismatches, c.count,
                         c.first_mismatch, c.first_actual, c.first_expected);
}

void PrintTimes(std::ostream& out, const client::Timing& timing, double connect_us, double client_us) {
  const double whole = std::max(client_us, timing.total_us);
  Table table({Table::Align::kLeft, Table::Align::kRight});
  table.Add({"stage", "us"});
  for (const StageTime& stage : Stages(timing)) {
    table.Add({stage.name, FormatNumber(stage.us, 1), Bar(stage.us, whole, kBarWidth)});
  }
  table.Add({"server", FormatNumber(timing.total_us, 1), Bar(timing.total_us, whole, kBarWidth)});
  table.Add({"client", FormatNumber(client_us, 1), Bar(client_us, whole, kBarWidth)});
  table.Add({"connect", FormatNumber(connect_us, 1)});
  table.Print(out);
  out << "client: from the call to its return; connect: before it, once for all calls of a client\n";
}

}  // namespace

std::array<StageTime, kNumStages> Stages(const client::Timing& t) {
  return {{{"headers", t.headers_us},
           {"decode", t.decode_us},
           {"validate", t.validate_us},
           {"admit", t.admit_us},
           {"queue", t.queue_us},
           {"stage_in", t.stage_in_us},
           {"h2d", t.h2d_us},
           {"kernel", t.kernel_us},
           {"d2h", t.d2h_us},
           {"encode", t.encode_us}}};
}

std::string SendingText(const std::vector<NamedShape>& operands) {
  std::int64_t total = 0;
  for (const NamedShape& operand : operands) total += client::TensorBytes(operand.dtype, operand.shape).value_or(0);
  return "sending " + FormatBytes(total) + ", and waiting for the result";
}

void PrintJson(const Context& context, const json& value) {
  context.out << value.dump(2, ' ', true, json::error_handler_t::replace) << '\n';
}

void PrintCall(const Context& context, const CallReport& report) {
  if (context.json) {
    json out = {{"operation", report.operation},
                {"operands", ShapesJson(report.operands)},
                {"results", ShapesJson(report.results)},
                {"kernel", KernelJson(report.kernel)},
                {"timing_us", TimingJson(report.timing, report.connect_us, report.client_us)},
                {"memory", MemoryJson(report.memory)}};
    if (report.expectation) out["expect"] = ExpectationJson(*report.expectation);
    PrintJson(context, out);
    return;
  }
  Table table;
  AddShapes(report.operands, table);
  AddShapes(report.results, table);
  table.Add({"kernel", KernelText(report.kernel)});
  table.Add({"memory", MemoryText(report.memory)});
  AddNaive(report.memory, table);
  if (report.expectation) table.Add({"expect", ExpectationText(*report.expectation)});
  table.Print(context.out);
  context.out << '\n';
  PrintTimes(context.out, report.timing, report.connect_us, report.client_us);
}

void PrintPlan(const Context& context, const std::string& operation, const std::vector<NamedShape>& operands,
               const client::PlanReply& plan) {
  std::vector<NamedShape> results;
  const std::vector<std::string> names =
      operation == "matmul" ? std::vector<std::string>{"d"} : std::vector<std::string>{"o", "lse"};
  for (std::size_t i = 0; i < std::min(names.size(), plan.results.size()); ++i) {
    results.push_back({names[i], plan.results[i].dtype, plan.results[i].shape});
  }
  if (context.json) {
    PrintJson(context, {{"operation", operation},
                        {"operands", ShapesJson(operands)},
                        {"results", ShapesJson(results)},
                        {"kernel", KernelJson(plan.kernel)},
                        {"memory", MemoryJson(plan.memory)}});
    return;
  }
  Table table;
  AddShapes(operands, table);
  AddShapes(results, table);
  table.Add({"kernel", KernelText(plan.kernel)});
  table.Add({"memory", MemoryText(plan.memory)});
  AddNaive(plan.memory, table);
  table.Print(context.out);
}

}  // namespace kernd::cli
