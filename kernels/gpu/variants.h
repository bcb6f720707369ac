// The rows of the table. A new variant is its `.cu` file, a line here, and a line in variants.cc.
#pragma once

#include "kernd/kernels/gpu.h"

namespace kernd {

// attention_naive.cu, attention_simt.cu: F16, BF16, F32, F8E4M3, F8E5M2; every option.
absl::Span<const AttentionVariant> AttentionSimtVariants();
absl::Span<const AttentionVariant> AttentionNaiveVariants();

// attention_mma.cu: F16, BF16; head dimensions and strides that are multiples of 8, every option.
absl::Span<const AttentionVariant> AttentionMmaVariants();

// attention_wgmma.cu: F16, BF16; SM 9.0 alone; no mask, bias or slopes.
absl::Span<const AttentionVariant> AttentionWgmmaVariants();

// matmul_simt.cu: every dtype; every option. matmul_lt.cc: cuBLASLt. matmul_mma.cc: tensor cores, F16, BF16, TF32, I8.
// matmul_wgmma.cc: F16, BF16; SM 9.0 alone. matmul_skinny.cu: F16, BF16; from SM 8.0 on, for few rows.
absl::Span<const MatmulVariant> MatmulSimtVariants();
absl::Span<const MatmulVariant> MatmulLtVariants();
absl::Span<const MatmulVariant> MatmulMmaVariants();
absl::Span<const MatmulVariant> MatmulSkinnyVariants();
absl::Span<const MatmulVariant> MatmulWgmmaVariants();

}  // namespace kernd
