// What the process asks of the system before it begins. In this order, as the first things that main does.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace kernd::config {

// SIGTERM and SIGINT, which end the daemon in order.
sigset_t StopSignals();

// Holds them back, in this thread and in all that it starts, for a later sigwait. First of all, so that the moment in
// which one would end the process without a drain is as short as can be. Writing to a closed pipe is an error from now
// on, and no signal.
void HoldStopSignals();

// What was held back is taken again, by all threads, and ends the process at once: by that signal, or, as process 1 of
// a container, which no signal ends unless it sees to it, with exit code 128 + its number.
void EndAtOnceOnStopSignals();

// Threads of an OpenMP team that have nothing to do sleep, unless the user has decided otherwise by OMP_WAIT_POLICY or
// GOMP_SPINCOUNT. Starts the program anew if need be, as the same process; returns in the one that has the setting, or
// where the system does not allow it.
void LetTeamsSleep(char** argv);

// Makes the soft limit of open files the hard one. INVALID_ARGUMENT with value and rule where that is below `needed`.
absl::Status RaiseDescriptorLimit(std::int64_t needed);

// Keeps freed memory for the next call.
void SetUpHeap();

// Memory of the heap that the first calls would else be the first to touch, a page fault for each 4 KiB: `bytes` of it
// are the process's own from now on. Takes a quarter of a millisecond a MiB.
void TouchHeap(std::size_t bytes);

}  // namespace kernd::config
