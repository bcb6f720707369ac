// What --debug-checks found in one tensor of a call.
#pragma once

#include <cstdint>
#include <string>

namespace kernd::core {

struct Finding {
  std::string tensor;             // "q", "o"; "steps[2].q" in a program of several steps
  std::int64_t nan = 0, inf = 0;  // elements
  bool overrun = false;           // something wrote past it, before or behind

  bool operator==(const Finding&) const = default;
};

}  // namespace kernd::core
