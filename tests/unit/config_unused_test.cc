// Options that were set and have no effect where the daemon runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/option_table.h"
#include "server/config/unused.h"
#include "tests/unit/config_support.h"

namespace kernd::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr bool kOnCpu = false, kOnGpu = true;

std::vector<std::string> Unused(std::vector<std::string> args, bool on_gpu) {
  return UnusedOptions(MustParse(std::move(args)), kMachine, on_gpu);
}

TEST(UnusedOptions, NoneOfTheDefaults) {
  for (const bool on_gpu : {kOnCpu, kOnGpu}) {
    EXPECT_THAT(Unused({}, on_gpu), IsEmpty());
    EXPECT_THAT(Unused({"--gpu-executors", "4", "--cpu-threads", "0", "--memory-limit", "50%"}, on_gpu), IsEmpty())
        << "they say what holds anyway";
  }
}

TEST(UnusedOptions, OfTheBackendThatDoesNotServe) {
  EXPECT_THAT(Unused({"--gpu-device", "1"}, kOnCpu), ElementsAre("--gpu-device has no effect: the CPU serves"));
  EXPECT_THAT(Unused({"--gpu-device", "1"}, kOnGpu), IsEmpty());
  EXPECT_THAT(
      Unused({"--gpu-device", "1", "--gpu-memory", "1GiB", "--gpu-executors", "2", "--pinned-memory", "1MiB"}, kOnCpu),
      ElementsAre("--gpu-device, --gpu-memory, --gpu-executors, --pinned-memory have no effect: the CPU serves"));
  const std::vector<std::string> of_cpu = {"--cpu-threads", "2", "--memory-limit", "1GiB"};
  EXPECT_THAT(Unused(of_cpu, kOnGpu), ElementsAre("--cpu-threads, --memory-limit have no effect: a GPU serves"));
  EXPECT_THAT(Unused(of_cpu, kOnCpu), IsEmpty());
  EXPECT_THAT(Unused({"--debug-checks", "true", "--prewarm", "matmul:f32:8x8x8", "--tuning-file", "/t"}, kOnCpu),
              IsEmpty())
      << "the CPU has these as well";
}

TEST(UnusedOptions, OfSharedMemoryThatIsOff) {
  EXPECT_THAT(Unused({"--shared-memory-limit", "1MiB"}, kOnCpu),
              ElementsAre("--shared-memory-limit has no effect: there is no --shared-memory-socket"));
  EXPECT_THAT(Unused({"--shared-memory-limit", "1MiB", "--shared-memory-socket", "/s"}, kOnCpu), IsEmpty());
}

// The names that unused.cc has are those of options.
TEST(UnusedOptions, EveryGpuOptionIsOfItsGroup) {
  for (const Option& option : OptionTable()) {
    const std::string name = option.name;
    const bool of_gpu = name.starts_with("gpu-") || name == "pinned-memory";
    EXPECT_EQ(std::string(option.group) == "GPU", of_gpu) << name;
  }
}

}  // namespace
}  // namespace kernd::config
