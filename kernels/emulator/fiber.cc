// Switches by hand on x86-64, where a switch is a dozen instructions; by ucontext, two system calls each, elsewhere.
#include "kernels/emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace kernd::emulator {

#if defined(__x86_64__)

// Saves what a callee must keep, leaves the stack pointer at *from, and goes on where `to` was left.
extern "C" void KerndSwitchStack(void** from, void* to);
asm(R"(
.text
.globl KerndSwitchStack
.type KerndSwitchStack, @function
KerndSwitchStack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size KerndSwitchStack, .-KerndSwitchStack
)");

struct Fiber::Context {
  void* inside = nullptr;
  void* outside = nullptr;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;

  static inline thread_local Context* starting = nullptr;
  static void Enter() {
    Context* const self = starting;
    self->entry(self->argument);
    std::abort();
  }
};

void Fiber::Start(void (*entry)(void*), void* argument) {
  context_->entry = entry;
  context_->argument = argument;
  // Six registers, the address of Enter, and the one that a call would have left, which is 8 bytes off 16.
  auto* top = reinterpret_cast<void**>(static_cast<char*>(stack_) + kStackBytes) - 1;
  *top = nullptr;
  *--top = reinterpret_cast<void*>(&Context::Enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context_->inside = top;
}

void Fiber::Resume() {
  Context::starting = context_;
  KerndSwitchStack(&context_->outside, context_->inside);
}

void Fiber::Yield() {
  KerndSwitchStack(&context_->inside, context_->outside);
}

#else

struct Fiber::Context {
  ucontext_t inside, outside;
};

void Fiber::Start(void (*entry)(void*), void* argument) {
  getcontext(&context_->inside);
  context_->inside.uc_stack = {.ss_sp = stack_, .ss_size = kStackBytes};
  const auto both = reinterpret_cast<std::uintptr_t>(argument), call = reinterpret_cast<std::uintptr_t>(entry);
  makecontext(&context_->inside, reinterpret_cast<void (*)()>(+[](unsigned f0, unsigned f1, unsigned a0, unsigned a1) {
    const auto join = [](unsigned low, unsigned high) { return low | static_cast<std::uintptr_t>(high) << 32; };
    reinterpret_cast<void (*)(void*)>(join(f0, f1))(reinterpret_cast<void*>(join(a0, a1)));
  }),
              4, static_cast<unsigned>(call), static_cast<unsigned>(call >> 32), static_cast<unsigned>(both),
              static_cast<unsigned>(both >> 32));
}

void Fiber::Resume() {
  swapcontext(&context_->outside, &context_->inside);
}

void Fiber::Yield() {
  swapcontext(&context_->inside, &context_->outside);
}

#endif

// A page below the stack that nobody may touch: a stack that is too small ends the process rather than its neighbour.
Fiber::Fiber() : context_(new Context) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* const memory =
      mmap(nullptr, page + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
    std::perror("emulator: a fiber's stack");
    std::abort();
  }
  stack_ = static_cast<char*>(memory) + page;
}

Fiber::~Fiber() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  munmap(static_cast<char*>(stack_) - page, page + kStackBytes);
  delete context_;
}

}  // namespace kernd::emulator
