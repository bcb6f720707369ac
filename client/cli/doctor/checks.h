// The checks of kernctl doctor: pure functions from what was found to a verdict and, where something is wrong, one line
// that says what to do.
#pragma once

#include <string>
#include <vector>

#include "client/cli/doctor/facts.h"

namespace kernd::cli::doctor {

enum class Status { kOk, kWarning, kProblem, kNotApplicable };

// "ok", "warning", "problem", "n/a".
const char* Name(Status status);

struct Check {
  const char* name;
  Status status = Status::kOk;
  std::string found;
  std::string todo;  // of warnings and problems
};

// The daemon, from the wire inwards.
Check CheckVersions(const Facts& facts);
Check CheckPort(const Facts& facts);
Check CheckProxy(const Facts& facts);
Check CheckHealth(const Facts& facts);
Check CheckBackend(const Facts& facts);
Check CheckCall(const Facts& facts);
Check CheckHttp(const Facts& facts);
Check CheckOptions(const Facts& facts);
Check CheckClock(const Facts& facts);
// The machine.
Check CheckSystem(const Facts& facts);
Check CheckCpus(const Facts& facts);
Check CheckMemory(const Facts& facts);
Check CheckOpenFiles(const Facts& facts);
Check CheckLockedMemory(const Facts& facts);
Check CheckSharedMemory(const Facts& facts);
// Its GPUs.
Check CheckGpus(const Facts& facts);
Check CheckDriver(const Facts& facts);
Check CheckCuda(const Facts& facts);
Check CheckDeviceNodes(const Facts& facts);

// All of them, in this order.
std::vector<Check> Examine(const Facts& facts);

}  // namespace kernd::cli::doctor
