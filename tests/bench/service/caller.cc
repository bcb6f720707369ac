#include "tests/bench/service/caller.h"

#include <array>

namespace kernd::bench {

std::span<const Mode> Modes() {
  static constexpr std::array kModes = {
      Mode{"stock", "generated stub, one channel", MakeStock},
      Mode{"stock-resident", "generated stub; A stays at the daemon, C [rows, 1] is added", MakeStockResident},
      Mode{"kernd-inline", "kernd::client, tensors in the messages", MakeKerndInline},
      Mode{"kernd-striped", "kernd::client, tensors over several connections", MakeKerndStriped},
      Mode{"kernd-auto", "kernd::client, its own choice", MakeKerndAuto},
      Mode{"kernd-resident", "kernd::client; A stays at the daemon, C [rows, 1] is added", MakeKerndResident},
      Mode{"kernd-shared", "kernd::client; A and D lie in memory that the daemon sees as well", MakeKerndShared},
      Mode{"socket", "one plain socket", MakeSocket},
      Mode{"socket8", "eight plain sockets", MakeSocket8},
      Mode{"memcpy", "a copy of operand and result in this process; no target", MakeMemcpy},
  };
  return kModes;
}

}  // namespace kernd::bench
