#include "server/gpu/gather.h"

#include <cstdint>
#include <limits>

#include "kernd/kernels/error.h"

namespace kernd::gpu {
namespace {

constexpr std::int64_t kMaxPitch = std::numeric_limits<std::int32_t>::max();

}  // namespace

absl::Status Gather(Driver& driver, std::byte* to, const std::byte* from, const core::View& view, Stream stream) {
  // The last dimensions that lie behind one another are one row.
  std::int64_t row_bytes = view.element_bytes;
  std::size_t rank = view.shape.size();
  while (rank > 0 && (view.shape[rank - 1] == 1 || view.strides[rank - 1] * view.element_bytes == row_bytes)) {
    row_bytes *= view.shape[--rank];
  }
  // The next is one copy of many rows, where the driver takes it as such. Those before it are walked.
  std::int64_t rows = 1, pitch = row_bytes;
  if (rank > 0) {
    const std::int64_t stride = view.strides[rank - 1] * view.element_bytes;
    if (stride >= row_bytes && stride <= kMaxPitch) {
      rows = view.shape[--rank];
      pitch = stride;
    }
  }
  Dims at(rank, 0);
  for (;;) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < rank; ++i) offset += at[i] * view.strides[i];
    KERND_RETURN_IF_ERROR(driver.CopyRows(to, from + offset * view.element_bytes, pitch, row_bytes, rows, stream));
    to += rows * row_bytes;
    std::size_t i = rank;
    while (i > 0 && ++at[i - 1] == view.shape[i - 1]) at[--i] = 0;
    if (i == 0) return absl::OkStatus();
  }
}

}  // namespace kernd::gpu
