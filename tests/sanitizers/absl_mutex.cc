// absl::Mutex and absl::Notification for ThreadSanitizer. The packaged library is not instrumented, so what its locks
// order would be reported as races. These definitions, in the test program, take the place of the library's: each lock
// is a std::mutex, which ThreadSanitizer knows, and conditions are looked at after each Unlock. Linked by the preset
// tsan alone. Members that nothing here uses are left out: a use of one would be the library's, and be noticed at once,
// as mu_ then is no word of its own.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace {

struct Lock {
  std::mutex mutex;
  std::condition_variable unlocked;
};

// The lock behind the word of a Mutex, made on its first use.
Lock& LockOf(std::atomic<std::intptr_t>& word) {
  std::intptr_t known = word.load(std::memory_order_acquire);
  if (known == 0) {
    auto* const made = new Lock;
    if (word.compare_exchange_strong(known, reinterpret_cast<std::intptr_t>(made))) return *made;
    delete made;
  }
  return *reinterpret_cast<Lock*>(known);
}

// With the lock held; it is held again on return.
template <typename Done>
bool Wait(Lock& lock, absl::Time deadline, const Done& done) {
  std::unique_lock<std::mutex> held(lock.mutex, std::adopt_lock);
  bool met = true;
  if (deadline == absl::InfiniteFuture()) {
    lock.unlocked.wait(held, done);
  } else {
    met = lock.unlocked.wait_until(held, absl::ToChronoTime(deadline), done);
  }
  held.release();
  return met;
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

Mutex::~Mutex() {
  delete reinterpret_cast<::Lock*>(mu_.load(std::memory_order_acquire));
}
void Mutex::Lock() {
  LockOf(mu_).mutex.lock();
}
void Mutex::Unlock() {
  ::Lock& lock = LockOf(mu_);
  lock.unlocked.notify_all();
  lock.mutex.unlock();
}
bool Mutex::TryLock() {
  return LockOf(mu_).mutex.try_lock();
}
void Mutex::Await(const Condition& condition) {
  Wait(LockOf(mu_), InfiniteFuture(), [&] { return condition.Eval(); });
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  return Wait(LockOf(mu_), deadline, [&] { return condition.Eval(); });
}
void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  Lock();
  return AwaitWithTimeout(condition, timeout);
}
void Mutex::AssertHeld() const {}

Notification::~Notification() {
  MutexLock lock(&mutex_);
}
void Notification::Notify() {
  MutexLock lock(&mutex_);
  notified_yet_.store(true, std::memory_order_release);
}
void Notification::WaitForNotification() const {
  mutex_.LockWhen(Condition(&HasBeenNotifiedInternal, &notified_yet_));
  mutex_.Unlock();
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  const bool notified = mutex_.LockWhenWithTimeout(Condition(&HasBeenNotifiedInternal, &notified_yet_), timeout);
  mutex_.Unlock();
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
