// Where a test program finds what it needs: from its own place, so that a build folder and a bundle that was carried to
// another machine (deploy/bundle) are alike: BIN/this_test, BIN/kernd, BIN/../tests/data.
#pragma once

#include <filesystem>
#include <string>

namespace kernd::testing {

inline std::filesystem::path OwnFolder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

// A program of the same build: "kernd", "kernctl".
inline std::string ProgramPath(const std::string& name) {
  return OwnFolder() / name;
}

// tests/data.
inline std::filesystem::path DataFolder() {
  return OwnFolder().parent_path() / "tests" / "data";
}

}  // namespace kernd::testing
