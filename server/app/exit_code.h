// What the process ends with. A supervisor can tell what to do: nothing helps but another build or machine (4, 6), a
// newer driver (5), or a restart.
#pragma once

#include "absl/status/status.h"

namespace kernd {

enum ExitCode : int {
  kExitDrained = 0,     // or printed what was asked for
  kExitFailure = 1,     // or calls had to be cancelled
  kExitOptions = 2,     // bad options, or too few open files allowed
  kExitListen = 3,      // an address cannot be bound
  kExitBackend = 4,     // no such backend or GPU here
  kExitDriver = 5,      // the GPU driver is missing or too old
  kExitNoKernels = 6,   // no kernels for the GPU
  kExitDeviceLost = 7,  // the GPU was lost while serving
};                      // 128 + n: ended by signal n, the second one

// Of a failure of SelectBackend.
inline ExitCode BackendExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition: return kExitDriver;
    case absl::StatusCode::kNotFound: return kExitBackend;
    case absl::StatusCode::kUnimplemented: return kExitNoKernels;
    default: return kExitFailure;
  }
}

}  // namespace kernd
