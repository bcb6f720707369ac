// Operands and results for kernel tests: every byte that a kernel has no business with is poison or a guard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernd/kernels/tensor.h"
#include "kernels/reference/convert.h"

namespace kernd::testing {

using Random = std::mt19937_64;

// Uniform in [low, high], both inclusive.
inline std::int64_t Pick(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

// Bytes between guards. Aligned to 64, plus `misalignment`.
class Guarded {
 public:
  explicit Guarded(std::int64_t bytes, std::byte fill, std::int64_t misalignment = 0)
      : bytes_(bytes), memory_(static_cast<std::size_t>(bytes + misalignment + 2 * kGuard + 64), kGuardByte) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = static_cast<std::int64_t>((address + kGuard + 63) / 64 * 64 - address) + misalignment;
    std::fill_n(data(), bytes, fill);
  }

  std::byte* data() { return memory_.data() + begin_; }
  const std::byte* data() const { return memory_.data() + begin_; }
  std::vector<std::byte> Copy() const { return {data(), data() + bytes_}; }

  void ExpectGuardsIntact() const {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(memory_.size()); ++i) {
      if (i >= begin_ && i < begin_ + bytes_) continue;
      ASSERT_EQ(memory_[static_cast<std::size_t>(i)], kGuardByte)
          << "byte " << i - begin_ << " of " << bytes_ << " was written";
    }
  }

 private:
  static constexpr std::int64_t kGuard = 128;
  static constexpr std::byte kGuardByte{0xa5};
  std::int64_t bytes_, begin_ = 0;
  std::vector<std::byte> memory_;
};

// A tensor, possibly a view with gaps, which hold NaN (all bytes 0xff) like the bytes around it.
class Operand {
 public:
  Operand() : Operand(TensorSpec{.dtype = DataType::kF32, .shape = {0}}, 0) {}
  explicit Operand(const TensorSpec& spec, std::int64_t misalignment)
      : spec_(spec), bytes_(Span(spec) * ElementBytes(spec.dtype), std::byte{0xff}, misalignment) {}

  // Calls `value(indices)` for each element of the shape and stores the result.
  template <typename Value>
  void Fill(const Value& value) {
    if (spec_.elements() == 0) return;
    const Dims strides = spec_.EffectiveStrides();
    Dims at(spec_.shape.size(), 0);
    while (true) {
      std::int64_t offset = 0;
      for (std::size_t i = 0; i < at.size(); ++i) offset += at[i] * strides[i];
      reference::Store(spec_.dtype, value(at), bytes_.data(), offset);
      int i = static_cast<int>(at.size()) - 1;
      while (i >= 0 && ++at[i] == spec_.shape[i]) at[i--] = 0;
      if (i < 0) return;
    }
  }

  void FillNormal(Random& random, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    Fill([&](const Dims&) {
      return spec_.dtype == DataType::kI8 ? static_cast<double>(Pick(random, -128, 127)) : normal(random);
    });
  }

  const TensorSpec& spec() const { return spec_; }
  // From the first element to the last, gaps included.
  std::int64_t bytes() const { return Span(spec_) * ElementBytes(spec_.dtype); }
  const void* data() const { return bytes_.data(); }
  void* data() { return bytes_.data(); }

 private:
  static std::int64_t Span(const TensorSpec& spec) {
    if (spec.elements() == 0) return 0;
    const Dims strides = spec.EffectiveStrides();
    std::int64_t span = 1;
    for (std::size_t i = 0; i < strides.size(); ++i) span += (spec.shape[i] - 1) * strides[i];
    return span;
  }

  TensorSpec spec_;
  Guarded bytes_;
};

// `shape` contiguous, or with gaps before each dimension but the last: up to five times `gap` elements.
inline TensorSpec SpecOf(DataType dtype, Dims shape, Random* gaps = nullptr, std::int64_t gap = 1) {
  TensorSpec spec{.dtype = dtype, .shape = std::move(shape)};
  if (gaps == nullptr) return spec;
  std::int64_t stride = 1;
  spec.strides.assign(spec.shape.size(), 1);
  for (int i = static_cast<int>(spec.shape.size()) - 1; i >= 0; --i) {
    spec.strides[i] = stride;
    stride = stride * std::max<std::int64_t>(spec.shape[i], 1) + gap * Pick(*gaps, 0, 5);
  }
  return spec;
}

}  // namespace kernd::testing
