// Memory that this process and a daemon on the same host both see.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace kernd::client {

class SharedMemory;

// Memory of a session (Session::Share). An operand that lies in it is not sent, and a result whose ResultPlace::into
// does is written there by the daemon, in calls of that session; offsets are best multiples of 8, as others travel. All
// zero at first. Whoever writes to it while a call reads it changes what is computed.
//
// Owns it: destroying it tells the daemon so, waiting at most a second, and takes the memory out of this process. No
// call may use it then.
class SharedBuffer {
 public:
  ~SharedBuffer();
  SharedBuffer(SharedBuffer&&) noexcept;
  SharedBuffer& operator=(SharedBuffer&&) noexcept;

  // Page-aligned.
  std::span<std::byte> bytes() const;

  // The same as `T`, as many as there are whole ones.
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(bytes().data()), bytes().size() / sizeof(T)};
  }

 private:
  friend class Session;
  explicit SharedBuffer(std::unique_ptr<SharedMemory> memory);

  std::unique_ptr<SharedMemory> memory_;
};

}  // namespace kernd::client
