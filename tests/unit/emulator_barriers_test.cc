// The emulator's mbarriers, clusters and named barriers, and what of their misuse it refuses. Each check has a small
// kernel that is wrong in just that way.
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/barriers.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/warp_ops.h"
#include "tests/unit/emulator_hopper.h"

namespace kernd::emulator {
namespace {

// A ring of two buffers between one warp that fills and two that empty, over many phases.
TEST_F(EmulatorHopper, PhasesTakeTurns) {
  InEveryOrder([] {
    constexpr unsigned kRounds = 9;
    std::vector<unsigned> sums(96);
    RunWarps(3, 1024, [&] {
      const auto full = [](unsigned i) { return 256 + 8 * i; };
      const auto empty = [](unsigned i) { return 512 + 8 * i; };
      if (Thread() == 0) {
        for (unsigned i = 0; i < 2; ++i) {
          InitFenced(full(i), 1);
          InitFenced(empty(i), 2);
        }
      }
      Barrier();
      for (unsigned round = 0; round < kRounds; ++round) {
        const unsigned i = round % 2, parity = round / 2 % 2;
        if (Warp() == 0) {
          if (Thread() != 0) return;
          MbarrierWait(empty(i), parity ^ 1);
          std::memset(WriteShared(16 * i, 16, "test"), static_cast<int>(round + 1), 16);
          MbarrierArrive(full(i));
        } else {
          MbarrierWait(full(i), parity);
          sums[Thread()] = 2 * sums[Thread()] + static_cast<unsigned>(ReadShared(16 * i, 16, "test")[0]);
          WarpBarrier();
          if (Thread() % 32 == 0) MbarrierArrive(empty(i));
        }
      }
    });
    unsigned expected = 0;
    for (unsigned round = 0; round < kRounds; ++round) expected = 2 * expected + round + 1;
    for (unsigned thread = 32; thread < 96; ++thread) EXPECT_EQ(sums[thread], expected) << thread;
  });
}

TEST_F(EmulatorHopperDeathTest, ClusterMisuse) {
  SetOrder(Order::kAscending);
  const auto run = [](const std::function<void()>& thread) {
    emulator::Run("test", {.x = 2}, {.x = 32}, 1024, thread, 2);
  };
  const auto init = [] {
    if (Thread() == 0) InitFenced(SharedOffset(SharedMemory()), 1);
    ClusterSync();
  };
  EXPECT_DEATH(run([&] {
                 init();
                 if (ClusterRank() == 1) return;
                 ClusterSync();
                 MbarrierArriveAt(0, 1);
               }),
               "block 1 of the cluster, which has left");
  EXPECT_DEATH(run([&] {
                 if (Thread() == 0) InitFenced(SharedOffset(SharedMemory()), 1);
                 if (ClusterRank() == 1 && Thread() == 0) MbarrierArriveAt(SharedOffset(SharedMemory()), 0);
               }),
               "where there is no mbarrier");
  EXPECT_DEATH(run([&] {
                 init();
                 if (ClusterRank() == 1) ReadShared(0, 16, "a load");
               }),
               "a load at .*shared memory has 1024 bytes");
  EXPECT_DEATH(run([&] {
                 init();
                 MbarrierArriveAt(SharedOffset(SharedMemory()), 2);
               }),
               "block 2 of a cluster of 2");
}

TEST_F(EmulatorHopper, NamedBarriersAndRegistersAndElection) {
  InEveryOrder([] {
    std::vector<int> elected(12);
    RunWarps(12, 64, [&] {
      SetMaxRegisters(Warp() < 4 ? 24 : 232, Warp() >= 4);
      if (ElectOne()) ++elected[Warp()];
      if (Warp() == 1) {
        std::memset(WriteShared(0, 16, "test"), 5, 16);
        NamedArrive(3, 96);
      } else if (Warp() == 2 || Warp() == 6) {
        NamedSync(3, 96);
        EXPECT_EQ(ReadShared(0, 16, "test")[3], std::byte{5});
      }
    });
    for (const int count : elected) EXPECT_EQ(count, 1);
  });
}

TEST_F(EmulatorHopperDeathTest, MbarrierMisuse) {
  SetOrder(Order::kAscending);
  EXPECT_DEATH(RunWarps(1, 64, [] { MbarrierArrive(0); }), "where there is no mbarrier");
  EXPECT_DEATH(RunWarps(1, 64, [] { MbarrierInit(4, 1); }), "mbarrier.init at 4");
  EXPECT_DEATH(RunWarps(1, 64,
                        [] {
                          if (Thread() == 0) MbarrierInit(0, 1);
                          if (Thread() == 0) MbarrierInit(0, 1);
                        }),
               "where there is one");
  InEveryOrder([] {
    EXPECT_DEATH(RunWarps(2, 64,
                          [] {
                            if (Thread() == 0) MbarrierInit(0, 1);
                            if (Thread() == 32) MbarrierArrive(0);
                          }),
                 "which warp 0 initialised since the last barrier|where there is no mbarrier");
  });
  SetOrder(Order::kAscending);
  // Bytes keep the phase open, and its arrivals are spent.
  EXPECT_DEATH(RunWarps(1, 64,
                        [] {
                          if (Thread() != 0) return;
                          MbarrierInit(0, 1);
                          MbarrierArriveExpect(0, 16);
                          MbarrierArrive(0);
                        }),
               "where the phase has had its 1 arrivals");
  EXPECT_DEATH(RunWarps(1, 64,
                        [] {
                          if (Thread() != 0) return;
                          MbarrierInit(8, 2);
                          MbarrierArrive(8);
                          MbarrierWait(8, 0);
                        }),
               "nobody can go on.*thread 0 is at mbarrier.try_wait of 8.*waits for 1 arrivals and 0 bytes");
  // Two phases on, the parity is the old one again: whoever slept through it waits for ever.
  EXPECT_DEATH(RunWarps(2, 64,
                        [] {
                          if (Thread() == 0) MbarrierInit(0, 1);
                          Barrier();
                          if (Warp() == 0 && Thread() == 0) MbarrierArrive(0);
                          if (Warp() == 0 && Thread() == 0) MbarrierArrive(0);
                          if (Warp() == 1) MbarrierWait(0, 0);
                        }),
               "nobody can go on");
}

TEST_F(EmulatorHopperDeathTest, NamedBarrierAndRegisterMisuse) {
  SetOrder(Order::kAscending);
  EXPECT_DEATH(RunWarps(2, 0, [] { NamedSync(0, 64); }), "1 to 15");
  EXPECT_DEATH(RunWarps(2, 0, [] { NamedSync(2, 48); }), "of 48 threads");
  EXPECT_DEATH(RunWarps(3, 0, [] { NamedSync(2, Warp() == 0 ? 64 : 96); }), "others said");
  EXPECT_DEATH(RunWarps(2, 0,
                        [] {
                          if (Warp() == 0) NamedSync(2, 64);
                        }),
               "nobody can go on.*bar.sync of 2");
  EXPECT_DEATH(RunWarps(2, 0,
                        [] {
                          if (Warp() == 0) NamedArrive(2, 64);
                          if (Warp() == 0) NamedArrive(2, 64);
                        }),
               "again before the others");
  EXPECT_DEATH(RunWarps(1, 0, [] { NamedSync(Thread() < 5 ? 2 : 3, 32); }), "lanes disagree");
  EXPECT_DEATH(RunWarps(12, 0, [] { SetMaxRegisters(25, false); }), "a multiple of 8");
  EXPECT_DEATH(RunWarps(12, 0, [] { SetMaxRegisters(176, false); }), "from 168 to 176");
  EXPECT_DEATH(RunWarps(12, 0, [] { SetMaxRegisters(160, true); }), "from 168 to 160");
  EXPECT_DEATH(RunWarps(12, 0,
                        [] {  // 4 x 24 + 8 x 256 is more than 12 x 168
                          if (Warp() < 4) {
                            SetMaxRegisters(24, false);
                          } else {
                            SetMaxRegisters(256, true);
                          }
                        }),
               "nobody can go on.*setmaxnreg of 256");
}

}  // namespace
}  // namespace kernd::emulator
