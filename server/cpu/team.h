// How a call uses its threads: the OpenMP team of the calling thread, or none.
#pragma once

#include <omp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kernd::cpu {

inline constexpr std::int64_t kWorkspaceAlignment = 64;  // of workspace pointers, and of each thread's part

constexpr std::int64_t AlignUp(std::int64_t value, std::int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Set, from any thread, when nobody waits for the result any more: a kernel then leaves at its next step, with its
// results unfinished. Null: nothing stops it.
using Stop = const std::atomic<bool>*;

inline bool Stopped(Stop stop) {
  return stop != nullptr && stop->load(std::memory_order_relaxed);
}

// Calls work(thread, index) once for each index in [0, count), with 0 <= thread < threads. threads = 1 runs inline.
// Indices are handed out one at a time, so that a thread whose core is taken by somebody else holds nobody up. Once
// stopped, what is left is not called.
template <typename Work>
void ForEach(int threads, std::int64_t count, Stop stop, const Work& work) {
  if (threads <= 1 || count <= 1) {
    for (std::int64_t i = 0; i < count && !Stopped(stop); ++i) work(0, i);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t i = 0; i < count; ++i) {
      if (!Stopped(stop)) work(thread, i);
    }
  }
}

}  // namespace kernd::cpu
