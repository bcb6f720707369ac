// A computing warpgroup of matmul_wgmma_tile.cuh: 64 rows of each tile, their sums in registers.
#pragma once

#include "kernels/gpu/device/mma.cuh"
#include "kernels/gpu/matmul_results.cuh"
#include "kernels/gpu/matmul_wgmma_shape.cuh"

namespace kernd::gpu::matmul_wgmma {

template <typename S>
class Consumer {
 public:
  __device__ Consumer(const WgmmaMatmul& p, Shared<S>& shared) : p_(p), shared_(shared) {}

  __device__ void Run() {
    ForEachTile<S>(p_, [this](const Work& work) {
      const std::int64_t row0 = work.row0 + warp_ * 16;
      const ResultPlace to{work.item, work.split, OffsetOf(p_.epilogue.c_batch, work.item), row0, work.col0};
      if constexpr (S::kNarrow) {
        if (work.narrow) {
          Sums<kWgmmaNarrow> sums;
          Multiply<kWgmmaNarrow>(work, sums);
          if (row0 < p_.epilogue.m) WriteResults<kWgmmaNarrow>(to, sums);
          return;
        }
      }
      Sums<S::kN> sums;
      Multiply<S::kN>(work, sums);
      if (row0 >= p_.epilogue.m) return;
      if (straight_) {
        WriteStraight(to, sums);
      } else {
        WriteResults<S::kN>(to, sums);
      }
    });
  }

 private:
  template <unsigned kColumns>
  using Sums = float[kColumns / 8][4];
  using Strip = Slabs<16>;         // of 16-bit results
  static constexpr int kEach = 8;  // rows whose results a lane makes together

  // The first kColumns of the tile.
  template <unsigned kColumns>
  __device__ void Multiply(const Work& work, Sums<kColumns>& sums) {
    // One step's products run while the next are issued; then its stage is free.
    unsigned last = S::kStages;
#pragma unroll 1
    for (std::int64_t k = work.k_begin; k < work.k_end; k += S::kK) {
      MbarrierWait(SharedAddress(&shared_.full[place_.index]), place_.parity);
      const std::uint64_t a = S::A::Descriptor(SharedAddress(shared_.a[place_.index]) + group_ * S::A::kRowsBytes);
      const std::uint64_t b = S::B::Descriptor(SharedAddress(shared_.b[place_.index]));
      FenceRegisters(sums);
      WgmmaFence();
#pragma unroll
      for (unsigned step = 0; step < S::kK / 16; ++step) {
        Wgmma<S::kType, kColumns>::template Shared<S::A::kMajor, S::B::kMajor>(
            sums, Further(a, step * S::A::kStepBytes), Further(b, step * S::B::kStepBytes),
            step > 0 || k > work.k_begin);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (last < S::kStages) Release(last);
      last = place_.index;
      place_.Next();
    }
    WgmmaWait<0>();
    FenceRegisters(sums);
    Release(last);
  }

  // The warp is done with a stage: for the producers of all blocks that fill it.
  __device__ void Release(unsigned stage) const {
    const std::uint32_t empty = SharedAddress(&shared_.empty[stage]);
    __syncwarp();
    if constexpr (S::kCluster > 1) {
      if (lane_ < S::kCluster) MbarrierArriveAt(empty, lane_);
    } else {
      if (lane_ == 0) MbarrierArrive(empty);
    }
  }

  // 16-bit results in whole chunks of 16 bytes, of sums that are but rounded: 128 columns at a time.
  __device__ void WriteStraight(const ResultPlace& to, const Sums<S::kN>& sums) const {
    constexpr unsigned kChunks = 16;  // of a row of a strip
    const MatmulEpilogue& e = p_.epilogue;
    const bool relu = e.activation == Activation::kRelu;
    const auto at_least = [relu](float x) { return relu ? Activate(Activation::kRelu, x) : x; };
    const std::uint32_t strip = SharedAddress(shared_.strips[warp_]);
    auto* const d = static_cast<std::uint16_t*>(e.d) + (to.item * e.m + to.row0) * e.n + to.col0;
    const std::int64_t rows = e.m - to.row0, columns = e.n - to.col0;
#pragma unroll
    for (unsigned first = 0; first < S::kN / 8; first += kChunks) {
      if (8 * first >= columns) break;
#pragma unroll
      for (unsigned n = 0; n < kChunks; n += 2) {
        std::uint32_t pairs[4];
#pragma unroll
        for (unsigned i = 0; i < 4; ++i) {
          const float(&sum)[4] = sums[first + n + i / 2];
          pairs[i] = Pack<S::kType>(at_least(sum[i % 2 * 2]), at_least(sum[i % 2 * 2 + 1]));
        }
        StoreMatrices(strip + Strip::Offset(lane_ % 16, n + lane_ / 16), pairs);
      }
      __syncwarp();
#pragma unroll
      for (unsigned i = lane_; i < 16 * kChunks; i += 32) {
        const unsigned row = i / kChunks, chunk = i % kChunks;
        const uint4 x = LoadShared16(strip + Strip::Offset(row, chunk));
        if (row >= rows || 8 * (first + chunk) >= columns) continue;
        *reinterpret_cast<uint4*>(d + row * e.n + 8 * (first + chunk)) = x;
      }
      __syncwarp();
    }
  }

  // Everything else, 64 columns at a time, so that the epilogue is there once in the code. Shifting the sums keeps
  // their indices constant, and the sums in registers.
  template <unsigned kColumns>
  __device__ void WriteResults(const ResultPlace& to, Sums<kColumns>& sums) const {
    constexpr unsigned kTiles = 8;  // of 8 columns
    auto* const strip = reinterpret_cast<float*>(shared_.strips[warp_]);
    // Two columns of a row; tiles are swapped about such that lanes of a warp meet at no bank.
    const auto pair = [&](unsigned row, unsigned col) {
      return reinterpret_cast<float2*>(strip + row * 64 + (col / 8 ^ row % 8) * 8 + col % 8);
    };
    const auto rows = static_cast<int>(min(p_.epilogue.m - to.row0, static_cast<std::int64_t>(16)));
#pragma unroll 1
    for (unsigned first = 0; first < kColumns; first += 8 * kTiles) {
      if (to.col0 + first >= p_.epilogue.n) break;
#pragma unroll
      for (unsigned n = 0; n < kColumns / 8; ++n) {
        if (n < kTiles) {
          *pair(lane_ / 4, 8 * n + lane_ % 4 * 2) = make_float2(sums[n][0], sums[n][1]);
          *pair(lane_ / 4 + 8, 8 * n + lane_ % 4 * 2) = make_float2(sums[n][2], sums[n][3]);
        }
        if (n + kTiles < kColumns / 8) {
#pragma unroll
          for (unsigned i = 0; i < 4; ++i) sums[n][i] = sums[n + kTiles][i];
        }
      }
      __syncwarp();
      const std::int64_t col = to.col0 + first + 2 * lane_;
#pragma unroll 1
      for (int row = 0; col < p_.epilogue.n && row < rows; row += kEach) {
        float x[2 * kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const float2 both = *pair(row + i, 2 * lane_);
          x[2 * i] = both.x;
          x[2 * i + 1] = both.y;
        }
        if (p_.sums != nullptr) {
          StoreSums(to, to.row0 + row, rows - row, col, x);
        } else {
          FinishRows<kEach>(p_.epilogue, to, to.row0 + row, rows - row, col, x);
        }
      }
      __syncwarp();
    }
  }

  __device__ void StoreSums(const ResultPlace& to, std::int64_t row, int rows, std::int64_t col,
                            const float (&x)[2 * kEach]) const {
    const MatmulEpilogue& e = p_.epilogue;
    const std::int64_t at = ((to.split * e.batch + to.item) * e.m + row) * e.n + col;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i < rows) StorePair(p_.sums, at + i * e.n, x[2 * i], x[2 * i + 1], col + 1 < e.n);
    }
  }

  const WgmmaMatmul& p_;
  Shared<S>& shared_;
  const bool straight_ =
      p_.sums == nullptr && p_.epilogue.plain && p_.epilogue.output == S::kType && p_.epilogue.n % 8 == 0;
  const unsigned lane_ = threadIdx.x % 32;
  // By a shuffle, so that the compiler knows that it is the same in all lanes.
  const unsigned warp_ = __shfl_sync(0xffffffff, threadIdx.x / 32 - kWarpgroup / 32, 0), group_ = warp_ / 4;
  RingPlace<S::kStages> place_;
};

}  // namespace kernd::gpu::matmul_wgmma
