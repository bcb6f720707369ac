// Runs CUDA kernels on the CPU, for correctness alone: the same sources, compiled by the host's compiler with
// KERND_EMULATOR defined. Threads of a block are fibers that give way at barriers and at the warp's collectives; blocks
// run one after the other.
//
// Stricter than a device where that finds mistakes. What ends the process with a line that names block and thread:
//   a warp whose lanes meet at different collectives, or of which a lane has left; a barrier that some threads never
//   reach shared memory outside the block's, or misaligned what reads shared memory that an asynchronous copy is still
//   to fill, or that another warp wrote since the last barrier; what writes where another warp read or wrote since then
//   (accesses of the primitives, not plain C++) touching a guard page of guarded_memory.h
// Shared memory starts as NaN, and an asynchronous copy leaves NaN in its place until the wait that guarantees it.
//
// One launch at a time in a process thread; host threads do not share anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kernd::emulator {

inline constexpr unsigned kLanes = 32;

// dim3.
struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

// Which warp of a block goes next. Right kernels give the same bits in any order.
enum class Order : std::uint8_t {
  kAscending,  // each warp as far as it gets
  kDescending,
  kRandom,  // another one at every collective
  kVaried,  // each launch has the next of these three; so it is until SetOrder
};

// For the launches of this host thread from now on.
void SetOrder(Order order, std::uint64_t seed = 0);

// Of a grid, as if no more would fit: kernels that stride over their work give the same bits. Set for a test, and
// reset.
inline thread_local unsigned most_blocks = ~0u;

// What the launches of this host thread did since ResetCounters.
struct Counters {
  std::uint64_t launches = 0, blocks = 0, barriers = 0;
  std::uint64_t mma = 0;          // mma.sync instructions of a warp, whatever their shape
  std::uint64_t ldmatrix = 0;     // instructions of a warp
  std::uint64_t copies = 0;       // cp.async of a thread
  std::uint64_t wgmma = 0;        // instructions of a warp
  std::uint64_t bulk_copies = 0;  // cp.async.bulk.tensor
  // Beyond one: 8 rows of 16 bytes each take as many cycles as rows share the same four banks; of stmatrix, too.
  std::uint64_t ldmatrix_conflicts = 0;
};
Counters& Counts();
void ResetCounters();

// Calls `thread` as every thread of every block. `shared_bytes`: of dynamic shared memory. One-dimensional blocks,
// whole warps. `cluster`: blocks that run together, one beside the other along x.
void Run(const char* kernel, Index3 grid, Index3 block, std::size_t shared_bytes, const std::function<void()>& thread,
         unsigned cluster = 1);

// --- Of the running thread: for the device's names (cuda/cuda_runtime.h) and primitives (kernels/gpu/device)
// ----------

const Index3& ThreadIndex();
const Index3& BlockIndex();
const Index3& BlockDim();
const Index3& GridDim();

// __syncthreads; the other returns whether `value` was true in any thread.
void Barrier();
bool BarrierOr(bool value);

// All lanes of the warp call it with their own arguments; when the last has come, `all` is called once with those of
// lanes 0..31, and everyone goes on. Lanes must agree on `what`, compared as a pointer.
void Collective(const char* what, void* lane, void (*all)(void* const* lanes));

// The block's dynamic shared memory, aligned to 1024, and places in it by their distance from the start of that of its
// cluster's first block.
std::byte* SharedMemory();
std::uint32_t SharedOffset(const void* address);

// Checks an access of `bytes` (a multiple of 16, aligned to 16) by this thread and returns where it goes. `lanes`:
// those of its warp that must fence before the async proxy sees the bytes; 0: its own.
const std::byte* ReadShared(std::uint32_t offset, std::size_t bytes, const char* what);
std::byte* WriteShared(std::uint32_t offset, std::size_t bytes, const char* what, unsigned lanes = 0);

// cp.async of 16 bytes, read or, where they are not `there`, zero; commit; wait.
void CopyAsync(std::uint32_t to, const void* from, bool there);
void CommitCopies();
void WaitCopies(unsigned newest);  // for all committed groups but so many

// Ends the process with a line that says who and where, then the words.
[[noreturn]] void Fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace kernd::emulator
