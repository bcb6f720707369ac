// Reads what tests/data holds: golden cases (safetensors files) and single arrays (.npy). For tests only: a file that
// is not as expected ends the test program with a message.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "nlohmann/json.hpp"

namespace kernd::testing {

struct GoldenTensor {
  TensorSpec spec;
  std::vector<std::byte> bytes;
};

// A case as tests/data/make_goldens.py writes it.
struct Golden {
  std::string name;  // "attention_gqa"
  std::map<std::string, GoldenTensor> tensors;
  nlohmann::json problem;

  bool Has(const std::string& tensor) const { return tensors.contains(tensor); }
  const GoldenTensor& At(const std::string& tensor) const;
  // All elements of a tensor.
  std::vector<double> Doubles(const std::string& tensor) const;
  std::vector<float> Floats(const std::string& tensor) const;  // empty if there is none

  // The problem that the case poses. `args` receives pointers to its operands, which live as long as the case; results
  // are left null.
  MatmulProblem Matmul(MatmulArgs* args) const;
  AttentionProblem Attention(AttentionArgs* args) const;

 private:
  // Spec and first element of an operand, through its view if it has one.
  TensorSpec Operand(const std::string& tensor, const void** data) const;
};

// All cases whose name starts with `prefix`, sorted.
std::vector<std::string> GoldenNames(const std::string& prefix);
Golden ReadGolden(const std::string& name);

// A C-ordered little-endian F32 array, version 1 of the format; `path` is relative to tests/data.
GoldenTensor ReadNpy(const std::filesystem::path& path);

}  // namespace kernd::testing
