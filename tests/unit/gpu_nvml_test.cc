// NVML by its C interface, from a library made up for it; and what becomes of it in the backend's description.
#include "server/gpu/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/gpu/backend.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"
#include "tests/support/fake_nvml.h"

namespace kernd::gpu {
namespace {

using testing::FakeGpu;
using testing::FakeKernels;
using ::testing::HasSubstr;
using testing::kFakeNvml;
using testing::kFakeNvmlPci;

class NvmlTest : public ::testing::Test {
 protected:
  void SetUp() override { kernd_fake_nvml_set(0, 0, 0); }
  void TearDown() override { EXPECT_EQ(kernd_fake_nvml_open(), 0) << "started and not ended"; }
};

TEST_F(NvmlTest, ReadsWhatTheLibrarySays) {
  const auto nvml = Nvml::Open(kFakeNvml);
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const NvmlReading reading = (*nvml)->Read(kFakeNvmlPci);
  EXPECT_EQ(reading.driver_version, "580.65.06");
  EXPECT_EQ(reading.ecc, true);
  EXPECT_EQ(reading.mig, false) << "what is in effect, not what is pending";
  EXPECT_EQ(reading.sm_clock_mhz, 1755);
  EXPECT_EQ(reading.sm_clock_max_mhz, 1980);
  EXPECT_EQ(reading.memory_clock_mhz, 3201);
  EXPECT_EQ(reading.memory_clock_max_mhz, 3202);
}

TEST_F(NvmlTest, WhatIsNotSaidIsAbsent) {
  const auto nvml = Nvml::Open(kFakeNvml);
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const auto expect_nothing = [](const NvmlReading& reading) {
    EXPECT_EQ(reading.driver_version, "580.65.06") << "is of the machine";
    EXPECT_FALSE(reading.ecc || reading.mig || reading.sm_clock_mhz || reading.sm_clock_max_mhz ||
                 reading.memory_clock_mhz || reading.memory_clock_max_mhz);
  };
  expect_nothing((*nvml)->Read("0000:ff:00.0"));
  kernd_fake_nvml_set(0, 0, /*details=*/3);  // NVML_ERROR_NOT_SUPPORTED
  expect_nothing((*nvml)->Read(kFakeNvmlPci));
  kernd_fake_nvml_set(0, /*device=*/4, 0);  // NVML_ERROR_NO_PERMISSION
  expect_nothing((*nvml)->Read(kFakeNvmlPci));
}

TEST_F(NvmlTest, ALibraryThatIsNotThereOrNotNvmlOrBroken) {
  EXPECT_TRUE(absl::IsNotFound(Nvml::Open("libkernd_no_such.so").status()));
  const absl::Status other = Nvml::Open("libc.so.6").status();
  EXPECT_TRUE(absl::IsNotFound(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("libc.so.6"));
  kernd_fake_nvml_set(/*init=*/9, 0, 0);
  const absl::Status broken = Nvml::Open(kFakeNvml).status();
  EXPECT_TRUE(absl::IsUnavailable(broken)) << broken;
  EXPECT_THAT(std::string(broken.message()), HasSubstr("Driver Not Loaded"));
}

core::DeviceDescription Described(const std::string& library) {
  auto gpu = std::make_shared<FakeGpu>();
  gpu->info.pci = kFakeNvmlPci;
  const auto backend =
      MakeBackend(gpu, FakeKernels(*gpu),
                  {.memory_limit = 1 << 20, .primed_bytes = 1 << 20, .pinned_bytes = 1 << 20, .nvml_library = library});
  EXPECT_TRUE(backend.ok()) << backend.status();
  return backend.ok() ? (*backend)->Devices().at(0) : core::DeviceDescription();
}

TEST_F(NvmlTest, TheBackendSaysIt) {
  const core::DeviceDescription device = Described(kFakeNvml);
  EXPECT_EQ(device.driver_version, "580.65.06");
  EXPECT_EQ(device.ecc, true) << "although CUDA said no";
  EXPECT_EQ(device.mig, false);
  EXPECT_EQ(device.sm_clock_mhz, 1755);
  EXPECT_EQ(device.memory_clock_max_mhz, 3202);
}

TEST_F(NvmlTest, TheBackendDoesWithoutIt) {
  const core::DeviceDescription device = Described("libkernd_no_such.so");
  EXPECT_EQ(device.driver_version, "");
  EXPECT_EQ(device.ecc, false) << "as CUDA says";
  EXPECT_FALSE(device.mig || device.sm_clock_mhz);
}

}  // namespace
}  // namespace kernd::gpu
