#include "kernels/emulator/guarded_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/emulator/emulator.h"

namespace kernd::emulator {
namespace {

constexpr std::byte kPoison{0xff};
constexpr std::int64_t kMostToFill = std::int64_t{1} << 30;
constexpr std::int64_t kAlignment = 16;

std::int64_t Page() {
  static const std::int64_t page = sysconf(_SC_PAGESIZE);
  return page;
}

// A fault within a kernel becomes a line that says whose it was. On a stack of its own, as the fiber's may be the
// cause.
void NameTheFault() {
  static const bool once = [] {
    static char stack[64 << 10];
    const stack_t alternate{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof(stack)};
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) { Fail("touched %p, which it may not", info->si_addr); };
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  (void)once;
}

}  // namespace

GuardedMemory::GuardedMemory(std::int64_t bytes) : bytes_(bytes) {
  NameTheFault();
  const std::int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::int64_t inner = std::max(Page(), (padded + Page() - 1) / Page() * Page());
  mapped_ = inner + 2 * Page();
  void* const memory =
      mmap(nullptr, static_cast<std::size_t>(mapped_), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(static_cast<std::byte*>(memory) + Page(), static_cast<std::size_t>(inner),
                                       PROT_READ | PROT_WRITE) != 0) {
    std::perror("emulator: guarded memory");
    std::abort();
  }
  mapping_ = static_cast<std::byte*>(memory);
  if (bytes <= kMostToFill) {
    std::fill_n(mapping_ + Page(), inner, kPoison);
  } else {
    fill_ = std::byte{0};
  }
  data_ = mapping_ + Page() + inner - padded;
}

GuardedMemory::GuardedMemory(const void* from, std::int64_t bytes) : GuardedMemory(bytes) {
  if (bytes > 0) std::memcpy(data_, from, static_cast<std::size_t>(bytes));
}

GuardedMemory::~GuardedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<std::size_t>(mapped_));
}

GuardedMemory& GuardedMemory::operator=(GuardedMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  std::swap(fill_, other.fill_);
  return *this;
}

bool GuardedMemory::GuardsIntact() const {
  if (mapping_ == nullptr) return true;
  const auto intact = [this](const std::byte* from, const std::byte* to) {
    return std::all_of(from, to, [this](std::byte b) { return b == fill_; });
  };
  return intact(mapping_ + Page(), data_) && intact(data_ + bytes_, mapping_ + mapped_ - Page());
}

}  // namespace kernd::emulator
