#include "kernels/emulator/warp_ops.h"

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/emulator/emulator.h"
#include "kernels/emulator/float16.h"

namespace kernd::emulator {

const float* ValuesOf(Half type) {
  const auto make = [](float (*convert)(std::uint16_t)) {
    auto* const table = new std::vector<float>(65536);
    for (int i = 0; i < 65536; ++i) (*table)[i] = convert(static_cast<std::uint16_t>(i));
    return table->data();
  };
  static const float *const f16 = make(FromF16), *const bf16 = make(FromBF16);
  return type == Half::kF16 ? f16 : bf16;
}

namespace {

struct MmaLane {
  Half type;
  float* d;
  std::uint32_t a[4], b[2];
};

template <int kDepth>
void MultiplyAll(void* const* lanes) {
  const auto at = [&](int lane) -> const MmaLane& { return *static_cast<const MmaLane*>(lanes[lane]); };
  const float* const table = ValuesOf(at(0).type);
  const auto half = [&](std::uint32_t word, int e) { return table[word >> (16 * e) & 0xffff]; };
  double a[16][kDepth], b[8][kDepth];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < kDepth / 4; ++r) {
      for (int e = 0; e < 2; ++e) a[g + 8 * (r % 2)][2 * t + e + 8 * (r / 2)] = half(at(lane).a[r], e);
    }
    for (int r = 0; r < kDepth / 8; ++r) {
      for (int e = 0; e < 2; ++e) b[g][2 * t + e + 8 * r] = half(at(lane).b[r], e);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      double sum = at(lane).d[i];
      for (int k = 0; k < kDepth; ++k) sum += a[g + 8 * (i / 2)][k] * b[2 * t + i % 2][k];
      at(lane).d[i] = static_cast<float>(sum);
    }
  }
  ++Counts().mma;
}

struct MatrixLane {
  std::uint32_t* registers;
  std::uint32_t place;
};

template <int kMatrices, bool kTransposed>
void LoadAll(void* const* lanes) {
  const auto at = [&](int lane) -> const MatrixLane& { return *static_cast<const MatrixLane*>(lanes[lane]); };
  ++Counts().ldmatrix;
  for (int m = 0; m < kMatrices; ++m) {
    std::array<const std::uint16_t*, 8> rows;
    std::array<int, 8> in_banks = {};
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t place = at(8 * m + j).place;
      rows[j] = reinterpret_cast<const std::uint16_t*>(ReadShared(place, 16, "ldmatrix"));
      ++in_banks[place / 16 % 8];
    }
    Counts().ldmatrix_conflicts += static_cast<std::uint64_t>(*std::max_element(in_banks.begin(), in_banks.end()) - 1);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const std::uint32_t low = kTransposed ? rows[2 * t][g] : rows[g][2 * t];
      const std::uint32_t high = kTransposed ? rows[2 * t + 1][g] : rows[g][2 * t + 1];
      at(lane).registers[m] = low | high << 16;
    }
  }
}

struct StoreLane {
  const std::uint32_t* registers;
  std::uint32_t place;
};

void StoreAll(void* const* lanes) {
  const auto at = [&](int lane) -> const StoreLane& { return *static_cast<const StoreLane*>(lanes[lane]); };
  for (int m = 0; m < 4; ++m) {
    std::array<int, 8> in_banks = {};
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t place = at(8 * m + j).place;
      auto* const row = reinterpret_cast<std::uint32_t*>(WriteShared(place, 16, "stmatrix", ~0u));
      for (int t = 0; t < 4; ++t) row[t] = at(4 * j + t).registers[m];
      ++in_banks[place / 16 % 8];
    }
    Counts().ldmatrix_conflicts += static_cast<std::uint64_t>(*std::max_element(in_banks.begin(), in_banks.end()) - 1);
  }
}

struct ShuffleLane {
  std::uint32_t value, source, result;
};

std::uint32_t Shuffle(const char* what, std::uint32_t value, unsigned source) {
  ShuffleLane lane{value, source, 0};
  Collective(what, &lane, [](void* const* lanes) {
    for (unsigned i = 0; i < kLanes; ++i) {
      auto* const to = static_cast<ShuffleLane*>(lanes[i]);
      to->result = static_cast<const ShuffleLane*>(lanes[to->source % kLanes])->value;
    }
  });
  return lane.result;
}

unsigned Lane() {
  return ThreadIndex().x % kLanes;
}

}  // namespace

void Mma16x8x16(Half type, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  MmaLane lane{type, d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  Collective(type == Half::kF16 ? "mma.m16n8k16.f16" : "mma.m16n8k16.bf16", &lane, MultiplyAll<16>);
}

void Mma16x8x8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  MmaLane lane{Half::kF16, d, {a0, a1, 0, 0}, {b, 0}};
  Collective("mma.m16n8k8.f16", &lane, MultiplyAll<8>);
}

void LoadMatrices(std::uint32_t* registers, int matrices, bool transposed, std::uint32_t place) {
  MatrixLane lane{registers, place};
  const auto load = [&](const char* what, void (*plain)(void* const*), void (*trans)(void* const*)) {
    Collective(what, &lane, transposed ? trans : plain);
  };
  if (matrices == 1) {
    load("ldmatrix.x1", LoadAll<1, false>, LoadAll<1, true>);
  } else if (matrices == 2) {
    load("ldmatrix.x2", LoadAll<2, false>, LoadAll<2, true>);
  } else {
    load("ldmatrix.x4", LoadAll<4, false>, LoadAll<4, true>);
  }
}

void StoreMatrices(const std::uint32_t (&registers)[4], std::uint32_t place) {
  StoreLane lane{registers, place};
  Collective("stmatrix.x4", &lane, StoreAll);
}

std::uint32_t ShuffleXor(std::uint32_t value, unsigned mask) {
  return Shuffle("shfl.xor", value, Lane() ^ mask);
}

std::uint32_t ShuffleFrom(std::uint32_t value, unsigned lane) {
  return Shuffle("shfl.idx", value, lane);
}

void WarpBarrier() {
  Collective("__syncwarp", nullptr, [](void* const*) {});
}

bool WarpAny(bool value) {
  struct Any {
    bool value, result;
  } lane{value, false};
  Collective("__any_sync", &lane, [](void* const* lanes) {
    bool any = false;
    for (unsigned i = 0; i < kLanes; ++i) any = any || static_cast<const Any*>(lanes[i])->value;
    for (unsigned i = 0; i < kLanes; ++i) static_cast<Any*>(lanes[i])->result = any;
  });
  return lane.result;
}

}  // namespace kernd::emulator
