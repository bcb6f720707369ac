// Latency over load as a picture: SVG, light or dark as the reader's screen is.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kernd::cli {

inline constexpr std::array<double, 4> kQuantiles = {0.5, 0.9, 0.99, 0.999};
inline constexpr std::array<const char*, 4> kQuantileNames = {"p50", "p90", "p99", "p99.9"};

struct PlotPoint {
  double x = 0;
  std::string name;                                         // shown where the pointer rests on it
  std::array<std::optional<double>, kQuantiles.size()> us;  // by kQuantiles
  bool failed = false;                                      // drawn as a ring: calls failed, or were cut off
};

struct PlotSpec {
  std::string title, subtitle, x_label;  // any text
  std::vector<PlotPoint> points;
  std::optional<double> limit_us;  // a line across
  std::string limit_label;
};

// y is logarithmic; x also where the largest is 20 times the smallest and more. Points without a positive time or load
// are left out.
std::string PlotSvg(const PlotSpec& spec);

}  // namespace kernd::cli
