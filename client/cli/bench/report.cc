#include "client/cli/bench/report.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/cli/report.h"
#include "client/cli/table.h"
#include "client/cli/text.h"

namespace kernd::cli {
namespace {

using nlohmann::json;

constexpr char kBold[] = "\x1b[1m", kRed[] = "\x1b[1;31m", kGreen[] = "\x1b[32m", kPlain[] = "\x1b[0m";
constexpr std::size_t kWidth = 9, kWideWidth = 11;  // of columns; wide: bytes each second
constexpr std::size_t kFirstWide = 2, kLastWide = 3;
constexpr int kBarWidth = 32;

double Micros(absl::Duration duration) {
  return absl::ToDoubleMicroseconds(duration);
}

// Three digits, or whole: "184 us", "1.84 ms", "12.1 s".
std::string TimeText(double us) {
  const auto three = [](double value, const char* unit) {
    return FormatNumber(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + unit;
  };
  if (us < 999.5) return three(us, " us");
  if (us < 999.5e3) return three(us / 1e3, " ms");
  return three(us / 1e6, " s");
}

std::string TimeText(absl::Duration duration) {
  return TimeText(Micros(duration));
}

std::string RateText(double rate) {
  return rate < 10 ? absl::StrFormat("%.3g", rate) : absl::StrFormat("%.1f", rate);
}

std::string ShortRate(double rate) {
  return absl::StrFormat("%.10g", rate);
}

std::string BytesText(double per_second) {
  return FormatBytes(static_cast<std::int64_t>(per_second)) + "/s";
}

// Absent where there are too few values to have the quantile: it would be the largest under another name.
std::optional<absl::Duration> Known(const Histogram& histogram, double q) {
  if (static_cast<double>(histogram.count()) * (1 - q) < 1 - 1e-9) return std::nullopt;
  return histogram.Quantile(q);
}

std::string QuantileText(const Histogram& histogram, double q) {
  const std::optional<absl::Duration> value = Known(histogram, q);
  return value ? TimeText(*value) : "-";
}

json HistogramJson(const Histogram& histogram) {
  json out = {{"count", histogram.count()},
              {"mean", Micros(histogram.Mean())},
              {"min", Micros(histogram.Min())},
              {"max", Micros(histogram.Max())}};
  for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
    const std::optional<absl::Duration> value = Known(histogram, kQuantiles[i]);
    out[kQuantileNames[i]] = value ? json(Micros(*value)) : json();
  }
  return out;
}

std::int64_t TotalWeight(std::span<const BenchCall> calls) {
  return std::accumulate(calls.begin(), calls.end(), std::int64_t{0},
                         [](std::int64_t sum, const BenchCall& call) { return sum + call.problem().weight; });
}

// Of the daemon's machine, as all files of results have it.
json MachineJson(const client::Capabilities& daemon) {
  const client::DeviceInfo device = daemon.devices.empty() ? client::DeviceInfo() : daemon.devices.front();
  const bool gpu = daemon.backend == "cuda";
  return {{"gpu", gpu ? device.name : ""},
          {"driver", gpu ? device.driver : ""},
          {"cpu", gpu ? "" : device.name},
          {"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())},
          {"build", absl::StrCat("kernd ", daemon.version, " ", daemon.revision, ", ", daemon.compiler)}};
}

}  // namespace

BenchReport::BenchReport(const Context& context, const BenchSettings& settings, const client::Capabilities& daemon,
                         std::span<const BenchCall> calls)
    : context_(context), settings_(settings), daemon_(daemon), calls_(calls), open_(settings.load.rate.has_value()) {
  if (context.json) return;
  const std::int64_t total = TotalWeight(calls);
  Table table;
  for (const BenchCall& call : calls) {
    const double share = 100.0 * static_cast<double>(call.problem().weight) / static_cast<double>(total);
    std::vector<std::string> cells = {
        call.problem().Name(),
        FormatBytes(call.sent_bytes()) + " sent, " + FormatBytes(call.received_bytes()) + " back", call.kernel().name};
    if (calls.size() > 1) cells.insert(cells.begin(), absl::StrFormat("%.3g %%", share));
    table.Add(std::move(cells));
  }
  table.Print(context.out);
  const Load& load = settings.load;
  std::string how = "closed loop";
  if (open_) {
    how = absl::StrCat("open loop, ", load.arrivals == ArrivalKind::kPoisson ? "Poisson" : "constant",
                       " arrivals, at most ", load.concurrency, " in flight, latency from the time a call was due");
  }
  context.out << how << '\n'
              << settings.connections << (settings.connections == 1 ? " connection" : " connections") << ", place "
              << settings.place << "; each row " << absl::FormatDuration(load.warmup) << " of warm-up and "
              << absl::FormatDuration(load.duration) << " measured; seed " << load.seed << "\n\n";
  std::vector<std::string> heads = {open_ ? "offered/s" : "in flight", "calls/s", "sent", "received"};
  for (const char* name : kQuantileNames) heads.push_back(name);
  heads.push_back("max");
  if (open_) heads.push_back("late p99");
  heads.push_back("errors");
  PrintCells(heads, kBold);
}

void BenchReport::PrintCells(const std::vector<std::string>& cells, const char* color) const {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::size_t width = i >= kFirstWide && i <= kLastWide ? kWideWidth : kWidth;
    line += (i == 0 ? "" : "  ") + std::string(width - std::min(width, cells[i].size()), ' ') + cells[i];
  }
  const bool colored = context_.terminal.colors && *color != '\0';
  context_.out << (colored ? color + line + kPlain : line) << '\n' << std::flush;
}

std::string BenchReport::LoadName(const Load& load) const {
  return open_ ? ShortRate(*load.rate) + "/s" : std::to_string(load.concurrency);
}

void BenchReport::Add(LoadResult result) {
  rows_.push_back(std::move(result));
  if (context_.json) return;
  const LoadResult& row = rows_.back();
  std::vector<std::string> cells = {open_ ? ShortRate(*row.load.rate) : std::to_string(row.load.concurrency),
                                    RateText(row.calls_per_second), BytesText(row.sent_per_second),
                                    BytesText(row.received_per_second)};
  for (const double q : kQuantiles) cells.push_back(QuantileText(row.latency, q));
  cells.push_back(row.latency.count() == 0 ? "-" : TimeText(row.latency.Max()));
  if (open_) cells.push_back(QuantileText(row.lateness, 0.99));
  cells.push_back(std::to_string(row.num_errors));
  PrintCells(cells, row.num_errors > 0 ? kRed : "");
}

bool BenchReport::Within(const BenchSettings& settings, const LoadResult& result) {
  if (!settings.until_p99) return true;
  return result.roundtrip.count() > 0 && result.num_errors == 0 && result.cut_off == 0 &&
         result.latency.Quantile(0.99) <= *settings.until_p99;
}

std::size_t BenchReport::num_within() const {
  const auto first_over =
      std::find_if(rows_.begin(), rows_.end(), [this](const LoadResult& row) { return !Within(settings_, row); });
  return static_cast<std::size_t>(first_over - rows_.begin());
}

void BenchReport::PrintStages() const {
  std::vector<Table::Align> alignments = {Table::Align::kLeft};
  alignments.resize(rows_.size() + 1, Table::Align::kRight);
  Table table(std::move(alignments));
  double whole = 0;
  for (const LoadResult& row : rows_) whole = std::max(whole, Micros(row.latency.Mean()));
  const auto add = [&](const char* name, const auto& us_of, bool always) {
    std::vector<std::string> cells = {name};
    double us = 0, sum = 0;
    for (const LoadResult& row : rows_) {
      us = us_of(row);
      sum += us;
      cells.push_back(FormatNumber(us, 1));
    }
    if (rows_.size() == 1) cells.push_back(Bar(us, whole, kBarWidth));
    if (sum > 0 || always) table.Add(std::move(cells));
  };
  std::vector<std::string> heads = {"mean us"};
  for (const LoadResult& row : rows_) heads.push_back(LoadName(row.load));
  table.Add(std::move(heads));
  const auto names = Stages(client::Timing());
  for (std::size_t i = 0; i < names.size(); ++i) {
    add(
        names[i].name, [i](const LoadResult& row) { return row.stage_us[i]; }, false);
  }
  add(
      "server", [](const LoadResult& row) { return row.server_us; }, true);
  add(
      "around it", [](const LoadResult& row) { return Micros(row.roundtrip.Mean()) - row.server_us; }, true);
  if (open_)
    add(
        "late", [](const LoadResult& row) { return Micros(row.lateness.Mean()); }, true);
  add(
      open_ ? "latency" : "client", [](const LoadResult& row) { return Micros(row.latency.Mean()); }, true);
  context_.out << '\n';
  table.Print(context_.out);
  context_.out
      << "server: from a call's first headers to the start of its reply, stages may overlap; around it: network "
         "and client"
      << (open_ ? "; late: due, but not sent yet" : "") << '\n';
}

void BenchReport::PrintRemarks(bool interrupted) const {
  std::ostream& out = context_.out;
  const auto say = [&](const char* color, const std::string& text) {
    out << (context_.terminal.colors && *color != '\0' ? color + Printable(text) + kPlain : Printable(text)) << '\n';
  };
  out << '\n';
  std::int64_t checked = 0, wrong = 0;
  bool too_few = false;
  for (const LoadResult& row : rows_) {
    checked += row.checked;
    wrong += row.num_wrong;
    too_few |= row.latency.count() > 0 && !Known(row.latency, kQuantiles.back());
    for (const auto& [error, count] : row.errors) {
      say(kRed, absl::StrCat("at ", LoadName(row.load), ": ", count, " x ", error));
    }
    if (!row.first_error.empty()) say("", "    first: " + row.first_error);
    if (row.cut_off > 0) {
      say("", absl::StrCat("at ", LoadName(row.load), ": ", row.cut_off,
                           " without a reply when the run ended, counted with the time until then"));
    }
  }
  if (too_few) say("", "-: too few calls to have that quantile; --duration makes more of them");
  if (checked > 0 && wrong == 0)
    say("", absl::StrCat("bits of ", checked, " replies compared with the first: the same"));
  if (settings_.until_p99) {
    const std::string limit = "p99 within " + absl::FormatDuration(*settings_.until_p99);
    const std::size_t within = num_within();
    if (within == 0) {
      say(kRed, limit + ": at no load");
    } else {
      const LoadResult& best = rows_[within - 1];
      say(kGreen, absl::StrCat(limit, ": up to ", LoadName(best.load), open_ ? "" : " in flight", " (",
                               TimeText(best.latency.Quantile(0.99)), " there)",
                               within == rows_.size() ? ", the highest that was tried" : ""));
    }
  }
  if (interrupted) say("", "interrupted: the last row is what there was until then");
}

json BenchReport::RowJson(const LoadResult& row) const {
  json stages = json::object();
  const auto names = Stages(client::Timing());
  for (std::size_t i = 0; i < names.size(); ++i) stages[names[i].name] = row.stage_us[i];
  json out = {{"concurrency", row.load.concurrency},
              {"seconds", absl::ToDoubleSeconds(row.window)},
              {"calls_per_second", row.calls_per_second},
              {"sent_bytes_per_second", row.sent_per_second},
              {"received_bytes_per_second", row.received_per_second},
              {"latency_us", HistogramJson(row.latency)},
              {"roundtrip_us", HistogramJson(row.roundtrip)},
              {"server_us", HistogramJson(row.server)},
              {"stages_mean_us", stages},
              {"errors", row.errors},
              {"num_errors", row.num_errors},
              {"cut_off", row.cut_off},
              {"checked", row.checked}};
  if (!row.first_error.empty()) out["first_error"] = row.first_error;
  if (!open_) return out;
  out["rate"] = *row.load.rate;
  out["lateness_us"] = HistogramJson(row.lateness);
  return out;
}

// The rows once more, as all benchmarks of the project have them.
json BenchReport::Results() const {
  json results = json::array();
  for (const LoadResult& row : rows_) {
    const BenchProblem& problem = calls_.front().problem();
    std::string what = "mix";
    if (calls_.size() == 1) {
      what = absl::StrCat(problem.op(), "/", std::string(client::Name(problem.dtype)), "/", problem.shape,
                          problem.causal ? "/causal" : "");
    }
    const std::string load = open_ ? "r" + ShortRate(*row.load.rate) : absl::StrCat("c", row.load.concurrency);
    const auto add = [&, name = absl::StrCat("service/inline/", what, "/", load, "/")](const char* value_of,
                                                                                       double value, const char* unit) {
      results.push_back({{"name", name + value_of}, {"value", value}, {"unit", unit}});
    };
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      if (const auto value = Known(row.latency, kQuantiles[i])) add(kQuantileNames[i], Micros(*value), "us");
    }
    add("throughput", row.calls_per_second, "calls/s");
    add("bytes", (row.sent_per_second + row.received_per_second) / 1e6, "MB/s");
  }
  return results;
}

void BenchReport::Finish(bool interrupted) {
  if (!context_.json) {
    if (!rows_.empty()) PrintStages();
    PrintRemarks(interrupted);
    return;
  }
  const Load& load = settings_.load;
  json calls = json::array(), rows = json::array();
  for (const BenchCall& call : calls_) {
    calls.push_back({{"op", call.problem().op()},
                     {"dtype", std::string(client::Name(call.problem().dtype))},
                     {"shape", call.problem().shape},
                     {"causal", call.problem().causal},
                     {"weight", call.problem().weight},
                     {"kernel", call.kernel().name},
                     {"sent_bytes", call.sent_bytes()},
                     {"received_bytes", call.received_bytes()}});
  }
  for (const LoadResult& row : rows_) rows.push_back(RowJson(row));
  json out = {{"machine", MachineJson(daemon_)},
              {"calls", calls},
              {"place", settings_.place},
              {"loop", open_ ? "open" : "closed"},
              {"connections", settings_.connections},
              {"warmup_seconds", absl::ToDoubleSeconds(load.warmup)},
              {"seed", load.seed},
              {"interrupted", interrupted},
              {"rows", rows},
              {"results", Results()}};
  if (open_) out["arrivals"] = load.arrivals == ArrivalKind::kPoisson ? "poisson" : "constant";
  if (settings_.until_p99) {
    out["until_p99"] = {{"limit_us", Micros(*settings_.until_p99)}, {"rows_within", num_within()}};
  }
  PrintJson(context_, out);
}

PlotSpec BenchReport::Plot() const {
  PlotSpec plot;
  plot.title = "Latency of " + (calls_.size() == 1 ? calls_.front().problem().Name() : settings_.mix);
  plot.subtitle = absl::StrCat(
      open_ ? absl::StrCat("open loop, ", settings_.load.arrivals == ArrivalKind::kPoisson ? "Poisson" : "constant",
                           " arrivals, from the time a call was due")
            : std::string("closed loop, from sending to the reply"),
      "; ", absl::FormatDuration(settings_.load.duration), " a point",
      daemon_.devices.empty() ? "" : "; " + daemon_.devices.front().name);
  plot.x_label = open_ ? "offered load, calls/s" : "throughput, calls/s";
  for (const LoadResult& row : rows_) {
    PlotPoint point{.x = open_ ? *row.load.rate : row.calls_per_second,
                    .name = open_ ? LoadName(row.load) : LoadName(row.load) + " in flight",
                    .failed = row.num_errors > 0 || row.cut_off > 0};
    for (std::size_t i = 0; i < kQuantiles.size(); ++i) {
      if (const auto value = Known(row.latency, kQuantiles[i])) point.us[i] = Micros(*value);
    }
    plot.points.push_back(std::move(point));
  }
  if (settings_.until_p99) {
    plot.limit_us = Micros(*settings_.until_p99);
    plot.limit_label = "limit of p99: " + absl::FormatDuration(*settings_.until_p99);
  }
  return plot;
}

}  // namespace kernd::cli
