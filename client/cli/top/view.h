// Snapshots as lines of text that fit a screen.
#pragma once

#include <string>
#include <vector>

#include "client/cli/top/snapshot.h"

namespace kernd::cli::top {

struct ViewOptions {
  int width = 80;   // columns; nothing is wider
  int height = 24;  // lines; 0: as many as there is to say
  bool colors = false;
  std::string address;
  std::string note;  // at the right of the first line: "paused", why there is no answer
};

// At most `height` lines, without line ends. Where not all fits, the busiest methods and kernels and the newest errors
// are shown, each part at least in a line or two.
std::vector<std::string> View(const Snapshot& now, const Rates& rates, const ViewOptions& options);

// "850 us", "1.23 ms", "45.6 s".
std::string SecondsText(double seconds);

}  // namespace kernd::cli::top
