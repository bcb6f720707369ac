// Small, valid requests to start from and spoil.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernd/v1/compute.pb.h"

namespace kernd::testing {

inline v1::Tensor F32(std::initializer_list<std::int64_t> shape, const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DATA_TYPE_F32);
  for (const std::int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_data(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  return tensor;
}

inline v1::Tensor F32(std::initializer_list<std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) elements *= dim;
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3.0f;
  return F32(shape, values);
}

// [[1, 2], [3, 4]] [[5, 6], [7, 8]] = [[19, 22], [43, 50]].
inline v1::MatmulRequest SmallMatmul() {
  v1::MatmulRequest request;
  *request.mutable_matmul()->mutable_a() = F32({2, 2}, {1, 2, 3, 4});
  *request.mutable_matmul()->mutable_b() = F32({2, 2}, {5, 6, 7, 8});
  return request;
}

inline v1::AttentionRequest SmallAttention() {
  v1::AttentionRequest request;
  v1::AttentionOp& op = *request.mutable_attention();
  op.set_layout(v1::ATTENTION_LAYOUT_BHLD);
  *op.mutable_q() = F32({1, 4, 5, 8});
  *op.mutable_k() = F32({1, 2, 5, 8});
  *op.mutable_v() = F32({1, 2, 5, 8});
  return request;
}

inline std::vector<float> Floats(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.data().data(), values.size() * sizeof(float));
  return values;
}

}  // namespace kernd::testing
