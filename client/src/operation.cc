#include "client/src/operation.h"

#include <algorithm>

namespace kernd::client {
namespace {

using Shape = std::vector<std::int64_t>;

std::int64_t Bytes(DataType wish, DataType operand, const Shape& shape) {
  return TensorBytes(wish != DataType::kUnspecified ? wish : operand, shape).value_or(0);
}

// As numpy broadcasts them; the dimensions from the end on.
Shape Broadcast(const Shape& a, const Shape& b) {
  Shape out(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto dim = [i](const Shape& s) { return i < s.size() ? s[s.size() - 1 - i] : 1; };
    out[out.size() - 1 - i] = dim(a) == 1 ? dim(b) : dim(a);
  }
  return out;
}

// [batch..., M, N].
Shape ProductShape(const MatmulArgs& args) {
  const Shape &a = args.a.shape, &b = args.b.shape;
  if (a.size() < 2 || b.size() < 2) return {0};
  Shape d = Broadcast({a.begin(), a.end() - 2}, {b.begin(), b.end() - 2});
  d.push_back(args.transpose_a ? a.back() : a[a.size() - 2]);
  d.push_back(args.transpose_b ? b[b.size() - 2] : b.back());
  return d;
}

}  // namespace

std::vector<Operand*> MatmulCall::Operands(Args& args) {
  std::vector<Operand*> operands = {&args.a, &args.b};
  if (args.c) operands.push_back(&*args.c);
  if (args.bias) operands.push_back(&*args.bias);
  if (args.a_scale) operands.push_back(&args.a_scale->values);
  if (args.b_scale) operands.push_back(&args.b_scale->values);
  return operands;
}

std::vector<Result<MatmulReply>> MatmulCall::Results(Args& args) {
  return {{"matmul.d", &args.d, &Reply::d, Bytes(args.d_dtype, args.a.dtype, ProductShape(args))}};
}

std::vector<Operand*> AttentionCall::Operands(Args& args) {
  std::vector<Operand*> operands = {&args.q, &args.k, &args.v};
  if (args.mask) operands.push_back(&*args.mask);
  if (args.bias) operands.push_back(&*args.bias);
  return operands;
}

std::vector<Result<AttentionReply>> AttentionCall::Results(Args& args) {
  // The shape of Q, with the last dimension of V.
  Shape o = args.q.shape;
  if (!o.empty() && !args.v.shape.empty()) o.back() = args.v.shape.back();
  Shape lse = args.q.shape;
  if (!lse.empty()) lse.pop_back();
  return {{"attention.o", &args.o, &Reply::o, Bytes(args.o_dtype, args.q.dtype, o)},
          {"attention.lse", &args.lse, &Reply::lse, args.want_lse ? Bytes(DataType::kF32, DataType::kF32, lse) : 0}};
}

}  // namespace kernd::client
