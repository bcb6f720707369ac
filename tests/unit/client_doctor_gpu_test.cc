// kernctl doctor on GPUs, driver and CUDA: its checks, and what it reads of the driver.
#include "tests/unit/client_doctor_case.h"

namespace kernd::cli::doctor {
namespace {

// A kernd that is not up cannot use the GPU: its faults are problems.
INSTANTIATE_TEST_SUITE_P(
    Gpu, SpoiltTest,
    testing::Values(Case{"DriverTooOld", NoDaemon, [](Facts& f) { f.gpu.cuda_version = 12040; }, CheckCuda, kBad,
                         "12.4", "too old: install one for CUDA 13"},
                    Case{"DriverOfTheSameMajor", NoDaemon,
                         [](Facts& f) {
                           f.toolkit = "12.8.1";
                           f.gpu.cuda_version = 12000;
                         },
                         CheckCuda, kOkay, "12.0", ""},
                    Case{"NoLibcuda", NoDaemon, [](Facts& f) { f.gpu.libcuda_error = "cannot open"; }, CheckCuda, kBad,
                         "libcuda", "install the driver"},
                    Case{"NoLibcudaInAContainer", NoDaemon,
                         [](Facts& f) {
                           f.gpu.libcuda_error = "cannot open";
                           f.machine.container = "docker";
                         },
                         CheckCuda, kBad, "libcuda", "--gpus all"},
                    Case{"BuildWithoutCuda", NoDaemon, [](Facts& f) { f.toolkit = "none"; }, CheckCuda, kWarn,
                         "no CUDA", "build of kernd with CUDA"},
                    Case{"NoModule", NoDaemon, [](Facts& f) { f.gpu.module = ""; }, CheckDriver, kBad, "not loaded",
                         "modprobe"},
                    Case{"NoModuleNobodyNeeds", NoDaemon,
                         [](Facts& f) {
                           f.gpu.module = "";
                           f.toolkit = "none";
                         },
                         CheckDriver, kWarn, "not loaded", "modprobe"},
                    Case{"NoModuleForADaemonElsewhere", NoDaemon,
                         [](Facts& f) {
                           f.gpu.module = "";
                           f.daemon.endpoint.local = false;
                         },
                         CheckDriver, kWarn, "not loaded", "modprobe"},
                    Case{"Nouveau", NoDaemon,
                         [](Facts& f) {
                           f.gpu.module = "";
                           f.gpu.nouveau = true;
                         },
                         CheckDriver, kBad, "nouveau", "blacklist"},
                    Case{"UpdatedUnderTheModule", NoDaemon, [](Facts& f) { f.gpu.driver = "580.99"; }, CheckDriver,
                         kBad, "libraries 580.99", "restart the machine"},
                    Case{"NvmlFails", NoDaemon, [](Facts& f) { f.gpu.nvml_error = "Driver/library version mismatch"; },
                         CheckDriver, kWarn, "mismatch", "same driver version"},
                    Case{"NoCards", NoDaemon, [](Facts& f) { f.gpu.cards.clear(); }, CheckGpus, kBad,
                         "none that the driver shows", "device nodes"},
                    Case{"NoRightToTheNode", NoDaemon,
                         [](Facts& f) {
                           f.gpu.nodes[0] = {"/dev/nvidia0", "root:video 0660", false};
                         },
                         CheckDeviceNodes, kBad, "/dev/nvidia0 (root:video 0660)", "group"},
                    Case{"NoRightToTheNodeButTheDaemonHas", Well,
                         [](Facts& f) {
                           f.gpu.nodes[0] = {"/dev/nvidia0", "root:video 0660", false};
                         },
                         CheckDeviceNodes, kWarn, "/dev/nvidia0", "group"},
                    Case{"NoNodes", NoDaemon, [](Facts& f) { f.gpu.nodes.clear(); }, CheckDeviceNodes, kBad,
                         "no /dev/nvidia*", "nvidia-modprobe"},
                    Case{"NoGpu", NoGpu, [](Facts&) {}, CheckDeviceNodes, kNone, "no NVIDIA GPU", ""}),
    NameOfCase);

TEST(GatherTest, ReadsTheDriversFiles) {
  const Root root;
  root.Write(
      "/proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\nGCC version: gcc 12.2.0\n");
  root.Write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
  root.Write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
  root.Write("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
  root.Write("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");  // its sound
  root.Write("/dev/nvidia0", "");
  root.Write("/dev/nvidiactl", "");
  root.Write("/dev/nvidia-caps", "");
  const GpuFacts gpu = GatherGpus(root.path());
  EXPECT_EQ(gpu.module, "550.54.15");
  EXPECT_EQ(gpu.on_bus, 1);
  ASSERT_EQ(gpu.nodes.size(), 2u);
  EXPECT_EQ(gpu.nodes[0].path, "/dev/nvidia0");
  EXPECT_TRUE(gpu.nodes[0].usable);
}

TEST(GatherTest, AMachineWithoutGpusIsNoError) {
  EXPECT_EQ(GatherGpus(Root().path()).on_bus, 0);
}

}  // namespace
}  // namespace kernd::cli::doctor
