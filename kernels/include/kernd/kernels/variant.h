// What a kernel says of itself. Names follow `<op>_<dtype>_<smNN|cpu|lt>_<method>`, and `_<M>x<N>x<K>` after it where
// the method has several tiles; the file, the kernel, the variant, the test and the metric label share them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernd/kernels/dtype.h"

namespace kernd {

enum class OpKind : std::uint8_t { kMatmul, kAttention, kMerge };

constexpr std::string_view Name(OpKind op) {
  switch (op) {
    case OpKind::kMatmul: return "matmul";
    case OpKind::kAttention: return "attention";
    case OpKind::kMerge: return "merge";
  }
  return "invalid";
}

struct Tile {
  std::int64_t m = 0, n = 0, k = 0;
  bool operator==(const Tile&) const = default;
};

// "128x256x64".
inline std::string TileText(const Tile& tile) {
  return std::to_string(tile.m) + "x" + std::to_string(tile.n) + "x" + std::to_string(tile.k);
}

struct VariantInfo {
  std::string name;
  OpKind op = OpKind::kMatmul;
  std::vector<DataType> dtypes;  // of the operands
  std::optional<Tile> tile;
  std::string method;       // one line: how it works
  std::string limits;       // one line: what it does not take; empty: nothing
  bool by_request = false;  // chosen, and measured, only where a request names it or its tile
};

// Why a variant was chosen.
enum class ChoiceReason : std::uint8_t { kRule, kForced, kTuned, kModel };

constexpr std::string_view Name(ChoiceReason reason) {
  switch (reason) {
    case ChoiceReason::kRule: return "rule";
    case ChoiceReason::kForced: return "forced";
    case ChoiceReason::kTuned: return "tuned";
    case ChoiceReason::kModel: return "model";
  }
  return "invalid";
}

// A caller's wish: by name, by tile, or none (both empty). A name without its tile means the method: any of its tiles.
struct KernelRequest {
  std::string name;
  std::optional<Tile> tile;
  bool untuned = false;  // chosen as if nothing had been measured: what a measurement has to beat
};

}  // namespace kernd
