#include "client/cli/doctor/checks.h"

namespace kernd::cli::doctor {

const char* Name(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kWarning: return "warning";
    case Status::kProblem: return "problem";
    case Status::kNotApplicable: return "n/a";
  }
  return "";
}

std::vector<Check> Examine(const Facts& facts) {
  std::vector<Check> checks;
  for (Check (*const check)(const Facts&) :
       {CheckVersions, CheckPort, CheckProxy, CheckHealth, CheckBackend, CheckCall, CheckHttp, CheckOptions, CheckClock,
        CheckSystem, CheckCpus, CheckMemory, CheckOpenFiles, CheckLockedMemory, CheckSharedMemory, CheckGpus,
        CheckDriver, CheckCuda, CheckDeviceNodes}) {
    checks.push_back(check(facts));
  }
  return checks;
}

}  // namespace kernd::cli::doctor
