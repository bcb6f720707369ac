// A machine, an environment and a folder as the tests of server/config want them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/config/options.h"

namespace kernd::config {

inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;
inline constexpr std::int64_t kGiB = std::int64_t{1} << 30;

inline const MachineLimits kMachine = {.cpus = 6, .cpus_from = "test", .memory_bytes = 8 * kGiB, .memory_from = "test"};

using Variables = std::map<std::string, std::string>;

inline absl::StatusOr<Invocation> Parse(std::vector<std::string> args, const Variables& variables = {},
                                        const MachineLimits& machine = kMachine) {
  std::vector<const char*> argv = {"kernd"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  const auto environment = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  return ParseOptions(static_cast<int>(argv.size()), argv.data(), "kernd 1.2.3", environment, machine);
}

inline ServerOptions MustParse(std::vector<std::string> args, const Variables& variables = {}) {
  const auto invocation = Parse(std::move(args), variables);
  EXPECT_TRUE(invocation.ok()) << invocation.status();
  return invocation.ok() ? invocation->options : ServerOptions{};
}

inline std::string MessageOf(std::vector<std::string> args, const Variables& variables = {}) {
  return std::string(Parse(std::move(args), variables).status().message());
}

// A folder that goes with the test.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "kernd_config_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace kernd::config
