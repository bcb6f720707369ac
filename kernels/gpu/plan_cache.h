// What is expensive to make and asked for again: values by key, made once, the least recently used thrown away.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/status/statusor.h"

namespace kernd {

// Key: equality and AbslHashValue. Thread-safe. Requests decide the keys, so the number of values is bounded; a value
// that somebody still holds outlives its place.
template <typename Key, typename Value>
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}
  PlanCache(const PlanCache&) = delete;
  PlanCache& operator=(const PlanCache&) = delete;

  // The value of `key`. Where there is none, `make() -> absl::StatusOr<Value>` runs in the calling thread, without a
  // lock; whoever else wants that key waits for it. Its errors go to the caller and are not kept: of those who waited,
  // the next one tries again.
  template <typename Make>
  absl::StatusOr<std::shared_ptr<const Value>> Get(const Key& key, const Make& make) {
    std::unique_lock lock(mutex_);
    for (auto at = index_.find(key); at != index_.end(); at = index_.find(key)) {
      if (at->second->value != nullptr) {
        entries_.splice(entries_.begin(), entries_, at->second);
        return at->second->value;
      }
      made_.wait(lock);
    }
    entries_.push_front({.key = key});
    const auto own = entries_.begin();
    index_.emplace(key, own);

    lock.unlock();
    absl::StatusOr<Value> value = make();
    lock.lock();
    made_.notify_all();
    if (!value.ok()) {
      index_.erase(key);
      entries_.erase(own);
      return std::move(value).status();
    }
    std::shared_ptr<const Value> result = std::make_shared<const Value>(*std::move(value));
    own->value = result;
    Trim();
    return result;
  }

  std::size_t size() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const Value> value;  // null while it is being made
  };

  // What is being made stays, so the bound may be exceeded by the number of threads.
  void Trim() {
    for (auto at = entries_.end(); entries_.size() > capacity_ && at != entries_.begin();) {
      --at;
      if (at->value == nullptr) continue;
      index_.erase(at->key);
      at = entries_.erase(at);
    }
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable made_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<Key, typename std::list<Entry>::iterator, absl::Hash<Key>> index_;
};

}  // namespace kernd
