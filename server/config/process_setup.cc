#include "server/config/process_setup.h"

#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace kernd::config {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

void HoldStopSignals() {
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

namespace {

// Its disposition is the default one again when this begins.
void EndAtOnce(int signal_number) {
  raise(signal_number);
  _exit(128 + signal_number);  // only process 1 comes here
}

}  // namespace

void EndAtOnceOnStopSignals() {
  struct sigaction action {};
  action.sa_handler = EndAtOnce;
  action.sa_flags = SA_RESETHAND | SA_NODEFER;
  for (const int signal_number : {SIGTERM, SIGINT}) sigaction(signal_number, &action, nullptr);
  const sigset_t set = StopSignals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// A thread of libgomp that waits for the rest of its team spins, for milliseconds, unless libgomp counts more
// threads than CPUs; it does not see a container's quota, nor the neighbours. With a quota of 2 CPUs on a machine of
// more, a product of two 192 x 192 matrices then took 7 to 16 ms (44 beside two busy loops) in place of 0.15 to 0.18,
// and 10 ms of processor time in place of 0.7. Where libgomp does count rightly, sleeping costs a call some 10 us at
// most.
//
// libgomp reads its environment once, in a constructor that runs before any of ours: a preinit function of the program
// would come first, but before the C library has an environment to change. So the variable is set and the program
// starts again, which costs about 20 ms.
//   /proc/self/exe is this very file, also when it was deleted or replaced since. Where there is no /proc, or exec is
//   forbidden, teams spin, and all is well otherwise.
//   The name by which the kernel started a program says whether this is the second start, so that an environment which
//   something resets at each start makes no loop.
//   Held-back signals stay pending over an exec.
//   Not for a program with raised privileges, and not under valgrind, which would be left behind: whoever runs it sets
//   the variable.
void LetTeamsSleep(char** argv) {
  constexpr char kSelf[] = "/proc/self/exe";
  const auto* const started_as = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (started_as != nullptr && std::string_view(started_as) == kSelf) {
    // The kernel names the process after the file: "exe". Tools like top should see the program's name.
    prctl(PR_SET_NAME, program_invocation_short_name);
    return;
  }
  const char* const preload = std::getenv("LD_PRELOAD");
  const bool in_valgrind = preload != nullptr && std::strstr(preload, "/vgpreload_") != nullptr;
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr ||
      getauxval(AT_SECURE) != 0 || in_valgrind || setenv("OMP_WAIT_POLICY", "passive", 0) != 0) {
    return;
  }
  execv(kSelf, argv);
}

absl::Status RaiseDescriptorLimit(std::int64_t needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max >= static_cast<rlim_t>(needed)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the limit of open files (ulimit -Hn) is ", limit.rlim_max, ": must be at least ", needed));
}

// Buffers of tensors come and go with every call. By default glibc gives them back to the system each time, and the
// page faults of the next call then cost several times the call itself. TrimPool gives them back on request.
void SetUpHeap() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 16 << 20);
#endif
}

void TouchHeap(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  auto* const memory = static_cast<volatile char*>(std::malloc(bytes));
  if (memory == nullptr) return;
  for (std::size_t i = 0; i < bytes; i += kPage) memory[i] = 1;
  std::free(const_cast<char*>(memory));
}

}  // namespace kernd::config
