#include "kernels/emulator/wgmma.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/emulator/block.h"
#include "kernels/emulator/tensor_copy.h"

namespace kernd::emulator {
namespace {

constexpr unsigned kDepth = 16, kMaxN = 256, kRows = 16;  // rows: of a warp

// An operand in shared memory, as its descriptor says.
struct Operand {
  std::uint32_t start, leading, stride, span;  // span: of the swizzle; 16: none

  // `base`: where the block's shared memory begins. A descriptor has the last 18 bits of a place in it.
  static Operand Of(std::uint64_t descriptor, std::uint32_t base) {
    const auto field = [descriptor](unsigned from, unsigned bits) {
      return static_cast<std::uint32_t>(descriptor >> from & ((1u << bits) - 1));
    };
    if (field(49, 3) != 0) Fail("wgmma: base offset %u: the emulator has 0", field(49, 3));
    const std::uint32_t spans[] = {16, 128, 64, 32};
    const std::uint32_t start = base + ((field(0, 14) * 16 - base) & 0x3ffff);
    return {start, field(16, 14) * 16, field(32, 14) * 16, spans[field(62, 2)]};
  }

  // Byte offset of element (row, k), row being along M or N, as the canonical layouts have it.
  std::uint32_t At(bool mn_major, std::uint32_t row, std::uint32_t k) const {
    return mn_major ? MnMajor(row, k) : KMajor(row, k);
  }
  std::uint32_t KMajor(std::uint32_t row, std::uint32_t k) const {
    const std::uint32_t in_row = 2 * k;
    const std::uint32_t along = span == 16 ? in_row / 16 * leading + in_row % 16 : in_row;
    return Swizzled(start + row / 8 * stride + row % 8 * span + along, span);
  }
  std::uint32_t MnMajor(std::uint32_t row, std::uint32_t k) const {
    const std::uint32_t in_row = 2 * row;
    // Without a swizzle the two offsets change roles.
    const std::uint32_t across = span == 16 ? stride : leading, down = span == 16 ? leading : stride;
    return Swizzled(start + in_row / span * across + k / 8 * down + k % 8 * span + in_row % span, span);
  }
};

// What all warps of a warpgroup must agree on.
struct Shape {
  Half type;
  unsigned n;
  bool a_registers, a_mn_major, b_mn_major, accumulate;
  std::uint64_t a, b;
  bool operator==(const Shape&) const = default;
};

// An instruction of a warpgroup, and B once a warp has needed it: the others see the same.
struct Shared {
  Shape shape;
  std::vector<float> b;  // [k, n]
  unsigned columns = 0;  // of B up to the last that is not all zero
};

struct Op {
  Shape shape;
  std::shared_ptr<Shared> shared;
  float* d;                          // of lane 0: the accumulator's name
  std::uint32_t* a;                  // of lane 0, or null
  std::vector<std::uint32_t> reads;  // granules of shared memory
};

// Registers of all lanes that instructions own: what they hold, and where they were.
struct Held {
  unsigned count = 0, ops = 0;
  std::vector<void*> places;
  std::vector<std::uint32_t> values;  // [lane, register]
};

struct WarpState {
  bool fenced = false;
  std::uint64_t issued = 0, done = 0;
  std::vector<Op> open;
  std::deque<std::vector<Op>> groups;
  std::deque<std::pair<const void*, Held>> held;
};

Held* Find(WarpState& warp, const void* place) {
  for (auto& [name, held] : warp.held) {
    if (name == place) return &held;
  }
  return nullptr;
}

constexpr std::uint32_t kPoisonWord = 0xffffffff;  // NaN

void CheckUntouched(const Held& held) {
  for (const void* place : held.places) {
    for (unsigned i = 0; i < held.count; ++i) {
      if (static_cast<const std::uint32_t*>(place)[i] != kPoisonWord) {
        Fail("registers of wgmma were written before it was waited for");
      }
    }
  }
}

// Takes the registers, or counts one user more.
void Hold(WarpState& warp, std::vector<void*> places, unsigned count) {
  Held* held = Find(warp, places[0]);
  if (held == nullptr) {
    held = &warp.held.emplace_back(places[0], Held{.count = count}).second;
    held->values.resize(std::size_t{kLanes} * count);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      std::memcpy(&held->values[lane * count], places[lane], count * 4);
      std::memset(places[lane], 0xff, count * 4);
    }
    held->places = std::move(places);
  } else {
    CheckUntouched(*held);
    if (held->count != count) Fail("wgmma: accumulators in flight have another shape");
  }
  ++held->ops;
}

void Drop(WarpState& warp, const void* place) {
  Held& held = *Find(warp, place);
  CheckUntouched(held);
  if (--held.ops > 0) return;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    std::memcpy(held.places[lane], &held.values[lane * held.count], held.count * 4);
  }
  std::erase_if(warp.held, [place](const auto& entry) { return entry.first == place; });
}

}  // namespace

struct WarpgroupState {
  std::vector<WarpState> warps;
  std::vector<std::deque<std::shared_ptr<Shared>>> log;  // of each warpgroup: what was issued, from `first` on
  std::vector<std::uint64_t> first;
};

namespace {

WarpgroupState& All() {
  Block& block = TheBlock();
  if (block.warpgroups == nullptr) {
    block.warpgroups = std::make_unique<WarpgroupState>();
    const std::size_t warps = block.warps();
    block.warpgroups->warps.resize(warps);
    block.warpgroups->log.resize((warps + 3) / 4);
    block.warpgroups->first.resize((warps + 3) / 4);
  }
  return *block.warpgroups;
}

float InShared(Half type, std::uint32_t offset) {
  std::uint16_t bits;
  std::memcpy(&bits, TheBlock().shared() + offset, 2);
  return ValuesOf(type)[bits];
}

// Does the instruction for the 16 rows of the warp.
void Multiply(WarpState& warp, const Op& op, unsigned in_group) {
  static thread_local float a[kRows][kDepth];
  static thread_local double sum[kMaxN];
  const Shape& s = op.shape;
  const unsigned n = s.n;
  std::vector<float>& b = op.shared->b;
  if (b.empty()) {
    const Operand from = Operand::Of(s.b, TheBlock().base());
    b.resize(std::size_t{kDepth} * n);
    for (unsigned k = 0; k < kDepth; ++k) {
      for (unsigned j = 0; j < n; ++j) {
        b[k * n + j] = InShared(s.type, from.At(s.b_mn_major, j, k));
        if (b[k * n + j] != 0) op.shared->columns = std::max(op.shared->columns, j + 1);
      }
    }
  }
  if (s.a_registers) {
    const Held& held = *Find(warp, op.a);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      for (unsigned i = 0; i < 8; ++i) {
        const unsigned r = i / 2, e = i % 2;
        const std::uint32_t bits = held.values[lane * 4 + r] >> (16 * e);
        a[lane / 4 + 8 * (r % 2)][2 * (lane % 4) + e + 8 * (r / 2)] = ValuesOf(s.type)[bits & 0xffff];
      }
    }
  } else {
    const Operand from_a = Operand::Of(s.a, TheBlock().base());
    for (unsigned i = 0; i < kRows; ++i) {
      for (unsigned k = 0; k < kDepth; ++k) {
        a[i][k] = InShared(s.type, from_a.At(s.a_mn_major, kRows * in_group + i, k));
      }
    }
  }
  Held& d = *Find(warp, op.d);
  auto* const values = reinterpret_cast<float*>(d.values.data());
  for (unsigned i = 0; i < kRows; ++i) {
    const auto at = [&](unsigned j) {
      const unsigned lane = i % 8 * 4 + j % 8 / 2;
      return values + lane * d.count + 4 * (j / 8) + 2 * (i / 8) + j % 2;
    };
    // Padding is most of what small problems multiply: columns of zeros add nothing to what is finite.
    const bool finite = std::all_of(a[i], a[i] + kDepth, [](float x) { return std::isfinite(x); });
    const unsigned columns = finite ? op.shared->columns : n;
    for (unsigned j = 0; j < n; ++j) sum[j] = s.accumulate ? *at(j) : 0.0;
    for (unsigned k = 0; k < kDepth; ++k) {
      for (unsigned j = 0; j < columns; ++j) sum[j] += a[i][k] * static_cast<double>(b[k * n + j]);
    }
    for (unsigned j = 0; j < n; ++j) *at(j) = static_cast<float>(sum[j]);
  }
}

struct Lane {
  Shape shape;
  float* d;
  std::uint32_t* a;
};

void IssueOp(void* const* lanes) {
  Block& block = TheBlock();
  WarpgroupState& all = All();
  WarpState& warp = all.warps[block.warp()];
  const unsigned group = block.warp() / 4, in_group = block.warp() % 4;
  if (group * 4 + 4 > all.warps.size()) Fail("wgmma in a warpgroup that is not whole");
  const auto at = [&](unsigned i) -> const Lane& { return *static_cast<const Lane*>(lanes[i]); };
  const Shape& shape = at(0).shape;
  std::vector<void*> d(kLanes), a(kLanes);
  for (unsigned i = 0; i < kLanes; ++i) {
    if (!(at(i).shape == shape)) Fail("wgmma: lanes differ");
    d[i] = at(i).d;
    a[i] = at(i).a;
  }
  if (shape.n % 8 != 0 || shape.n == 0 || shape.n > kMaxN) Fail("wgmma of %u columns", shape.n);
  if (!warp.fenced) Fail("wgmma without wgmma.fence since its registers came back");
  // The four warps issue the same.
  std::deque<std::shared_ptr<Shared>>& log = all.log[group];
  const std::uint64_t index = warp.issued++ - all.first[group];
  if (index == log.size()) log.push_back(std::make_shared<Shared>(shape));
  const std::shared_ptr<Shared> shared = log[index];
  if (!(shared->shape == shape)) Fail("wgmma: warps of the warpgroup differ");
  std::uint64_t least = warp.issued;
  for (unsigned w = 4 * group; w < 4 * group + 4; ++w) least = std::min(least, all.warps[w].issued);
  while (all.first[group] < least) {
    log.pop_front();
    ++all.first[group];
  }
  Op op{shape, shared, at(0).d, at(0).a, {}};
  Hold(warp, std::move(d), shape.n / 2);
  if (shape.a_registers) Hold(warp, std::move(a), 4);
  // Chunks of 8 elements, rows from `first` on.
  const auto read = [&](const Operand& from, bool mn_major, unsigned first, unsigned rows) {
    for (unsigned i = 0; i < rows; i += mn_major ? 8 : 1) {
      for (unsigned k = 0; k < kDepth; k += mn_major ? 1 : 8) op.reads.push_back(from.At(mn_major, first + i, k));
    }
  };
  read(Operand::Of(shape.b, block.base()), shape.b_mn_major, 0, shape.n);
  if (!shape.a_registers) read(Operand::Of(shape.a, block.base()), shape.a_mn_major, kRows * in_group, kRows);
  for (const std::uint32_t offset : op.reads) block.hazards.BeginAsyncRead(block.warp(), offset, "wgmma");
  warp.open.push_back(std::move(op));
  ++block.counters.wgmma;
}

}  // namespace

void WgmmaFence() {
  Collective("wgmma.fence", nullptr, [](void* const*) { All().warps[TheBlock().warp()].fenced = true; });
}

void Wgmma(Half type, unsigned n, float* d, std::uint32_t* a, std::uint64_t a_descriptor, std::uint64_t b_descriptor,
           bool a_mn_major, bool b_mn_major, bool accumulate) {
  Lane lane{{type, n, a != nullptr, a_mn_major, b_mn_major, accumulate, a_descriptor, b_descriptor}, d, a};
  Collective("wgmma.mma_async", &lane, IssueOp);
}

void WgmmaCommit() {
  Collective("wgmma.commit_group", nullptr, [](void* const*) {
    WarpState& warp = All().warps[TheBlock().warp()];
    warp.groups.push_back(std::move(warp.open));
    warp.open.clear();
  });
}

void WgmmaWait(unsigned newest) {
  Block& block = TheBlock();
  Collective("wgmma.wait_group", nullptr, [](void* const*) {});
  WarpgroupState& all = All();
  WarpState& warp = all.warps[block.warp()];
  // The tensor cores work for the whole warpgroup: nothing is done before its other warps have issued the same.
  std::uint64_t end = warp.done;
  for (std::size_t i = 0; i + newest < warp.groups.size(); ++i) end += warp.groups[i].size();
  const unsigned first = block.warp() / 4 * 4;
  block.WaitUntil(
      [&] {
        for (unsigned w = first; w < std::min<std::size_t>(first + 4, all.warps.size()); ++w) {
          if (all.warps[w].issued < end) return false;
        }
        return true;
      },
      "wgmma.wait_group", newest);
  unsigned wanted = newest;
  Collective("wgmma.wait_group", &wanted, [](void* const* lanes) {
    Block& the = TheBlock();
    WarpState& own = All().warps[the.warp()];
    while (own.groups.size() > *static_cast<const unsigned*>(lanes[0])) {
      for (const Op& op : own.groups.front()) {
        Multiply(own, op, the.warp() % 4);
        for (const std::uint32_t offset : op.reads) the.hazards.EndAsyncRead(the.warp(), offset);
        Drop(own, op.d);
        if (op.a != nullptr) Drop(own, op.a);
        ++own.done;
        own.fenced = false;
      }
      own.groups.pop_front();
    }
  });
}

void LeaveWarpgroup(Block& block) {
  if (block.warpgroups == nullptr) return;
  const WarpState& warp = block.warpgroups->warps[block.warp()];
  if (!warp.open.empty() || !warp.groups.empty()) Fail("left with wgmma in flight");
}

void EndWarpgroups(Block& block) {
  if (block.warpgroups == nullptr) return;
  const WarpgroupState& all = *block.warpgroups;
  for (std::size_t w = 0; w < all.warps.size(); ++w) {
    if (all.warps[w].issued != all.warps[w / 4 * 4].issued) Fail("warps of a warpgroup issued different wgmmas");
  }
  block.warpgroups.reset();
}

Block::Block() = default;
Block::~Block() = default;

}  // namespace kernd::emulator
