// The emulator's instructions of SM 9.0: by the layouts that the PTX ISA documents, and what of their misuse it
// refuses. Each check has a small kernel that is wrong in just that way.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/barriers.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/guarded_memory.h"
#include "kernels/emulator/tensor_copy.h"
#include "kernels/emulator/warp_ops.h"
#include "kernels/emulator/wgmma.h"
#include "kernels/reference/convert.h"

namespace kernd::emulator {
namespace {

void RunWarps(unsigned warps, std::size_t shared_bytes, const std::function<void()>& thread) {
  Run("test", {.x = 1}, {.x = 32 * warps}, shared_bytes, thread);
}

unsigned Thread() {
  return ThreadIndex().x;
}
unsigned Warp() {
  return Thread() / 32;
}

constexpr Order kOrders[] = {Order::kAscending, Order::kDescending, Order::kRandom};

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

// Elements of 16 bits that count up from 1, so that 0 is only what lies outside.
class Tensor {
 public:
  Tensor(std::vector<std::uint64_t> sizes, std::vector<std::uint64_t> strides)  // in elements, innermost first
      : sizes_(std::move(sizes)), strides_(std::move(strides)) {
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < sizes_.size(); ++i) last += (sizes_[i] - 1) * (i == 0 ? 1 : strides_[i - 1]);
    memory_ = GuardedMemory(static_cast<std::int64_t>(2 * (last + 1)));
    auto* const elements = static_cast<std::uint16_t*>(memory_.data());
    for (std::uint64_t i = 0; i <= last; ++i) elements[i] = static_cast<std::uint16_t>(i + 1);
  }

  CUresult Map(CUtensorMap& map, const std::vector<cuuint32_t>& box, CUtensorMapSwizzle swizzle, int offset = 0) const {
    std::vector<cuuint64_t> strides;
    for (const std::uint64_t stride : strides_) strides.push_back(2 * stride);
    const std::vector<cuuint32_t> steps(box.size(), 1);
    return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, static_cast<cuuint32_t>(box.size()),
                                  static_cast<char*>(memory_.data()) + offset, sizes_.data(), strides.data(),
                                  box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }

  std::uint16_t At(const std::vector<std::int64_t>& at) const {
    std::uint64_t place = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i] < 0 || static_cast<std::uint64_t>(at[i]) >= sizes_[i]) return 0;
      place += static_cast<std::uint64_t>(at[i]) * (i == 0 ? 1 : strides_[i - 1]);
    }
    return static_cast<std::uint16_t>(place + 1);
  }

 private:
  std::vector<std::uint64_t> sizes_, strides_;
  GuardedMemory memory_;
};

void InitFenced(std::uint32_t at, unsigned arrivals) {
  MbarrierInit(at, arrivals);
  FenceMbarrierInit();
}

TEST_F(EmulatorHopper, BoxesArriveSwizzledAndZeroOutside) {
  const Tensor tensor({72, 3, 10, 2}, {80, 240, 2400});
  for (const auto& [swizzle, span, width] : {std::tuple{CU_TENSOR_MAP_SWIZZLE_NONE, 0u, 24u},
                                             {CU_TENSOR_MAP_SWIZZLE_32B, 2u, 16u},
                                             {CU_TENSOR_MAP_SWIZZLE_64B, 4u, 32u},
                                             {CU_TENSOR_MAP_SWIZZLE_128B, 8u, 64u}}) {
    CUtensorMap map;
    ASSERT_EQ(tensor.Map(map, {width, 3, 8, 1}, swizzle), CUDA_SUCCESS);
    for (const std::vector<std::int32_t>& from : {std::vector{0, 0, 0, 1}, {64, 1, 5, 0}, {-8, -1, -3, 2}}) {
      InEveryOrder([&, s = span, w = width] {
        const std::uint32_t bytes = w * 3 * 8 * 2, barrier = 8192;
        RunWarps(2, barrier + 8, [&] {
          if (Thread() == 0) InitFenced(barrier, 1);
          Barrier();
          if (Thread() == 0) {
            MbarrierArriveExpect(barrier, bytes);
            TensorLoad(1024, map, 4, from.data(), barrier);
          }
          MbarrierWait(barrier, 0);
          if (Thread() != 40) return;
          for (std::uint32_t i = 0; i < bytes / 2; ++i) {
            const std::uint32_t x = i % w, y = i / w % 3, z = i / w / 3;
            // Chunks of 16 bytes are swapped about by the number of the 128 bytes in which they are.
            const std::uint32_t chunk = i / 8, row = chunk / 8;
            const std::uint32_t place = s == 0 ? i : (chunk ^ row % s) * 8 + i % 8;
            std::uint16_t got;
            std::memcpy(&got, ReadShared(1024 + place / 8 * 16, 16, "test") + place % 8 * 2, 2);
            ASSERT_EQ(got, tensor.At({from[0] + int{static_cast<int>(x)}, from[1] + static_cast<int>(y),
                                      from[2] + static_cast<int>(z), from[3]}))
                << x << ", " << y << ", " << z;
          }
        });
      });
    }
  }
}

TEST_F(EmulatorHopper, MapsAreRefusedAsTheDriverRefusesThem) {
  CUtensorMap map;
  const Tensor tensor({64, 16}, {64});
  EXPECT_EQ(tensor.Map(map, {64, 16}, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS);
  EXPECT_NE(tensor.Map(map, {64, 16}, CU_TENSOR_MAP_SWIZZLE_64B), CUDA_SUCCESS) << "a box wider than its swizzle";
  EXPECT_NE(tensor.Map(map, {64, 257}, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS) << "a box of more than 256";
  EXPECT_NE(tensor.Map(map, {64, 0}, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS) << "an empty box";
  EXPECT_NE(tensor.Map(map, {12, 16}, CU_TENSOR_MAP_SWIZZLE_NONE), CUDA_SUCCESS) << "half of 16 bytes";
  EXPECT_NE(tensor.Map(map, {64, 16}, CU_TENSOR_MAP_SWIZZLE_128B, 8), CUDA_SUCCESS) << "an address";
  EXPECT_NE(Tensor({64, 16}, {68}).Map(map, {64, 16}, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS) << "a stride";
  const cuuint64_t sizes[] = {64, 1}, far[] = {std::uint64_t{1} << 40};
  const cuuint32_t box[] = {64, 1}, steps[] = {1, 1};
  alignas(16) char memory[128];
  EXPECT_NE(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, memory, sizes, far, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS)
      << "a stride of 2^40 bytes";
}

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

// Each block of a cluster copies a half for both, again and again; a block's buffer is free when both have read theirs.
TEST_F(EmulatorHopper, ClustersShareCopies) {
  const Tensor tensor({64, 64, 1, 1}, {64, 4096, 4096});
  CUtensorMap map;
  ASSERT_EQ(tensor.Map(map, {64, 1, 1, 1}, CU_TENSOR_MAP_SWIZZLE_NONE), CUDA_SUCCESS);
  InEveryOrder([&] {
    constexpr std::uint32_t kRounds = 5, kFull = 512, kEmpty = 520;
    unsigned reads = 0;
    emulator::Run(
        "test", {.x = 4}, {.x = 64}, 1024,
        [&] {
          const unsigned rank = ClusterRank();
          EXPECT_EQ(rank, BlockIndex().x % 2);
          const std::uint32_t base = SharedOffset(SharedMemory()), full = base + kFull, empty = base + kEmpty;
          if (Thread() == 0) {
            InitFenced(full, 1);
            InitFenced(empty, 2);
          }
          ClusterSync();
          for (unsigned round = 0; round < kRounds; ++round) {
            if (Thread() == 0) {
              MbarrierWait(empty, round % 2 ^ 1);
              MbarrierArriveExpect(full, 256);
              const std::int32_t at[4] = {0, static_cast<std::int32_t>(8 * round + BlockIndex().x), 0, 0};
              TensorLoadToAll(base + 128 * rank, map, 4, at, full, 3);
            } else if (Warp() == 1) {
              MbarrierWait(full, round % 2);
              const unsigned half = Thread() / 16 % 2, chunk = Thread() % 8;
              std::uint16_t got;
              std::memcpy(&got, ReadShared(base + 128 * half + 16 * chunk, 16, "test"), 2);
              EXPECT_EQ(got, tensor.At({8 * chunk, 8 * round + BlockIndex().x / 2 * 2 + half, 0, 0}));
              ++reads;
              WarpBarrier();
              if (Thread() % 32 < 2) MbarrierArriveAt(empty, Thread() % 32);
            }
          }
          ClusterSync();
        },
        2);
    EXPECT_EQ(reads, 4 * 32 * kRounds);
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
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaCommit();
                 d[3] = 0;
                 WgmmaWait(0);
               }),
               "registers of wgmma were written");
  EXPECT_DEATH(RunWgmma([](float* d, std::uint32_t* a) {
                 WgmmaFence();
                 Multiply(d, a);
                 WgmmaCommit();
                 a[1] = 0;
                 WgmmaWait(0);
               }),
               "registers of wgmma were written");
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

TEST_F(EmulatorHopperDeathTest, BulkCopyMisuse) {
  const Tensor tensor({64, 16}, {64});
  CUtensorMap map;
  ASSERT_EQ(tensor.Map(map, {64, 16}, CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS);
  constexpr std::uint32_t kBytes = 2048, kBarrier = 8192;
  const std::int32_t origin[2] = {0, 0};
  // One thread copies and announces `expect` bytes, then `body`.
  const auto run = [&](std::uint32_t to, std::uint32_t expect, bool fence, const std::function<void()>& body) {
    RunWarps(2, kBarrier + 64, [&] {
      if (Thread() == 0) {
        MbarrierInit(kBarrier, 1);
        MbarrierInit(kBarrier + 8, 1);
        if (fence) FenceMbarrierInit();
      }
      Barrier();
      if (Thread() == 0) {
        MbarrierArriveExpect(kBarrier, expect);
        TensorLoad(to, map, 2, origin, kBarrier);
      }
      body();
    });
  };
  const auto wait = [] { MbarrierWait(kBarrier, 0); };
  InEveryOrder([&] {
    run(0, kBytes, true, wait);
    EXPECT_DEATH(run(512, kBytes, true, wait), "not where a swizzle of 128 bytes begins");
    EXPECT_DEATH(run(0, kBytes, false, wait), "whose init was not fenced");
    EXPECT_DEATH(run(0, kBytes - 16, true, wait), "nobody can go on.*and -16 bytes");
    EXPECT_DEATH(run(0, kBytes + 16, true, wait), "nobody can go on.*and 16 bytes");
    EXPECT_DEATH(run(7168, kBytes, true, wait), "shared memory has");
    // Nobody reads what is on its way, or has come without a wait for it, or writes under it.
    EXPECT_DEATH(
        run(0, kBytes, true,
            [] {
              if (Thread() == 32) ReadShared(16, 16, "a load");
            }),
        "a load at 16, which a (copy is still to fill|bulk copy wrote)|tensor at 16, which other warps .1. read");
    EXPECT_DEATH(run(0, kBytes, true,
                     [&] {
                       if (Thread() == 0) TensorLoad(2048, map, 2, origin, kBarrier + 8);
                       if (Thread() == 0) MbarrierArriveExpect(kBarrier + 8, kBytes);
                       if (Warp() == 0) wait();
                       if (Warp() == 0) return;
                       MbarrierWait(kBarrier + 8, 0);  // of another copy
                       ReadShared(16, 16, "a load");
                     }),
                 "a load at 16, which a (copy is still to fill|bulk copy wrote)");
    EXPECT_DEATH(
        run(0, kBytes, true,
            [&] {
              wait();
              if (Warp() == 1) ReadShared(16, 16, "a load");
              WarpBarrier();
              if (Thread() == 33) MbarrierArrive(kBarrier + 8);
              if (Thread() == 0) TensorLoad(0, map, 2, origin, kBarrier);  // without a wait for the readers
            }),
        "tensor at 16, which other warps .1. read|a load at 16, which a (copy is still to fill|bulk copy wrote)");
    EXPECT_DEATH(run(0, kBytes, true,
                     [&] {
                       wait();
                       if (Thread() == 0) std::memset(WriteShared(16, 16, "a store"), 0, 16);
                       if (Thread() == 0) TensorLoad(0, map, 2, origin, kBarrier);
                     }),
                 "with no fence.proxy.async since");
  });
  SetOrder(Order::kAscending);
  EXPECT_DEATH(run(0, kBytes, true, [] {}), "ended with bulk copies in flight");
  CUtensorMap none = {};
  EXPECT_DEATH(RunWarps(1, 4096,
                        [&] {
                          if (Thread() == 0) InitFenced(0, 1);
                          if (Thread() == 0) TensorLoad(1024, none, 2, origin, 0);
                        }),
               "another kind of map");
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
