#include "client/cli/tune/report.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/cli/report.h"
#include "client/cli/table.h"
#include "client/cli/text.h"

namespace kernd::cli {
namespace {

using client::AutotuneProgress;
using client::TuneEvent;
using client::TuneOutcome;
using nlohmann::json;

std::string WithTile(const std::string& kernel, const std::optional<client::Tile>& tile) {
  return tile ? absl::StrFormat("%s %dx%dx%d", kernel, tile->m, tile->n, tile->k) : kernel;
}

std::string Time(double us) {
  return us > 0 ? absl::StrFormat("%.1f", us) : "-";
}

std::string Lower(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = c == '_' ? ' ' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

// How much less time the choice takes than the model's; empty: not known.
std::optional<double> GainOf(const AutotuneProgress& shape) {
  if (shape.median_us <= 0 || shape.model_us <= 0) return std::nullopt;
  return 1 - shape.median_us / shape.model_us;
}

// "tuned: a, 35 % less time than the model's b"
std::string Summary(const AutotuneProgress& s) {
  std::string text;
  switch (s.outcome) {
    case TuneOutcome::kTuned:
      text = absl::StrFormat("tuned: %s", WithTile(s.kernel, s.tile));
      if (const std::optional<double> gain = GainOf(s)) {
        text += absl::StrFormat(", %.0f %% less time than the model's %s", 100 * *gain, s.model);
      } else {
        text += absl::StrFormat(", as the model's %s is not right here", s.model);
      }
      break;
    case TuneOutcome::kModelKept: text = absl::StrFormat("the model's choice stays: %s", s.model); break;
    case TuneOutcome::kUnspecified: text = "not finished"; break;
    default: text = Lower(client::Name(s.outcome));
  }
  return s.why.empty() ? text : text + ": " + s.why;
}

void PrintShape(const Context& context, const TunedShape& tuned) {
  context.out << Printable(tuned.shape.shape) << '\n';
  using Align = Table::Align;
  Table table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kLeft});
  if (!tuned.kernels.empty()) table.Add({"kernel", "median us", "p20", "p80", "runs", "verdict"});
  for (const AutotuneProgress& k : tuned.kernels) {
    const std::string verdict = Lower(client::Name(k.verdict));
    table.Add({WithTile(k.kernel, k.tile), Time(k.median_us), Time(k.p20_us), Time(k.p80_us), std::to_string(k.runs),
               k.why.empty() ? verdict : verdict + ": " + k.why});
  }
  table.Print(context.out, 2);
  context.out << "  " << Printable(Summary(tuned.shape)) << '\n';
}

json KernelJson(const AutotuneProgress& k) {
  json out = {{"kernel", k.kernel}, {"verdict", std::string(client::Name(k.verdict))}, {"runs", k.runs}};
  if (k.runs > 0) {
    out["median_us"] = k.median_us;
    out["p20_us"] = k.p20_us;
    out["p80_us"] = k.p80_us;
  }
  if (k.tile) out["tile"] = {k.tile->m, k.tile->n, k.tile->k};
  if (!k.why.empty()) out["why"] = k.why;
  return out;
}

json ShapeJson(const TunedShape& tuned) {
  const AutotuneProgress& s = tuned.shape;
  json kernels = json::array();
  for (const AutotuneProgress& kernel : tuned.kernels) kernels.push_back(KernelJson(kernel));
  json out = {{"shape", s.shape},
              {"outcome", std::string(client::Name(s.outcome))},
              {"chosen", s.kernel},
              {"model", s.model},
              {"kernels", kernels}};
  if (s.tile) out["chosen_tile"] = {s.tile->m, s.tile->n, s.tile->k};
  if (s.median_us > 0) out["chosen_us"] = s.median_us;
  if (s.model_us > 0) out["model_us"] = s.model_us;
  if (const std::optional<double> gain = GainOf(s)) out["gain"] = *gain;
  if (!s.why.empty()) out["why"] = s.why;
  return out;
}

}  // namespace

void TuneReport::Add(const AutotuneProgress& progress) {
  if (progress.event != TuneEvent::kCandidate && progress.event != TuneEvent::kShape) return;
  // Shapes come one after the other, also where a request names one twice.
  const bool begins = shapes_.empty() || shapes_.back().shape.event == TuneEvent::kShape;
  if (begins) {
    shapes_.emplace_back().shape.shape = progress.shape;
  }
  if (progress.event == TuneEvent::kShape) {
    shapes_.back().shape = progress;
  } else {
    shapes_.back().kernels.push_back(progress);
  }
}

void TuneReport::Print(const Context& context) const {
  if (context.json) {
    json shapes = json::array();
    for (const TunedShape& shape : shapes_) shapes.push_back(ShapeJson(shape));
    PrintJson(context, {{"shapes", shapes}});
    return;
  }
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    if (i > 0) context.out << '\n';
    PrintShape(context, shapes_[i]);
  }
}

}  // namespace kernd::cli
