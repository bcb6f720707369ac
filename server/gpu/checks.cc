#include "server/gpu/checks.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"

namespace kernd::gpu {
namespace {

// Room for the guards of two results, each as long as one can be.
constexpr std::int64_t kHostBytes = DeviceLayout::kCountsBytes + 3 * 2 * kDeviceAlignment;

// No value of any type again and again, so that no kernel writes it by chance.
constexpr std::array<std::byte, 2 * kDeviceAlignment> kPattern = [] {
  std::array<std::byte, 2 * kDeviceAlignment> pattern{};
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 73 + 41);
  return pattern;
}();

constexpr std::array<std::byte, DeviceLayout::kCountsBytes> kZeros{};

std::uint64_t* CountsOf(std::byte* block, const DeviceLayout& layout, std::size_t tensor) {
  return reinterpret_cast<std::uint64_t*>(block + layout.counts_at) + 2 * tensor;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checks>> Checks::Create(Driver& driver, Scan scan) {
  std::unique_ptr<Checks> checks(new Checks(driver, scan));
  KERND_ASSIGN_OR_RETURN(checks->host_, driver.AllocatePinned(kHostBytes));
  return checks;
}

Checks::~Checks() {
  if (host_ != nullptr) driver_.FreePinned(host_);
}

absl::Span<const std::byte> Checks::Guard(const DeviceLayout::Guard& guard) {
  return absl::MakeConstSpan(kPattern).first(static_cast<std::size_t>(guard.bytes));
}

absl::Span<const std::byte> Checks::Zeros() {
  return kZeros;
}

absl::Status Checks::ScanOperands(const CheckedTensors& tensors, const DeviceLayout& layout, std::byte* block,
                                  Stream stream) {
  for (std::size_t i = 0; i < tensors.operands.size(); ++i) {
    const CheckedTensor& t = tensors.operands[i];
    KERND_RETURN_IF_ERROR(
        scan_(t.type, block + t.at, t.elements, CountsOf(block, layout, i), driver_.device(), stream));
  }
  return absl::OkStatus();
}

absl::Status Checks::ScanResults(const CheckedTensors& tensors, const DeviceLayout& layout, std::byte* block,
                                 Stream stream) {
  for (std::size_t i = 0; i < tensors.results.size(); ++i) {
    const CheckedTensor& t = tensors.results[i];
    KERND_RETURN_IF_ERROR(scan_(t.type, block + t.at, t.elements, CountsOf(block, layout, tensors.operands.size() + i),
                                driver_.device(), stream));
  }
  std::byte* to = host_;
  KERND_RETURN_IF_ERROR(driver_.CopyOut(to, block + layout.counts_at, DeviceLayout::kCountsBytes, stream));
  to += DeviceLayout::kCountsBytes;
  for (const DeviceLayout::Guard& guard : layout.guards) {
    KERND_RETURN_IF_ERROR(driver_.CopyOut(to, block + guard.at, guard.bytes, stream));
    to += guard.bytes;
  }
  return absl::OkStatus();
}

absl::Status Checks::Judge(const CheckedTensors& tensors, const DeviceLayout& layout, const std::string& prefix,
                           core::Call& call) const {
  absl::InlinedVector<bool, 2> overrun(tensors.results.size(), false);
  const std::byte* guard_bytes = host_ + DeviceLayout::kCountsBytes;
  for (std::size_t i = 0; i < layout.guards.size(); ++i) {
    const absl::Span<const std::byte> expected = Guard(layout.guards[i]);
    const auto [wrong, at] = std::mismatch(expected.begin(), expected.end(), guard_bytes);
    guard_bytes += expected.size();
    if (wrong == expected.end()) continue;
    // Guard i lies between two results: that one wrote past its end is likelier near it.
    const bool behind =
        i == layout.guards.size() - 1 || (i > 0 && wrong - expected.begin() < layout.guards[i].bytes / 2);
    overrun[behind ? i - 1 : i] = true;
  }
  const auto* const counts = reinterpret_cast<const std::uint64_t*>(host_);
  absl::Status status;
  const auto note = [&](const CheckedTensor& tensor, std::size_t at, bool past) {
    core::Finding finding{.tensor = prefix + tensor.name,
                          .nan = static_cast<std::int64_t>(counts[2 * at]),
                          .inf = static_cast<std::int64_t>(counts[2 * at + 1]),
                          .overrun = past};
    if (past) {
      status.Update(
          WithDetail(absl::InternalError(absl::StrCat("something wrote past the result \"", finding.tensor, "\"")),
                     {.reason = std::string(reason::kKernelFailed)}));
    }
    if (finding.nan != 0 || finding.inf != 0 || past) call.findings.push_back(std::move(finding));
  };
  for (std::size_t i = 0; i < tensors.operands.size(); ++i) note(tensors.operands[i], i, false);
  for (std::size_t i = 0; i < tensors.results.size(); ++i) {
    note(tensors.results[i], tensors.operands.size() + i, overrun[i]);
  }
  return status;
}

}  // namespace kernd::gpu
