// The emulator's bulk copies: where their boxes land, and what of their misuse it refuses. Each check has a small
// kernel that is wrong in just that way.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulator/barriers.h"
#include "kernels/emulator/emulator.h"
#include "kernels/emulator/guarded_memory.h"
#include "kernels/emulator/tensor_copy.h"
#include "kernels/emulator/warp_ops.h"
#include "tests/unit/emulator_hopper.h"

namespace kernd::emulator {
namespace {

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

}  // namespace
}  // namespace kernd::emulator
