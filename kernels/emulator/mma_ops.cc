#include "kernels/emulator/mma_ops.h"

#include <bit>

#include "kernels/emulator/emulator.h"

namespace kernd::emulator {
namespace {

constexpr std::uint32_t kInfinity = 0x7f800000;

struct Tf32Lane {
  float* d;
  std::uint32_t a[4], b[2];
};

double Tf32(std::uint32_t bits) {
  return std::bit_cast<float>(bits & 0xffffe000);
}

// With lane = 4 g + t, D register i: row g + 8 (i / 2), column 2 t + i % 2. A register r: row g + 8 (r % 2), word t + 4
// (r / 2) of it; B register r: word t + 4 r of column g.
void MultiplyTf32(void* const* lanes) {
  const auto at = [&](int lane) -> const Tf32Lane& { return *static_cast<const Tf32Lane*>(lanes[lane]); };
  double a[16][8], b[8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][t + 4 * (r / 2)] = Tf32(at(lane).a[r]);
    for (int r = 0; r < 2; ++r) b[g][t + 4 * r] = Tf32(at(lane).b[r]);
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      double sum = at(lane).d[i];
      for (int k = 0; k < 8; ++k) sum += a[g + 8 * (i / 2)][k] * b[2 * t + i % 2][k];
      at(lane).d[i] = static_cast<float>(sum);
    }
  }
  ++Counts().mma;
}

std::uint32_t Dot4(std::uint32_t x, std::uint32_t y, std::uint32_t sum) {
  for (int e = 0; e < 32; e += 8) {
    sum += static_cast<std::uint32_t>(static_cast<std::int8_t>(x >> e) * static_cast<std::int8_t>(y >> e));
  }
  return sum;
}

// kRegisters of A: 4 for 16 x 32, 1 for 8 x 16.
template <int kRegisters>
struct I8Lane {
  static constexpr int kSums = kRegisters == 4 ? 4 : 2, kWords = kRegisters == 4 ? 2 : 1;  // of D, of B
  std::int32_t* d[kSums];
  std::uint32_t a[kRegisters], b[kWords];
};

template <int kRegisters>
void MultiplyI8(void* const* lanes) {
  using Lane = I8Lane<kRegisters>;
  const auto at = [&](int lane) -> const Lane& { return *static_cast<const Lane*>(lanes[lane]); };
  std::uint32_t sums[32][Lane::kSums];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < Lane::kSums; ++i) {
      std::uint32_t sum = static_cast<std::uint32_t>(*at(lane).d[i]);
      for (int word = 0; word < 4 * Lane::kWords; ++word) {
        const int r = i / 2 + word / 4 * 2;  // row g or g + 8; the first or second 16 elements of K
        sum = Dot4(at(4 * g + word % 4).a[r], at(4 * (2 * t + i % 2) + word % 4).b[word / 4], sum);
      }
      sums[lane][i] = sum;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < Lane::kSums; ++i) *at(lane).d[i] = static_cast<std::int32_t>(sums[lane][i]);
  }
  ++Counts().mma;
}

}  // namespace

void MmaTf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  Tf32Lane lane{d, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  Collective("mma.m16n8k8.tf32", &lane, MultiplyTf32);
}

std::uint32_t RoundToTf32(std::uint32_t bits) {
  if ((bits & kInfinity) == kInfinity) return (bits & 0x007fffff) != 0 ? 0x7fffe000 : bits;
  return (bits + 0x1000) & 0xffffe000;
}

void MmaI8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  I8Lane<4> lane{{&d[0], &d[1], &d[2], &d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  Collective("mma.m16n8k32.s8", &lane, MultiplyI8<4>);
}

void MmaI8Half(std::int32_t& d0, std::int32_t& d1, std::uint32_t a, std::uint32_t b) {
  I8Lane<1> lane{{&d0, &d1}, {a}, {b}};
  Collective("mma.m8n8k16.s8", &lane, MultiplyI8<1>);
}

}  // namespace kernd::emulator
