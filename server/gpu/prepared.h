// A planned step as the executor wants it.
#pragma once

#include "kernd/kernels/gpu.h"
#include "server/core/program.h"
#include "server/gpu/layout.h"

namespace kernd::gpu {

struct PreparedMatmul final : core::PreparedStep {
  MatmulGeometry geometry;
  const MatmulVariant* variant = nullptr;
  DeviceLayout layout;  // operands: a, b, c, bias, a_scale, b_scale
};

struct PreparedAttention final : core::PreparedStep {
  PreparedAttention(const AttentionProblem& problem, AttentionGeometry g)
      : geometry(std::move(g)), tables(problem, geometry) {}
  AttentionGeometry geometry;
  AttentionTableLayout tables;
  const AttentionVariant* variant = nullptr;
  DeviceLayout layout;  // operands: q, k, v, mask, bias
};

}  // namespace kernd::gpu
