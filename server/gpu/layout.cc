#include "server/gpu/layout.h"

#include <optional>

#include "kernd/kernels/gpu.h"

namespace kernd::gpu {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 62;

// Places buffers one after the other.
class Cursor {
 public:
  std::int64_t Place(std::int64_t bytes) {
    const std::int64_t at = end_;
    fits_ = fits_ && bytes >= 0 && bytes <= kMost - kDeviceAlignment - end_;
    if (fits_) end_ += (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    return at;
  }
  bool fits() const { return fits_; }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = 0;
  bool fits_ = true;
};

}  // namespace

std::optional<DeviceLayout> LayOut(absl::Span<const std::int64_t> operand_bytes, std::int64_t table_bytes,
                                   absl::Span<const std::int64_t> result_bytes, std::int64_t workspace_bytes,
                                   Guarded guarded) {
  DeviceLayout layout;
  Cursor cursor;
  for (const std::int64_t bytes : operand_bytes) {
    layout.operand_at.push_back(bytes < 0 ? DeviceLayout::kAbsent : cursor.Place(bytes));
  }
  if (table_bytes > 0) layout.tables_at = cursor.Place(table_bytes);
  layout.input_bytes = cursor.end();
  std::int64_t last = cursor.end();  // byte behind the result before, or behind the operands
  const auto guard = [&] {
    if (guarded == Guarded::kNo) return;
    cursor.Place(kDeviceAlignment);
    layout.guards.push_back({last, cursor.end() - last});
  };
  for (const std::int64_t bytes : result_bytes) {
    if (bytes < 0) {
      layout.result_at.push_back(DeviceLayout::kAbsent);
      continue;
    }
    guard();
    const std::int64_t start = cursor.end();
    layout.result_at.push_back(cursor.Place(bytes));
    layout.output_bytes += cursor.end() - start;
    last = start + bytes;
  }
  if (!layout.guards.empty()) guard();
  if (guarded == Guarded::kYes) layout.counts_at = cursor.Place(DeviceLayout::kCountsBytes);
  layout.workspace_at = cursor.Place(workspace_bytes);
  layout.workspace_bytes = cursor.end() - layout.input_bytes - layout.output_bytes;
  if (!cursor.fits()) return std::nullopt;
  return layout;
}

}  // namespace kernd::gpu
