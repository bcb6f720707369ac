// What `kernctl verify` asks a daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "kernd/kernels/variant.h"
#include "kernels/reference/problem_case.h"

namespace kernd::cli {

using Call = std::variant<reference::MatmulCase, reference::AttentionCase>;

// A call that is made when its turn comes, the same for the same seed.
struct Case {
  OpKind op = OpKind::kMatmul;
  DataType dtype = DataType::kInvalid;  // of the operands
  std::string name;                     // "causal, window 16"
  std::string shape;                    // MxNxK, or BxHqxLqxD[,Hkv[,Lkv[,Dv]]]: as --random takes it
  bool quick = false;                   // also with --quick
  bool tf32 = false;                    // of a matmul: F32 may be rounded to TF32
  std::function<Call(reference::Source&)> make;
  std::vector<double> known;  // the result by heart; empty: the reference computes it
};

// Sizes around every edge that a tile may have, and each option of the operation, for operands of `dtype`. None for a
// dtype that the operation does not have.
std::vector<Case> Presets(OpKind op, DataType dtype);

// The matmul `c` with leave to round F32 to TF32, which its name says.
Case InTf32(const Case& c);

// Those for which there are presets.
std::vector<DataType> DataTypesOf(OpKind op);

}  // namespace kernd::cli
