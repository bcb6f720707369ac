#include "server/cpu/checks.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/non_finite.h"

namespace kernd::cpu {
namespace {

constexpr std::int64_t kGuard = 64;

std::byte Pattern(std::int64_t i) {
  return static_cast<std::byte>(i * 73 + 41);
}

// From the last byte on, so that not even the padding is written unseen.
std::int64_t BehindBytes(std::int64_t bytes) {
  return (kGuard - bytes % kGuard) % kGuard + kGuard;
}

template <typename F>
void ForEachGuardByte(std::byte* data, std::int64_t bytes, const F& f) {
  for (std::int64_t i = 0; i < kGuard; ++i) f(data[i - kGuard], Pattern(i));
  for (std::int64_t i = 0; i < BehindBytes(bytes); ++i) f(data[bytes + i], Pattern(i));
}

}  // namespace

core::HostBuffer AllocateGuarded(std::int64_t bytes) {
  if (bytes == 0) return {};
  const std::int64_t whole = kGuard + bytes + BehindBytes(bytes);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kGuard, static_cast<std::size_t>(whole)));
  if (memory == nullptr) return {};
  std::byte* const data = memory + kGuard;
  ForEachGuardByte(data, bytes, [](std::byte& byte, std::byte pattern) { byte = pattern; });
  return core::HostBuffer(
      data, bytes, [](std::byte* p, void*) { std::free(p - kGuard); }, nullptr);
}

bool GuardsAreWhole(const core::HostBuffer& result) {
  if (result.size() == 0) return true;
  bool whole = true;
  ForEachGuardByte(result.data(), result.size(),
                   [&whole](const std::byte& byte, std::byte pattern) { whole = whole && byte == pattern; });
  return whole;
}

absl::Status Judge(absl::Span<const core::NamedSpec> specs, absl::Span<const void* const> operands,
                   absl::Span<const TensorSpec> results, absl::Span<const char* const> result_names,
                   const std::string& prefix, core::Call& call) {
  const auto note = [&](const char* name, const TensorSpec& spec, const void* data, bool overrun) {
    const NonFinite found = data == nullptr ? NonFinite{} : CountNonFinite(spec.dtype, data, spec.elements());
    if (found == NonFinite{} && !overrun) return;
    call.findings.push_back({.tensor = prefix + name, .nan = found.nan, .inf = found.inf, .overrun = overrun});
  };
  for (std::size_t i = 0; i < specs.size(); ++i) {
    // A view is not looked at: its elements do not lie behind one another.
    if (specs[i].spec && specs[i].spec->strides.empty()) note(specs[i].name, *specs[i].spec, operands[i], false);
  }
  absl::Status status;
  const std::size_t first = call.results.size() - results.size();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const core::HostBuffer& buffer = call.results[first + i];
    // A result that stays in a session, or is in the client's memory, has no guards.
    const bool guarded = call.KeptAt(first + i) == nullptr && call.SharedAt(first + i) == nullptr;
    const bool overrun = guarded && !GuardsAreWhole(buffer);
    note(result_names[i], results[i], buffer.data(), overrun);
    if (!overrun) continue;
    status.Update(WithDetail(
        absl::InternalError(absl::StrCat("something wrote past the result \"", prefix, result_names[i], "\"")),
        {.reason = std::string(reason::kKernelFailed)}));
  }
  return status;
}

}  // namespace kernd::cpu
