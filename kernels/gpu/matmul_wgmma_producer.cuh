// The producer of matmul_wgmma_tile.cuh: one thread that keeps the ring of stages full, from tile to tile.
#pragma once

#include "kernels/gpu/device/tensor_load.cuh"
#include "kernels/gpu/matmul_wgmma_shape.cuh"

namespace kernd::gpu::matmul_wgmma {

template <typename S>
class Producer {
 public:
  __device__ Producer(const WgmmaMatmul& p, Shared<S>& shared) : p_(p), shared_(shared) {
    if constexpr (S::kCluster > 1) rank_ = ClusterRank();
  }

  __device__ void Run() {
    PrefetchTensorMap(p_.a.map);
    PrefetchTensorMap(p_.b.map);
    ForEachTile<S>(p_, [this](const Work& work) {
      const int a_item = static_cast<int>(OffsetOf(p_.a.item_of, work.item));
      const int b_item = static_cast<int>(OffsetOf(p_.b.item_of, work.item));
      const int row0 = static_cast<int>(work.row0), col0 = static_cast<int>(work.col0);
      for (std::int64_t k = work.k_begin; k < work.k_end; k += S::kK) {
        MbarrierWait(SharedAddress(&shared_.empty[place_.index]), place_.parity ^ 1);
        const std::uint32_t full = SharedAddress(&shared_.full[place_.index]);
        MbarrierArriveExpect(full, S::A::kBytes + S::B::kBytes);
        LoadRows(row0, static_cast<int>(k), a_item, full);
        LoadColumns(col0, static_cast<int>(k), b_item, full);
        place_.Next();
      }
    });
  }

 private:
  __device__ void LoadRows(int row, int k, int item, std::uint32_t full) const {
    const std::uint32_t to = SharedAddress(shared_.a[place_.index]);
#pragma unroll
    for (unsigned slab = 0; slab < S::A::kBytes / S::A::kSlab; ++slab) {
      const int first = row + static_cast<int>(64 * slab);
      if constexpr (S::A::kMajor == Major::kK) {
        TensorLoad(to, p_.a.map, full, k, first, item, 0);
      } else {
        TensorLoad(to + slab * S::A::kSlab, p_.a.map, full, first, k, item, 0);
      }
    }
  }

  // The block's part of the columns goes to all blocks of the cluster.
  __device__ void LoadColumns(int col, int k, int item, std::uint32_t full) const {
    constexpr unsigned kPart = S::B::kBytes / S::kCluster, kSlab = S::B::kMajor == Major::kK ? kPart : S::B::kSlab;
    const std::uint32_t to = SharedAddress(shared_.b[place_.index]) + rank_ * kPart;
    const int part = col + static_cast<int>(rank_ * (S::kN / S::kCluster));
#pragma unroll
    for (unsigned slab = 0; slab < kPart / kSlab; ++slab) {
      const int first = part + static_cast<int>(64 * slab);
      if constexpr (S::B::kMajor == Major::kK) {
        Load(to, full, k, first, item);
      } else {
        Load(to + slab * kSlab, full, first, k, item);
      }
    }
  }
  __device__ void Load(std::uint32_t to, std::uint32_t full, int x, int y, int item) const {
    if constexpr (S::kCluster > 1) {
      TensorLoadToAll(to, p_.b.map, full, x, y, item, 0, (1 << S::kCluster) - 1);
    } else {
      TensorLoad(to, p_.b.map, full, x, y, item, 0);
    }
  }

  const WgmmaMatmul& p_;
  Shared<S>& shared_;
  unsigned rank_ = 0;
  RingPlace<S::kStages> place_;
};

}  // namespace kernd::gpu::matmul_wgmma
