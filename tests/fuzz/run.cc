#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <new>

#include "tests/fuzz/fuzz.h"

// Memory is counted where C++ asks for it; what was asked for elsewhere is not, and is small. The whole family is
// replaced, so that AddressSanitizer sees each block leave as it came.
namespace {

std::atomic<std::int64_t> held = 0;
std::atomic<std::int64_t> peak = 0;

void* Take(std::size_t bytes) noexcept {
  void* const block = std::malloc(std::max<std::size_t>(bytes, 1));
  if (block == nullptr) return nullptr;
  const std::int64_t now = held += static_cast<std::int64_t>(malloc_usable_size(block));
  if (now > peak) peak = now;
  return block;
}

void* TakeOrThrow(std::size_t bytes) {
  void* const block = Take(bytes);
  return block != nullptr ? block : throw std::bad_alloc();
}

void Give(void* block) noexcept {
  held -= static_cast<std::int64_t>(malloc_usable_size(block));
  std::free(block);
}

}  // namespace

void* operator new(std::size_t bytes) {
  return TakeOrThrow(bytes);
}
void* operator new[](std::size_t bytes) {
  return TakeOrThrow(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return Take(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return Take(bytes);
}
void operator delete(void* block) noexcept {
  Give(block);
}
void operator delete[](void* block) noexcept {
  Give(block);
}
void operator delete(void* block, std::size_t) noexcept {
  Give(block);
}
void operator delete[](void* block, std::size_t) noexcept {
  Give(block);
}
void operator delete(void* block, const std::nothrow_t&) noexcept {
  Give(block);
}
void operator delete[](void* block, const std::nothrow_t&) noexcept {
  Give(block);
}

namespace kernd::fuzz {
namespace {

std::int64_t allowed = 0;

}  // namespace

void Require(bool kept, std::string_view rule) {
  if (kept) return;
  std::fprintf(stderr, "rule broken: %.*s\n", static_cast<int>(rule.size()), rule.data());
  std::abort();
}

void AllowMemory(std::int64_t bytes) {
  allowed += bytes;
}

void Run(std::string_view input) {
  const std::int64_t before = held;
  peak = before;
  allowed = kMemoryBase + kMemoryFactor * static_cast<std::int64_t>(input.size());
  Target(input);
  const std::int64_t most = peak - before;
  Require(most <= allowed, "memory: " + std::to_string(most) + " bytes held, " + std::to_string(allowed) + " allowed");
}

void WriteSeeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : Seeds()) {
    std::ofstream file(folder + "/seed-" + std::to_string(++number), std::ios::binary);
    file << seed;
    file.close();
    Require(file.good(), "seeds can be written to " + folder);
  }
}

}  // namespace kernd::fuzz
