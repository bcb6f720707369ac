#include "tests/support/fake_nvml.h"

#include <cstdio>
#include <cstring>

namespace {

int g_init = 0, g_device = 0, g_details = 0, g_open = 0;
char g_handle;  // its address is the device

}  // namespace

extern "C" {

void kernd_fake_nvml_set(int init, int device, int details) {
  g_init = init;
  g_device = device;
  g_details = details;
}
int kernd_fake_nvml_open() {
  return g_open;
}

int nvmlInit_v2() {
  if (g_init == 0) ++g_open;
  return g_init;
}
int nvmlShutdown() {
  --g_open;
  return 0;
}
const char* nvmlErrorString(int code) {
  return code == 9 ? "Driver Not Loaded" : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  std::snprintf(version, length, "580.65.06");
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* pci, void** device) {
  if (std::strcmp(pci, kernd::testing::kFakeNvmlPci) != 0) return 6;  // NVML_ERROR_NOT_FOUND
  *device = &g_handle;
  return g_device;
}
int nvmlDeviceGetEccMode(void* device, int* current, int* pending) {
  *current = device == &g_handle;
  *pending = 0;
  return g_details;
}
int nvmlDeviceGetMigMode(void* /*device*/, unsigned int* current, unsigned int* pending) {
  *current = 0;
  *pending = 1;
  return g_details;
}
int nvmlDeviceGetClockInfo(void* /*device*/, int type, unsigned int* mhz) {
  *mhz = type == 1 ? 1755 : 3201;
  return type == 1 || type == 2 ? g_details : 2;
}
int nvmlDeviceGetMaxClockInfo(void* /*device*/, int type, unsigned int* mhz) {
  *mhz = type == 1 ? 1980 : 3202;
  return type == 1 || type == 2 ? g_details : 2;
}

}  // extern "C"
