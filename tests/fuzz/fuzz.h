// A fuzz target is one function of bytes. Each tests/fuzz/TARGET.cc defines the first two functions; the rest is there
// for it. Linked with libFuzzer where clang builds it, with replay.cc elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kernd::fuzz {

// Puts `input` to the code under test and holds the outcome against its rules, whatever the bytes are.
void Target(std::string_view input);

// Valid inputs, made by the project's own writers: where a search starts.
std::vector<std::string> Seeds();

// Ends the program, naming `rule`, where it is broken.
void Require(bool kept, std::string_view rule);

// Target, under a bound of the memory that it holds at once: kMemoryBase and kMemoryFactor bytes for each of `input`.
inline constexpr std::int64_t kMemoryBase = 16 << 20;  // a few bytes of offsets may ask for 2^17 sequences
inline constexpr std::int64_t kMemoryFactor = 256;
void Run(std::string_view input);

// From within Target: this run may hold `bytes` more.
void AllowMemory(std::int64_t bytes);

// Of Seeds, one file each, named by its number. Ends the program where that fails.
void WriteSeeds(const std::string& folder);

}  // namespace kernd::fuzz
