// Changes to inputs, drawn from a seed: for compilers without libFuzzer.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace kernd::fuzz {

inline constexpr std::size_t kMaxInput = 1 << 16;

// One of `corpus`, which is not empty, changed in 1 to 4 places, sometimes with words of `dictionary`, which may be
// empty. At most kMaxInput bytes.
std::string Mutate(std::mt19937_64& random, const std::vector<std::string>& corpus,
                   const std::vector<std::string>& dictionary);

// The words of a dictionary as libFuzzer reads it: lines of name="value" or "value", with \xNN, \\ and \".
std::vector<std::string> ReadDictionary(const std::string& path);

}  // namespace kernd::fuzz
