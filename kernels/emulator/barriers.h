// Barriers in shared memory and by number, and what else threads of a block agree on from SM 9.0 on. By the PTX ISA
// ("Parallel Synchronization and Communication Instructions").
//
// What ends the process: an mbarrier that was not initialised, or whose init a user cannot know of; more arrivals than
// a phase has; more bytes than a transaction count holds; a wait that nothing can end; copies that complete on an
// mbarrier whose init was not fenced; the same warp twice at a named barrier, or warps that disagree on its threads;
// setmaxnreg with a number that it does not take, in the wrong direction, or without its warpgroup; an arrival at a
// block that has left its cluster.
#pragma once

#include <cstdint>

namespace kernd::emulator {

// mbarrier.init, .arrive, .arrive.expect_tx, and a loop of .try_wait.parity: until the phase of that parity is over.
// Places are offsets in shared memory.
void MbarrierInit(std::uint32_t at, unsigned arrivals);
void MbarrierArrive(std::uint32_t at);
void MbarrierArriveExpect(std::uint32_t at, std::uint32_t bytes);
void MbarrierWait(std::uint32_t at, unsigned parity);
// mbarrier.try_wait.parity that does not wait.
bool MbarrierTest(std::uint32_t at, unsigned parity);
// fence.mbarrier_init.
void FenceMbarrierInit();
// fence.proxy.async.
void FenceProxyAsync();

// bar.sync and bar.arrive of a warp; `threads`: of all warps that come, waiting or not.
void NamedSync(unsigned id, unsigned threads);
void NamedArrive(unsigned id, unsigned threads);

// %cluster_ctarank; barrier.cluster.arrive and .wait; mbarrier.arrive on the barrier at the same place of another
// block.
unsigned ClusterRank();
void ClusterSync();
void MbarrierArriveAt(std::uint32_t at, unsigned rank);

// setmaxnreg.inc or .dec: the warp waits until the block has that many registers for it.
void SetMaxRegisters(unsigned count, bool increase);

// elect.sync: true in one lane of the warp, in another one with another order of warps.
bool ElectOne();

}  // namespace kernd::emulator
