// The emulator itself: instructions by the layouts that the PTX ISA documents, and what it refuses.
#include "kernels/emulator/emulator.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/float16.h"
#include "kernels/emulator/guarded_memory.h"
#include "kernels/emulator/warp_ops.h"
#include "kernels/reference/convert.h"

namespace kernd::emulator {
namespace {

void RunWarps(unsigned warps, std::size_t shared_bytes, const std::function<void()>& thread) {
  Run("test", {.x = 1}, {.x = 32 * warps}, shared_bytes, thread);
}

DataType TypeOf(Half half) {
  return half == Half::kF16 ? DataType::kF16 : DataType::kBF16;
}

TEST(Float16, EveryValueAndEveryRounding) {
  for (const Half half : {Half::kF16, Half::kBF16}) {
    const DataType type = TypeOf(half);
    for (unsigned bits = 0; bits < 65536; ++bits) {
      const auto element = static_cast<std::uint16_t>(bits);
      const float x = half == Half::kF16 ? FromF16(element) : FromBF16(element);
      const double expected = reference::Load(type, &element, 0);
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(x)) << bits;
        continue;
      }
      ASSERT_EQ(x, expected) << bits;
      ASSERT_EQ(std::signbit(x), std::signbit(expected)) << bits;
      // Halfway to the next number, and a little beside.
      std::uint16_t next = static_cast<std::uint16_t>(bits + 1);
      const double above = reference::Load(type, &next, 0);
      if ((bits & 0x7fff) == 0x7fff || !std::isfinite(expected)) continue;
      const auto middle = static_cast<float>(std::isfinite(above) ? (expected + above) / 2 : expected * (1 + 0x1p-9));
      for (const float y : {x, middle, std::nextafterf(middle, 0), std::nextafterf(middle, 4 * middle)}) {
        std::uint16_t rounded = 0;
        reference::Store(type, y, &rounded, 0);
        ASSERT_EQ(half == Half::kF16 ? ToF16(y) : ToBF16(y), rounded) << bits << ": " << y;
      }
    }
  }
}

// Random matrices placed by the documented layout, one element at a time, give their product.
TEST(Emulator, MmaIsTheProduct) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const int depth : {16, 8}) {
    for (const Half half : {Half::kF16, Half::kBF16}) {
      if (depth == 8 && half == Half::kBF16) continue;
      std::vector<std::uint16_t> a(16 * depth), b(depth * 8);
      std::vector<float> c(16 * 8), d(16 * 8);
      const auto draw = [&](std::uint16_t& x) { reference::Store(TypeOf(half), normal(random), &x, 0); };
      for (auto& x : a) draw(x);
      for (auto& x : b) draw(x);
      for (auto& x : c) x = static_cast<float>(normal(random));
      RunWarps(1, 0, [&] {
        const int lane = static_cast<int>(ThreadIndex().x), group = lane >> 2, in_group = lane % 4;
        std::uint32_t ra[4] = {}, rb[2] = {};
        for (int i = 0; i < depth / 2; ++i) {  // a0 .. a7 as "Matrix fragments for mma.m16n8k16" has them
          const bool upper = depth == 16 ? (i < 2 || (4 <= i && i < 6)) : i < 2;
          const int row = upper ? group : group + 8, col = in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
          ra[i / 2] |= static_cast<std::uint32_t>(a[row * depth + col]) << (16 * (i & 1));
        }
        for (int i = 0; i < depth / 4; ++i) {
          const int row = in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), col = group;
          rb[i / 2] |= static_cast<std::uint32_t>(b[row * 8 + col]) << (16 * (i & 1));
        }
        float rc[4];
        const auto place = [&](int i) { return (i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1); };
        for (int i = 0; i < 4; ++i) rc[i] = c[place(i)];
        if (depth == 16) {
          Mma16x8x16(half, rc, ra, rb[0], rb[1]);
        } else {
          Mma16x8x8(rc, ra[0], ra[1], rb[0]);
        }
        for (int i = 0; i < 4; ++i) d[place(i)] = rc[i];
      });
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
          double sum = c[i * 8 + j];
          for (int k = 0; k < depth; ++k) {
            sum += reference::Load(TypeOf(half), a.data(), i * depth + k) *
                   reference::Load(TypeOf(half), b.data(), k * 8 + j);
          }
          EXPECT_NEAR(d[i * 8 + j], sum, 1e-6 * std::abs(sum) + 1e-7) << i << ", " << j;
        }
      }
    }
  }
}

// Matrix m holds 100 m + 10 row + column.
TEST(Emulator, LdmatrixGivesRowsAndColumns) {
  for (const int matrices : {1, 2, 4}) {
    for (const bool transposed : {false, true}) {
      RunWarps(1, 4 * 128, [&] {
        const unsigned lane = ThreadIndex().x;
        if (lane == 0) {
          auto* const rows = reinterpret_cast<std::uint16_t*>(SharedMemory());
          for (int m = 0; m < 4; ++m) {
            for (int i = 0; i < 64; ++i) rows[64 * m + i] = static_cast<std::uint16_t>(100 * m + 10 * (i / 8) + i % 8);
          }
        }
        WarpBarrier();
        std::uint32_t r[4] = {};
        LoadMatrices(r, matrices, transposed, 16 * (lane % (8 * static_cast<unsigned>(matrices))));
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned m = 0; m < static_cast<unsigned>(matrices); ++m) {
          const unsigned first = transposed ? 10 * (2 * t) + g : 10 * g + 2 * t;
          EXPECT_EQ(r[m], (100 * m + first) | (100 * m + first + (transposed ? 10 : 1)) << 16) << lane;
        }
      });
    }
  }
}

TEST(Emulator, CountsConflictsOfLdmatrix) {
  for (const unsigned pitch : {16u, 32u, 64u, 128u, 144u}) {
    ResetCounters();
    RunWarps(1, 8 * 144, [&] {
      std::uint32_t r[1];
      LoadMatrices(r, 1, false, ThreadIndex().x % 8 * pitch);
    });
    EXPECT_EQ(Counts().ldmatrix, 1u);
    EXPECT_EQ(Counts().ldmatrix_conflicts, pitch == 144 ? 0 : pitch / 16 - 1) << pitch;
  }
}

TEST(Emulator, CopiesArriveAtTheirWaitAndNoSooner) {
  alignas(16) std::uint32_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  RunWarps(1, 64, [&] {
    if (ThreadIndex().x != 0) return;
    const auto word = [](int i) { return reinterpret_cast<const std::uint32_t*>(SharedMemory())[i]; };
    EXPECT_EQ(word(0), 0xffffffffu);  // shared memory starts as NaN
    CopyAsync(0, from, true);
    CommitCopies();
    CopyAsync(16, from + 4, true);
    CopyAsync(32, nullptr, false);
    CommitCopies();
    EXPECT_EQ(word(0), 0xffffffffu);
    WaitCopies(1);
    EXPECT_EQ(word(0), 1u);
    EXPECT_EQ(word(4), 0xffffffffu);
    WaitCopies(0);
    EXPECT_EQ(word(5), 6u);
    EXPECT_EQ(word(8), 0u);
  });
}

TEST(Emulator, BarriersOrderAndCollectivesGather) {
  for (const Order order : {Order::kAscending, Order::kDescending, Order::kRandom}) {
    SetOrder(order, 3);
    std::vector<unsigned> seen(128), sums(128);
    RunWarps(4, 128 * 4, [&] {
      auto* const words = reinterpret_cast<unsigned*>(SharedMemory());
      const unsigned thread = ThreadIndex().x;
      words[thread] = thread;
      EXPECT_EQ(BarrierOr(thread == 77), true);
      EXPECT_EQ(BarrierOr(false), false);
      seen[thread] = words[(thread + 64) % 128];
      sums[thread] = ShuffleXor(thread, 5) + 1000 * ShuffleFrom(thread, 9);
      EXPECT_EQ(WarpAny(thread == 40), thread / 32 == 1);
    });
    for (unsigned i = 0; i < 128; ++i) {
      EXPECT_EQ(seen[i], (i + 64) % 128);
      EXPECT_EQ(sums[i], (i ^ 5) + 1000 * (i / 32 * 32 + 9));
    }
  }
  SetOrder(Order::kVaried);
}

using EmulatorDeathTest = ::testing::Test;

TEST(EmulatorDeathTest, RefusesWhatADeviceMayForgive) {
  alignas(16) std::uint32_t from[8] = {};
  const auto lane = [] { return ThreadIndex().x % 32; };
  EXPECT_DEATH(RunWarps(1, 0, [&] { lane() == 3 ? WarpBarrier() : static_cast<void>(WarpAny(true)); }),
               "thread 3: is at __syncwarp and other lanes at __any_sync");
  EXPECT_DEATH(RunWarps(1, 0,
                        [&] {
                          if (lane() != 3) WarpBarrier();
                        }),
               "left while __syncwarp waits|nobody can go on");
  EXPECT_DEATH(RunWarps(2, 0, [&] { ThreadIndex().x < 32 ? Barrier() : static_cast<void>(BarrierOr(true)); }),
               "__syncthreads");
  EXPECT_DEATH(emulator::Run("no blocks", {.x = 0}, {.x = 32}, 0, [] {}), "no blocks: launched with .* 0 blocks");
  EXPECT_DEATH(emulator::Run("no threads", {.x = 1}, {.x = 0}, 0, [] {}), "no threads: launched with 0 x");
  EXPECT_DEATH(RunWarps(1, 64, [&] { CopyAsync(64, from, true); }), "shared memory has 64 bytes");
  EXPECT_DEATH(RunWarps(1, 64, [&] { CopyAsync(8, from, true); }), "not a multiple of 16");
  EXPECT_DEATH(RunWarps(1, 64, [&] { CopyAsync(0, reinterpret_cast<const char*>(from) + 2, true); }),
               "not a multiple of 16");
  EXPECT_DEATH(RunWarps(1, 64, [&] { CopyAsync(0, from, true); }), "copies that were not committed");
  const auto read = [](std::uint32_t place) {
    std::uint32_t r[1];
    LoadMatrices(r, 1, false, place);
  };
  EXPECT_DEATH(RunWarps(1, 64,
                        [&] {
                          if (lane() == 0) CopyAsync(0, from, true);
                          CommitCopies();
                          read(0);
                        }),
               "a copy is still to fill");
  // Another warp's copies are seen only after a barrier, and what it still reads is not overwritten.
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    SetOrder(order);
    EXPECT_DEATH(RunWarps(2, 64,
                          [&] {
                            if (ThreadIndex().x == 0) CopyAsync(0, from, true);
                            CommitCopies();
                            WaitCopies(0);
                            if (ThreadIndex().x >= 32) read(0);
                          }),
                 "since the last barrier");
  }
  SetOrder(Order::kVaried);
}

TEST(EmulatorDeathTest, GuardPagesEndTheProcessByName) {
  const GuardedMemory memory(48);
  const auto* const bytes = static_cast<const volatile char*>(memory.data());
  EXPECT_DEATH(RunWarps(1, 0, [&] { static_cast<void>(bytes[48]); }), "test block 0 thread 0: touched");
  EXPECT_DEATH(RunWarps(1, 0, [&] { static_cast<void>(bytes[-8192]); }), "touched");
  EXPECT_TRUE(memory.GuardsIntact());
  static_cast<char*>(memory.data())[-1] = 0;
  EXPECT_FALSE(memory.GuardsIntact());
}

}  // namespace
}  // namespace kernd::emulator
