// A matmul problem in the terms of its kernels: what both ways of computing it share.
#pragma once

#include <cstdint>

#include "kernd/kernels/args.h"
#include "kernd/kernels/matmul.h"
#include "server/cpu/matmul_tile.h"

namespace kernd::cpu {

bool HasBlockScales(const MatmulProblem& problem);

// Nothing to sum: D = act(beta * C + bias), and A, B and the scales are not read.
bool HasNoProduct(const MatmulProblem& problem, const MatmulGeometry& geometry);

TileSum SumOf(const MatmulProblem& problem);

MatmulJob JobOf(const MatmulProblem& problem, const MatmulGeometry& geometry, const MatmulArgs& args);

// Batch item `index` with its whole matrices; the caller sets the range of rows and columns.
MatmulTile ItemOf(const MatmulProblem& problem, const MatmulGeometry& geometry, const MatmulArgs& args,
                  std::int64_t index);

inline const void* Offset(const void* base, std::int64_t elements, DataType type) {
  return static_cast<const char*>(base) + elements * ElementBytes(type);
}

}  // namespace kernd::cpu
