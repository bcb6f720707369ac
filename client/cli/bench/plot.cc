#include "client/cli/bench/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/text.h"

namespace kernd::cli {
namespace {

constexpr double kWidth = 860, kHeight = 500;
constexpr double kLeft = 76, kRight = 800, kTop = 84, kBottom = 428;  // of the area inside the axes
constexpr double kLabelHeight = 17;
constexpr double kLogFromRatio = 20;

// rsvg and others know no custom properties, so every colour is written out, twice. Quantiles are one hue, stronger as
// they get rarer; nothing is told by colour alone: lines are named at their ends.
constexpr char kStyle[] = R"(
  text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #52606d; }
  .back { fill: #ffffff; } .title { font-size: 18px; font-weight: 600; fill: #1f2933; } .end { font-weight: 600; }
  .grid { stroke: #e4e7eb; stroke-width: 1; } .minor { stroke: #f3f4f6; stroke-width: 1; }
  .axis { stroke: #9aa5b1; stroke-width: 1.25; } .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; }
  .limit { stroke: #c2410c; stroke-width: 1.25; stroke-dasharray: 6 4; } .limit-text { fill: #c2410c; }
  .q0 { stroke: #7fb2d9; } .q1 { stroke: #3d8bc4; } .q2 { stroke: #1d5f9e; } .q3 { stroke: #0b3561; }
  .d0 { fill: #7fb2d9; } .d1 { fill: #3d8bc4; } .d2 { fill: #1d5f9e; } .d3 { fill: #0b3561; }
  .ring { fill: #ffffff; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #aab6c2; } .back { fill: #12181f; } .title { fill: #eef2f6; }
    .grid { stroke: #2a343f; } .minor { stroke: #1a222b; } .axis { stroke: #5b6a79; }
    .limit { stroke: #fb923c; } .limit-text { fill: #fb923c; }
    .q0 { stroke: #3b6f9c; } .q1 { stroke: #4f9bd6; } .q2 { stroke: #8cc4ee; } .q3 { stroke: #d3eafc; }
    .d0 { fill: #3b6f9c; } .d1 { fill: #4f9bd6; } .d2 { fill: #8cc4ee; } .d3 { fill: #d3eafc; }
    .ring { fill: #12181f; }
  })";

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : Printable(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// "250", "2k", "1.5M"
std::string CountText(double value) {
  if (value >= 1e6) return absl::StrFormat("%.3gM", value / 1e6);
  if (value >= 1e3) return absl::StrFormat("%.3gk", value / 1e3);
  return absl::StrFormat("%.4g", value);
}

std::string TimeText(double us) {
  if (us >= 1e6) return absl::StrFormat("%.3g s", us / 1e6);
  if (us >= 1e3) return absl::StrFormat("%.3g ms", us / 1e3);
  return absl::StrFormat("%.3g µs", us);
}

// From values to pixels.
class Axis {
 public:
  Axis(double low, double high, double from, double to, bool log)
      : low_(log ? std::log10(low) : low), high_(log ? std::log10(high) : high), from_(from), to_(to), log_(log) {}

  double At(double value) const {
    return from_ + (to_ - from_) * ((log_ ? std::log10(value) : value) - low_) / (high_ - low_);
  }
  bool log() const { return log_; }

 private:
  double low_, high_, from_, to_;
  bool log_;
};

// The largest of 1, 2, 5 times a power of ten that is not above `value`, and the smallest not below it.
double RoundDown(double value) {
  const double power = std::pow(10, std::floor(std::log10(value) + 1e-9));
  const double lead = value / power + 1e-9;
  return power * (lead >= 5 ? 5 : lead >= 2 ? 2 : 1);
}
double RoundUp(double value) {
  const double down = RoundDown(value), lead = down / std::pow(10, std::floor(std::log10(down) + 1e-9));
  if (down >= value * (1 - 1e-9)) return down;
  return lead > 1.5 && lead < 3 ? down * 2.5 : down * 2;
}

struct Tick {
  double value;
  bool named;
};

// 1, 2, 5 in each decade; each has a name where there are three decades at most, else the decades alone.
std::vector<Tick> LogTicks(double low, double high) {
  std::vector<Tick> ticks;
  const bool few = high / low <= 1e3 * (1 + 1e-9);
  for (double power = std::pow(10, std::floor(std::log10(low) + 1e-9)); power <= high * (1 + 1e-9); power *= 10) {
    for (const double lead : {1.0, 2.0, 5.0}) {
      const double value = power * lead;
      if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) ticks.push_back({value, few || lead == 1});
    }
  }
  return ticks;
}

std::vector<Tick> LinearTicks(double high) {
  const double step = RoundUp(high / 6);
  std::vector<Tick> ticks;
  for (int i = 0; i * step <= high * (1 + 1e-9); ++i) ticks.push_back({i * step, true});
  return ticks;
}

bool IsDrawn(double x, const std::optional<double>& y) {
  return std::isfinite(x) && x > 0 && y && std::isfinite(*y) && *y > 0;
}

struct Range {
  double low = 0, high = 0;  // 0, 0: nothing
  void Add(double value) {
    low = low == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  }
};

class Picture {
 public:
  explicit Picture(const PlotSpec& spec) : spec_(spec) {
    for (const PlotPoint& point : spec.points) {
      for (const std::optional<double>& us : point.us) {
        if (!IsDrawn(point.x, us)) continue;
        x_range_.Add(point.x);
        y_range_.Add(*us);
      }
    }
    empty_ = x_range_.high == 0;
    if (empty_) x_range_ = y_range_ = {1, 10};
    if (spec.limit_us && *spec.limit_us > 0) y_range_.Add(*spec.limit_us);
  }

  std::string Draw() {
    const bool log_x = x_range_.high >= kLogFromRatio * x_range_.low;
    const double x_low = log_x ? RoundDown(x_range_.low) : 0;
    const double x_high = log_x ? RoundUp(x_range_.high) : x_range_.high * 1.04;
    const double y_low = RoundDown(y_range_.low * 0.97), y_high = RoundUp(y_range_.high * 1.03);
    const Axis x(x_low, x_high, kLeft, kRight, log_x), y(y_low, y_high, kBottom, kTop, true);
    Begin();
    Grid(x, log_x ? LogTicks(x_low, x_high) : LinearTicks(x_high), y, LogTicks(y_low, y_high));
    if (spec_.limit_us && *spec_.limit_us > 0) Limit(y.At(*spec_.limit_us));
    for (std::size_t q = 0; q < kQuantiles.size(); ++q) Series(q, x, y);
    EndLabels();
    if (empty_) Text(0.5 * (kLeft + kRight), 0.5 * (kTop + kBottom), "middle", "", "no call came back");
    return out_ + "</svg>\n";
  }

 private:
  void Begin() {
    absl::StrAppendFormat(&out_,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
                          "role=\"img\" aria-label=\"%s\">\n<style>%s\n</style>\n",
                          kWidth, kHeight, kWidth, kHeight, Escape(spec_.title), kStyle);
    absl::StrAppendFormat(&out_, "<rect class=\"back\" width=\"%g\" height=\"%g\"/>\n", kWidth, kHeight);
    Text(kLeft, 34, "start", "title", spec_.title);
    Text(kLeft, 57, "start", "", spec_.subtitle);
  }

  void Grid(const Axis& x, const std::vector<Tick>& x_ticks, const Axis& y, const std::vector<Tick>& y_ticks) {
    for (const Tick& tick : y_ticks) {
      const double at = y.At(tick.value);
      Line(kLeft, at, kRight, at, tick.named ? "grid" : "minor");
      if (tick.named) Text(kLeft - 10, at + 4.5, "end", "", TimeText(tick.value));
    }
    for (const Tick& tick : x_ticks) {
      const double at = x.At(tick.value);
      if (x.log()) Line(at, kTop, at, kBottom, tick.named ? "grid" : "minor");
      Line(at, kBottom, at, kBottom + 5, "axis");
      if (tick.named) Text(at, kBottom + 22, "middle", "", CountText(tick.value));
    }
    Line(kLeft, kBottom, kRight, kBottom, "axis");
    Text(0.5 * (kLeft + kRight), kBottom + 50, "middle", "", spec_.x_label);
  }

  void Limit(double at) {
    Line(kLeft, at, kRight, at, "limit");
    Text(kLeft + 8, at - 6, "start", "limit-text", spec_.limit_label);
  }

  void Series(std::size_t q, const Axis& x, const Axis& y) {
    std::string path, dots;
    double last = 0;
    for (const PlotPoint& point : spec_.points) {
      if (!IsDrawn(point.x, point.us[q])) continue;
      const double px = x.At(point.x), py = y.At(*point.us[q]);
      absl::StrAppendFormat(&path, "%s%.1f,%.1f", path.empty() ? "" : " ", px, py);
      absl::StrAppendFormat(&dots,
                            "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s: %s %s</title></circle>\n",
                            point.failed ? absl::StrCat("ring q", q) : absl::StrCat("d", q), px, py, Escape(point.name),
                            kQuantileNames[q], TimeText(*point.us[q]));
      last = py;
      end_x_ = std::max(end_x_, px);
    }
    if (path.empty()) return;
    absl::StrAppendFormat(&out_, "<polyline class=\"line q%d\" points=\"%s\"/>\n%s", q, path, dots);
    ends_.push_back({last, q});
  }

  // Names at the ends of the lines. Those that would meet become a stack around the middle of where they belong.
  void EndLabels() {
    struct Stack {
      double sum = 0, size = 0;
      double Bottom() const { return sum / size + (size - 1) / 2 * kLabelHeight; }
      double Top() const { return Bottom() - (size - 1) * kLabelHeight; }
    };
    std::sort(ends_.begin(), ends_.end(), [](const End& a, const End& b) { return a.y > b.y; });
    std::vector<Stack> stacks;
    for (const End& end : ends_) {
      stacks.push_back({end.y, 1});
      while (stacks.size() > 1 && stacks[stacks.size() - 2].Top() - stacks.back().Bottom() < kLabelHeight) {
        const Stack upper = stacks.back();
        stacks.pop_back();
        stacks.back() = {stacks.back().sum + upper.sum, stacks.back().size + upper.size};
      }
    }
    std::size_t next = 0;
    for (const Stack& stack : stacks) {
      for (int i = 0; i < static_cast<int>(stack.size); ++i, ++next) {
        const std::size_t q = ends_[next].q;
        Text(end_x_ + 12, stack.Bottom() - i * kLabelHeight + 4.5, "start", absl::StrCat("end d", q).c_str(),
             kQuantileNames[q]);
      }
    }
  }

  void Line(double x1, double y1, double x2, double y2, const char* style) {
    absl::StrAppendFormat(&out_, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", style, x1,
                          y1, x2, y2);
  }

  void Text(double x, double y, const char* anchor, const char* style, std::string_view text) {
    absl::StrAppendFormat(&out_, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y,
                          anchor, style, Escape(text));
  }

  struct End {
    double y;
    std::size_t q;
  };

  const PlotSpec& spec_;
  Range x_range_, y_range_;
  bool empty_ = false;
  double end_x_ = 0;
  std::vector<End> ends_;
  std::string out_;
};

}  // namespace

std::string PlotSvg(const PlotSpec& spec) {
  return Picture(spec).Draw();
}

}  // namespace kernd::cli
