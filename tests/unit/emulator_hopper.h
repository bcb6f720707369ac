// What the tests of the emulator's instructions of SM 9.0 share.
#pragma once

#include <cstdint>
#include <functional>

#include "gtest/gtest.h"
#include "kernels/emulator/barriers.h"
#include "kernels/emulator/emulator.h"

namespace kernd::emulator {

inline void RunWarps(unsigned warps, std::size_t shared_bytes, const std::function<void()>& thread) {
  Run("test", {.x = 1}, {.x = 32 * warps}, shared_bytes, thread);
}

inline unsigned Thread() {
  return ThreadIndex().x;
}
inline unsigned Warp() {
  return Thread() / 32;
}

inline constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kRandom};

class EmulatorHopper : public ::testing::Test {
 protected:
  void TearDown() override { SetOrder(Order::kVaried); }

  // In every order of warps, and with copies that arrive early and late.
  template <typename Function>
  void InEveryOrder(const Function& run) {
    for (const Order order : kOrders) {
      SCOPED_TRACE(static_cast<int>(order));
      SetOrder(order, 7);
      run();
    }
  }
};
using EmulatorHopperDeathTest = EmulatorHopper;

inline void InitFenced(std::uint32_t at, unsigned arrivals) {
  MbarrierInit(at, arrivals);
  FenceMbarrierInit();
}

}  // namespace kernd::emulator
