// A number of bytes that calls share. Reserving is compare-and-swap, never add-then-check, so that the sum never passes
// the limit, not even for a moment, and nobody is refused because of somebody else's failed try.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace kernd::core {

class ByteBudget {
 public:
  // Bytes held; gives them back when it goes. Must not outlive its budget.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Lease() { Reset(); }

    std::int64_t bytes() const { return bytes_; }
    // Holds `bytes` from now on. Giving back always succeeds; taking more may not, and then nothing changes.
    bool Resize(std::int64_t bytes);
    // Of what it holds, `bytes` as a lease of their own; 0 <= bytes <= bytes().
    Lease Split(std::int64_t bytes);
    void Reset();

   private:
    friend class ByteBudget;
    Lease(ByteBudget* budget, std::int64_t bytes) : budget_(budget), bytes_(bytes) {}
    ByteBudget* budget_ = nullptr;
    std::int64_t bytes_ = 0;
  };

  explicit ByteBudget(std::int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Never blocks. False: it does not fit now and `lease` is left alone. bytes >= 0.
  bool Reserve(std::int64_t bytes, Lease& lease);

  std::int64_t limit() const { return limit_; }
  std::int64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::int64_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  bool Take(std::int64_t bytes);
  void Give(std::int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_release); }

  const std::int64_t limit_;
  std::atomic<std::int64_t> used_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

}  // namespace kernd::core
