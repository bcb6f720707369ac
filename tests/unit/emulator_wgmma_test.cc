// The emulator's wgmma, by the layouts that the PTX ISA documents, and what of its misuse it refuses. Each check has a
// small kernel that is wrong in just that way.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/barriers.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/warp_ops.h"
#include "kernels/emulator/wgmma.h"
#include "kernels/reference/convert.h"
#include "tests/unit/emulator_hopper.h"

namespace kernd::emulator {
namespace {

// Matrix m holds 100 m + 10 row + column.
TEST_F(EmulatorHopper, StmatrixPutsRowsWhereTheyBelong) {
  ResetCounters();
  RunWarps(1, 512, [&] {
    const unsigned lane = Thread(), g = lane / 4, t = lane % 4;
    std::uint32_t r[4];
    for (unsigned m = 0; m < 4; ++m) r[m] = (100 * m + 10 * g + 2 * t) | (100 * m + 10 * g + 2 * t + 1) << 16;
    StoreMatrices(r, 16 * lane);
    WarpBarrier();
    const auto* const rows = reinterpret_cast<const std::uint16_t*>(SharedMemory());
    for (unsigned i = 0; i < 256; ++i) EXPECT_EQ(rows[i], 100 * (i / 64) + 10 * (i / 8 % 8) + i % 8) << i;
  });
  EXPECT_EQ(Counts().ldmatrix_conflicts, 0u);
}

// --- wgmma: operands are put into shared memory, or registers, element by element as documented.

struct Product {
  Half half = Half::kF16;
  unsigned n = 64, span = 128;  // span: of the swizzle; 16: none
  bool a_registers = false, a_mn_major = false, b_mn_major = false, accumulate = false;
};

std::uint64_t DescriptorOf(std::uint32_t address, std::uint32_t leading, std::uint32_t stride, unsigned span) {
  const std::uint64_t mode = span == 128 ? 1 : span == 64 ? 2 : span == 32 ? 3 : 0;
  return std::uint64_t{address >> 4} | std::uint64_t{leading >> 4} << 16 | std::uint64_t{stride >> 4} << 32 |
         mode << 62;
}

constexpr std::uint32_t kA = 0, kB = 16384, kShared = 65536;

// Places of the canonical layouts, in elements, before the swizzle; rows are M or N, of a tile of 16 k.
std::uint32_t KMajorPlace(unsigned row, unsigned k, unsigned span, unsigned rows) {
  const unsigned width = span / 2;
  if (width < 16) return k / 8 * rows * 8 + row * 8 + k % 8;  // core matrices of 8 rows by 16 bytes, k outermost
  return row * width + k;
}
std::uint32_t MnMajorPlace(unsigned row, unsigned k, unsigned span, unsigned rows) {
  const unsigned width = span / 2;
  static_cast<void>(rows);
  return row / width * (width * 16) + k * width + row % width;  // slabs of `width` columns and 16 rows of k
}

void PlaceInShared(std::uint32_t base, std::uint32_t place, unsigned span, std::uint16_t bits) {
  const std::uint32_t chunk = (base + 2 * place) / 16, swap = span == 16 ? 0 : chunk / 8 % (span / 16);
  std::memcpy(SharedMemory() + (chunk ^ swap) * 16 + place % 8 * 2, &bits, 2);
}

void ExpectProduct(const Product& p) {
  std::mt19937_64 random(p.n + p.span);
  std::normal_distribution<double> normal;
  const DataType type = p.half == Half::kF16 ? DataType::kF16 : DataType::kBF16;
  std::vector<std::uint16_t> a(64 * 16), b(16 * p.n);  // [m, k], [k, n]
  for (auto* const matrix : {&a, &b}) {
    for (std::uint16_t& x : *matrix) reference::Store(type, normal(random), &x, 0);
  }
  std::vector<float> d(64 * p.n);
  RunWarps(4, kShared, [&] {
    if (Thread() == 0) {
      for (unsigned k = 0; k < 16; ++k) {
        const auto place = [&](bool mn_major, unsigned row, unsigned rows) {
          return mn_major ? MnMajorPlace(row, k, p.span, rows) : KMajorPlace(row, k, p.span, rows);
        };
        for (unsigned i = 0; i < 64; ++i) PlaceInShared(kA, place(p.a_mn_major, i, 64), p.span, a[i * 16 + k]);
        for (unsigned j = 0; j < p.n; ++j) PlaceInShared(kB, place(p.b_mn_major, j, p.n), p.span, b[k * p.n + j]);
      }
    }
    Barrier();
    const unsigned lane = Thread() % 32, g = lane / 4, t = lane % 4;
    std::uint32_t ra[4] = {};
    for (unsigned i = 0; i < 8; ++i) {  // a0 .. a7 as "Register Fragments" of wgmma .m64nNk16 has them
      const unsigned row = 16 * Warp() + g + (i % 4 >= 2 ? 8 : 0), col = 2 * t + i % 2 + (i >= 4 ? 8 : 0);
      ra[i / 2] |= static_cast<std::uint32_t>(a[row * 16 + col]) << (16 * (i % 2));
    }
    std::vector<float> rd(p.n / 2, 1.0f);
    const unsigned span = p.span, k_stride = span == 16 ? 128 : 8 * span;
    const auto describe = [&](std::uint32_t base, bool mn_major, unsigned rows) {
      if (!mn_major) return DescriptorOf(base, span == 16 ? rows * 16 : 16, k_stride, span);
      return span == 16 ? DescriptorOf(base, 8 * 16, 16 * 16, span) : DescriptorOf(base, 16 * span, 8 * span, span);
    };
    const std::uint64_t da = describe(kA, p.a_mn_major, 64), db = describe(kB, p.b_mn_major, p.n);
    WgmmaFence();
    Wgmma(p.half, p.n, rd.data(), p.a_registers ? ra : nullptr, da, db, p.a_mn_major, p.b_mn_major, p.accumulate);
    EXPECT_TRUE(std::isnan(rd[0])) << "an accumulator is in flight";
    Wgmma(p.half, p.n, rd.data(), p.a_registers ? ra : nullptr, da, db, p.a_mn_major, p.b_mn_major, true);
    WgmmaCommit();
    WgmmaWait(0);
    for (unsigned i = 0; i < p.n / 2; ++i) {
      const unsigned row = 16 * Warp() + g + (i % 4 >= 2 ? 8 : 0), col = 8 * (i / 4) + 2 * t + i % 2;
      d[row * p.n + col] = rd[i];
    }
  });
  for (unsigned i = 0; i < 64; ++i) {
    for (unsigned j = 0; j < p.n; ++j) {
      double sum = 0;
      for (unsigned k = 0; k < 16; ++k) {
        sum += reference::Load(type, a.data(), i * 16 + k) * reference::Load(type, b.data(), k * p.n + j);
      }
      const double expected = 2 * sum + (p.accumulate ? 1 : 0);
      ASSERT_NEAR(d[i * p.n + j], expected, 1e-5) << i << ", " << j;
    }
  }
}

TEST_F(EmulatorHopper, WgmmaIsTheProduct) {
  for (const Half half : {Half::kF16, Half::kBF16}) {
    for (const unsigned span : {16u, 32u, 64u, 128u}) {
      for (const unsigned n : {64u, 128u, 192u}) {
        for (const int a : {0, 1, 2}) {
          for (const bool b_mn_major : {false, true}) {
            const bool registers = a == 1, mn_major = a == 2;
            SCOPED_TRACE(std::to_string(span) + " bytes, " + std::to_string(n) + " columns" +
                         (registers  ? ", A in registers"
                          : mn_major ? ", A MN-major"
                                     : "") +
                         (b_mn_major ? ", B MN-major" : ""));
            ExpectProduct({half, n, span, registers, mn_major, b_mn_major, span == 64});
          }
        }
      }
    }
  }
  ExpectProduct({.n = 8});
  ExpectProduct({.n = 96, .b_mn_major = true});  // a slab and a half
}

// --- Misuse

// What a block of four warps does after one thread has put zeros into A and B, which all may read.
void RunWgmma(const std::function<void(float* d, std::uint32_t* a)>& body, unsigned warps = 4) {
  RunWarps(warps, kShared, [&] {
    if (Thread() == 0) std::memset(WriteShared(0, kShared, "test"), 0, kShared);
    if (Thread() == 0) FenceProxyAsync();
    Barrier();
    float d[32] = {};
    std::uint32_t a[4] = {};
    body(d, a);
  });
}

constexpr std::uint64_t KMajorAt(std::uint32_t address) {
  return std::uint64_t{address >> 4} | std::uint64_t{1} << 16 | std::uint64_t{64} << 32 | std::uint64_t{1} << 62;
}
void Multiply(float* d, std::uint32_t* a) {
  Wgmma(Half::kF16, 64, d, a, KMajorAt(kA), KMajorAt(kB), false, false, true);
}

TEST_F(EmulatorHopperDeathTest, WgmmaMisuse) {
  SetOrder(Order::kAscending);
  RunWgmma([](float* d, std::uint32_t* a) {  // none of it
    WgmmaFence();
    Multiply(d, a);
    WgmmaCommit();
    WgmmaWait(0);
    EXPECT_EQ(d[0] + static_cast<float>(a[0]), 0);
  });
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) { Multiply(d, a); }), "without wgmma.fence");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaCommit();
                 WgmmaWait(0);
                 d[0] += 1;
                 Multiply(d, a);
               }),
               "without wgmma.fence");
  // Its registers are not to be touched before the wait.
  const auto touched = [](void (*touch)(float* d, std::uint32_t* a)) {
    RunWgmma([touch](float* d, std::uint32_t* a) {
      WgmmaFence();
      Multiply(d, a);
      WgmmaCommit();
      touch(d, a);
      WgmmaWait(0);
    });
  };
  touched([](float*, std::uint32_t*) {});
  EXPECT_DEATH(touched([](float* d, std::uint32_t*) { d[3] = 0; }), "registers of wgmma were written");
  EXPECT_DEATH(touched([](float*, std::uint32_t* a) { a[1] = 0; }), "registers of wgmma were written");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaCommit();
               }),
               "left with wgmma in flight");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaWait(0);  // of no group
               }),
               "left with wgmma in flight");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Wgmma(Half::kF16, 64, d, a, 0, KMajorAt(Warp() == 2 ? kB + 1024 : kB), false, false, true);
                 WgmmaCommit();
                 WgmmaWait(0);
               }),
               "warps of the warpgroup differ");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 if (Warp() == 3) return;
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaCommit();
                 WgmmaWait(0);
               }),
               "nobody can go on.*wgmma.wait_group");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Wgmma(Half::kF16, 64, d, a, 0, KMajorAt(kB) | std::uint64_t{1} << 49, false, false, true);
               }),
               "base offset");
  // Shared memory under an instruction in flight is not to be written.
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaCommit();
                 WriteShared(kB + 1024, 16, "a store");
               }),
               "a store at 17408, which wgmma is still to read");
}

TEST_F(EmulatorHopperDeathTest, TheAsyncProxyWantsAFence) {
  const auto run = [](bool fence, bool fence_of_all) {
    RunWgmma([=](float* d, std::uint32_t* a) {
      std::memset(WriteShared(kB + 16 * Thread(), 16, "test"), 0, 16);
      if (fence && (fence_of_all || Thread() % 32 != 7)) FenceProxyAsync();
      Barrier();
      WgmmaFence();
      Multiply(d, a);
      WgmmaCommit();
      WgmmaWait(0);
    });
  };
  InEveryOrder([&] {
    run(true, true);
    EXPECT_DEATH(run(false, false), "with no fence.proxy.async since");
    EXPECT_DEATH(run(true, false), "with no fence.proxy.async since");
  });
  // A fence before the write, or after the barrier, is none.
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 FenceProxyAsync();
                 if (Warp() == 1) std::memset(WriteShared(kB, 16, "test", ~0u), 0, 16);
                 Barrier();
                 FenceProxyAsync();
                 WgmmaFence();
                 Multiply(d, a);
               }),
               "with no fence.proxy.async since");
}

}  // namespace
}  // namespace kernd::emulator
