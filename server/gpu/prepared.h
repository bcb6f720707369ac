// A planned step as the executor wants it.
#pragma once

#include <utility>
#include <vector>

#include "kernd/kernels/gpu.h"
#include "server/core/program.h"
#include "server/gpu/checks.h"
#include "server/gpu/layout.h"
#include "server/gpu/slices.h"

namespace kernd::gpu {

struct Prepared : core::PreparedStep {
  DeviceLayout layout;
  CheckedTensors checked;  // where checks are on
};

struct PreparedMatmul final : Prepared {
  MatmulGeometry geometry;
  const MatmulVariant* variant = nullptr;
  std::vector<MatmulSlice> slices;  // none: launched whole
  // In the layout: a, b, c, bias, a_scale, b_scale.
};

struct PreparedAttention final : Prepared {
  PreparedAttention(const AttentionProblem& problem, AttentionGeometry g)
      : geometry(std::move(g)), tables(problem, geometry) {}
  AttentionGeometry geometry;
  AttentionTableLayout tables;
  const AttentionVariant* variant = nullptr;
  std::vector<AttentionSlice> slices;  // none: launched whole
  // In the layout: q, k, v, mask, bias.
};

}  // namespace kernd::gpu
