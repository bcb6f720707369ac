#include "kernels/emulator/tensor_copy.h"

#include <cstring>
#include <vector>

#include "kernels/emulator/block.h"

namespace kernd::emulator {
namespace {

constexpr unsigned kMaxDims = 5;
constexpr std::int64_t kElementBytes = 2;

// What a map says, in the place of the driver's own format.
struct TensorMap {
  std::uint32_t magic;
  std::uint32_t rank, span;  // span: of the swizzle; 16: none
  const std::byte* address;
  std::uint64_t dims[kMaxDims - 1];  // up to 2^32: the outermost one is packed beside
  std::uint64_t strides[kMaxDims - 1];
  std::uint32_t last_dim;  // minus 1
  std::uint16_t box[kMaxDims];
};
constexpr std::uint32_t kMagic = 0x74656e73;
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

std::uint64_t Dim(const TensorMap& map, unsigned i) {
  return i + 1 < map.rank ? map.dims[i] : std::uint64_t{map.last_dim} + 1;
}

// The box, row by row, as it arrives.
void Fill(const TensorMap& map, const std::vector<std::int32_t>& at, std::uint32_t to) {
  Block& block = TheBlock();
  std::int64_t rows = 1;
  for (unsigned i = 1; i < map.rank; ++i) rows *= map.box[i];
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* from = map.address;
    bool inside = true;
    std::int64_t rest = row;
    for (unsigned i = 1; i < map.rank; ++i) {
      const std::int64_t index = at[i] + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && index >= 0 && static_cast<std::uint64_t>(index) < Dim(map, i);
      from += index * static_cast<std::int64_t>(map.strides[i - 1]);
    }
    for (std::int64_t i = 0; i < map.box[0]; ++i) {
      const std::int64_t col = at[0] + i;
      const auto offset = to + static_cast<std::uint32_t>((row * map.box[0] + i) * kElementBytes);
      std::byte* const place = block.shared() + Swizzled(offset, map.span);
      if (inside && col >= 0 && static_cast<std::uint64_t>(col) < Dim(map, 0)) {
        std::memcpy(place, from + col * kElementBytes, kElementBytes);
      } else {
        std::memset(place, 0, kElementBytes);
      }
    }
  }
}

TensorMap MapOf(const CUtensorMap& bits) {
  TensorMap map;
  std::memcpy(&map, &bits, sizeof(map));
  return map;
}

// To one block.
void Load(std::uint32_t to, const TensorMap& map, unsigned rank, const std::int32_t* at, std::uint32_t mbarrier) {
  Block& block = TheBlock();
  if (map.magic != kMagic || map.rank != rank) Fail("cp.async.bulk.tensor.%ud with another kind of map", rank);
  if (to % (map.span == 16 ? 128 : 8 * map.span) != 0) {
    Fail("cp.async.bulk.tensor to %u: not where a swizzle of %u bytes begins", to, map.span);
  }
  std::int64_t bytes = kElementBytes;
  for (unsigned i = 0; i < rank; ++i) bytes *= map.box[i];
  Mbarrier& barrier = block.MbarrierAt(mbarrier, "cp.async.bulk.tensor");
  if (!barrier.fenced) Fail("cp.async.bulk.tensor on the mbarrier at %u, whose init was not fenced", mbarrier);
  const auto size = static_cast<std::size_t>(bytes);
  block.hazards.BeginAsyncWrite(block.warp(), to, size, "cp.async.bulk.tensor");
  std::memset(block.shared() + to, 0xff, size);
  ++block.counters.bulk_copies;
  block.Later([&block, &barrier, map, place = std::vector<std::int32_t>(at, at + rank), to, size] {
    Fill(map, place, to);
    const Actor actor = ActorOfMbarrier(barrier.index);
    block.hazards.EndAsyncWrite(actor, ++barrier.copies, to, size);
    barrier.coming.at[actor] = barrier.copies;
    CompleteBytes(barrier, static_cast<std::int64_t>(size));
  });
}

}  // namespace

void TensorLoad(std::uint32_t to, const CUtensorMap& map, unsigned rank, const std::int32_t* at,
                std::uint32_t mbarrier) {
  Load(to, MapOf(map), rank, at, mbarrier);
}

void TensorLoadToAll(std::uint32_t to, const CUtensorMap& map, unsigned rank, const std::int32_t* at,
                     std::uint32_t mbarrier, std::uint16_t blocks) {
  constexpr const char* kWhat = "cp.async.bulk.tensor";
  const Block& block = TheBlock();
  for (unsigned other = 0; other < 16; ++other) {
    if ((blocks >> other & 1) == 0) continue;
    Load(block.PlaceIn(other, to, kWhat), MapOf(map), rank, at, block.PlaceIn(other, mbarrier, kWhat));
  }
}

}  // namespace kernd::emulator

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  using kernd::emulator::kElementBytes;
  const auto aligned = [](const void* place, std::uintptr_t to) {
    return reinterpret_cast<std::uintptr_t>(place) % to == 0;
  };
  if (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16)
    return CUDA_ERROR_INVALID_VALUE;
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  if (!aligned(map, 64) || !aligned(address, 16) || rank == 0 || rank > kernd::emulator::kMaxDims)
    return CUDA_ERROR_INVALID_VALUE;
  const std::uint32_t span = 16u << static_cast<unsigned>(swizzle);
  const auto inner = static_cast<std::int64_t>(box[0]) * kElementBytes;
  if (inner % 16 != 0 || (span > 16 && inner > span)) return CUDA_ERROR_INVALID_VALUE;
  kernd::emulator::TensorMap own{
      .magic = kernd::emulator::kMagic, .rank = rank, .span = span, .address = static_cast<const std::byte*>(address)};
  for (unsigned i = 0; i < rank; ++i) {
    if (dims[i] == 0 || dims[i] > std::uint64_t{1} << 32) return CUDA_ERROR_INVALID_VALUE;
    if (box[i] == 0 || box[i] > 256 || element_strides[i] == 0 || element_strides[i] > 8)
      return CUDA_ERROR_INVALID_VALUE;
    if (element_strides[i] != 1) return CUDA_ERROR_INVALID_VALUE;  // the driver takes it; this emulator does not
    own.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i + 1 == rank) {
      own.last_dim = static_cast<std::uint32_t>(dims[i] - 1);
    } else {
      if (strides[i] % 16 != 0 || strides[i] >= std::uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
      own.dims[i] = dims[i];
      own.strides[i] = strides[i];
    }
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &own, sizeof(own));
  return CUDA_SUCCESS;
}
