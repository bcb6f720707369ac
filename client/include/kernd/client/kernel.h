// Which kernel a call asks for, and which one ran.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kernd::client {

enum class Numerics : std::uint8_t {
  kDefault = 0,         // F32 stays F32
  kTf32 = 1,            // F32 operands of a matmul may be rounded to TF32
  kBatchInvariant = 2,  // a row's bits do not depend on M or the batch
};

// Rows and columns of the result, and depth of the sum, that a block of threads works on.
struct Tile {
  std::int64_t m = 0, n = 0, k = 0;
  bool operator==(const Tile&) const = default;
};

// Forces a kernel: by a name from ListKernels, or by tile. Neither: the daemon chooses. Not both.
struct KernelChoice {
  std::string name;
  std::optional<Tile> tile;
};

// Which kernel ran, and why.
struct KernelUsed {
  std::string name;
  std::optional<Tile> tile;  // empty where the kernel has none
  std::string device;        // UUID, or "cpu"
  std::string numerics;      // "default", "tf32" or "batch_invariant"
  std::string reason;        // "forced", "tuned", "model" or "rule"
};

}  // namespace kernd::client
