// Stacks that take turns within one host thread.
#pragma once

#include <cstddef>

namespace kernd::emulator {

// A function that runs on a stack of its own until it gives way, and goes on when it is resumed.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Makes `entry(argument)` what the next Resume starts. It must not return: its last act is Yield.
  void Start(void (*entry)(void*), void* argument);
  // From outside: runs the fiber until it yields. From inside: back to there.
  void Resume();
  void Yield();

 private:
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;

  void* stack_;
  struct Context;  // what the switch keeps
  Context* context_;
};

}  // namespace kernd::emulator
