// The order in which blocks take the tiles of a matmul: items of the batch one after the other, of each its parts of K,
// of each part the tiles in groups.
#pragma once

#include <cstdint>

#include "kernels/gpu/matmul_epilogue.cuh"

namespace kernd::gpu {

struct MatmulTiles {
  std::int64_t tiles_m, tiles_n, splits;
  std::int64_t group;  // tiles below one another that run together, so that they share their columns of B
};
struct MatmulWork {
  std::int64_t item, split, tile_m, tile_n;
};

__device__ inline MatmulWork FindMatmulWork(const MatmulTiles& all, std::int64_t index) {
  const std::int64_t tiles = all.tiles_m * all.tiles_n;
  const std::int64_t piece = Divide(index, tiles), in_piece = index - piece * tiles;
  const std::int64_t item = Divide(piece, all.splits), split = piece - item * all.splits;
  const std::int64_t group = Divide(in_piece, all.group * all.tiles_n);
  const std::int64_t in_group = in_piece - group * all.group * all.tiles_n;
  const std::int64_t high = min(all.group, all.tiles_m - group * all.group), tile_n = Divide(in_group, high);
  return {item, split, group * all.group + in_group - tile_n * high, tile_n};
}

}  // namespace kernd::gpu
