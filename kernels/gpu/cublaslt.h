// cuBLASLt, opened at run time: half a gigabyte that the daemon starts without, and that a machine may not have.
#pragma once

#include <cublasLt.h>

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kernd {

// The functions that we call, under their own names without the prefix.
struct CublasLt {
  decltype(&::cublasLtCreate) Create;
  decltype(&::cublasLtGetVersion) GetVersion;
  decltype(&::cublasLtGetStatusName) GetStatusName;
  decltype(&::cublasLtMatmul) Matmul;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&::cublasLtMatmulDescInit_internal) MatmulDescInit;
  decltype(&::cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&::cublasLtMatrixLayoutInit_internal) MatrixLayoutInit;
  decltype(&::cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;
  decltype(&::cublasLtMatmulPreferenceInit_internal) MatmulPreferenceInit;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;

  // OK; RESOURCE_EXHAUSTED where the library had no memory, which it also calls NOT_INITIALIZED; else INTERNAL.
  absl::Status Check(cublasStatus_t status, std::string_view call) const;
};

// Opens the library on the first call, for good. NOT_FOUND: it is not there, or lacks a function.
absl::StatusOr<const CublasLt*> OpenCublasLt();

// The device's handle, created on the first call and never destroyed (that would synchronise the device). All threads
// and streams of a device share it: it holds no stream and no workspace, calls bring theirs.
absl::StatusOr<cublasLtHandle_t> CublasLtHandle(int device);

// Makes a device the thread's current one, until the end of the scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  int before_ = -1;
  absl::Status status_;
};

}  // namespace kernd
