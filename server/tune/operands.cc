#include "server/tune/operands.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference/convert.h"
#include "kernels/reference/random.h"

namespace kernd::tune {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::int64_t kDrawn = 1'048'573;
constexpr std::size_t kAlignment = 64;

std::vector<core::NamedSpec> SpecsOf(const core::Step& step) {
  return std::visit([](const auto& s) { return OperandSpecs(s); }, step);
}

void Fill(const TensorSpec& spec, std::uint32_t stream, std::byte* data) {
  const bool integer = spec.dtype == DataType::kI8 || spec.dtype == DataType::kI32;
  reference::Normal normal(kSeed, stream);
  const std::int64_t drawn = std::min(kDrawn, spec.elements());
  for (std::int64_t i = 0; i < drawn; ++i) {
    reference::Store(spec.dtype, (integer ? 32.0 : 1.0) * normal.Next(), data, i);
  }
  const std::int64_t bytes = spec.bytes(), period = drawn * ElementBytes(spec.dtype);
  for (std::int64_t at = period; at < bytes; at += period) {
    std::memcpy(data + at, data, static_cast<std::size_t>(std::min(period, bytes - at)));
  }
}

}  // namespace

std::int64_t OperandBytes(const core::Step& step) {
  std::int64_t bytes = 0;
  for (const core::NamedSpec& named : SpecsOf(step)) bytes += named.spec ? named.spec->bytes() : 0;
  return bytes;
}

absl::StatusOr<core::Step> WithNormals(core::Step step) {
  const std::vector<core::NamedSpec> specs = SpecsOf(step);
  std::vector<core::Operand*> operands;
  std::visit(
      [&](auto& s) {
        for (core::Operand* operand : s.operands()) operands.push_back(operand);
      },
      step);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i].spec || specs[i].spec->elements() == 0) continue;
    const TensorSpec& spec = *specs[i].spec;
    const auto size = static_cast<std::size_t>(spec.bytes());
    const std::shared_ptr<std::byte> data(
        static_cast<std::byte*>(std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment)),
        [](std::byte* memory) { std::free(memory); });
    if (data == nullptr) return absl::ResourceExhaustedError(absl::StrCat("the system has no ", size, " bytes"));
    Fill(spec, static_cast<std::uint32_t>(i), data.get());
    operands[i]->runs = {{data.get(), size}};
    operands[i]->owner = data;
  }
  return step;
}

}  // namespace kernd::tune
