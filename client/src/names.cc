#include "kernd/client/autotune.h"
#include "kernd/client/device.h"
#include "kernd/client/session.h"

namespace kernd::client {

std::string_view Name(Tier tier) {
  switch (tier) {
    case Tier::kUnspecified: return "UNSPECIFIED";
    case Tier::kUnsupported: return "UNSUPPORTED";
    case Tier::kBasic: return "BASIC";
    case Tier::kFull: return "FULL";
    case Tier::kAdvanced: return "ADVANCED";
    case Tier::kCpu: return "CPU";
  }
  return "UNSPECIFIED";
}

std::string_view Name(TensorState state) {
  switch (state) {
    case TensorState::kUnspecified: return "UNSPECIFIED";
    case TensorState::kFilling: return "FILLING";
    case TensorState::kReady: return "READY";
    case TensorState::kFailed: return "FAILED";
  }
  return "UNSPECIFIED";
}

std::string_view Name(TuneVerdict verdict) {
  switch (verdict) {
    case TuneVerdict::kMeasured: return "MEASURED";
    case TuneVerdict::kSlow: return "SLOW";
    case TuneVerdict::kWrong: return "WRONG";
    case TuneVerdict::kUnstable: return "UNSTABLE";
    case TuneVerdict::kFailed: return "FAILED";
    case TuneVerdict::kUnspecified: break;
  }
  return "UNSPECIFIED";
}

std::string_view Name(TuneOutcome outcome) {
  switch (outcome) {
    case TuneOutcome::kTuned: return "TUNED";
    case TuneOutcome::kModelKept: return "MODEL_KEPT";
    case TuneOutcome::kRefused: return "REFUSED";
    case TuneOutcome::kNotReached: return "NOT_REACHED";
    case TuneOutcome::kUnspecified: break;
  }
  return "UNSPECIFIED";
}

std::string_view Name(HealthStatus status) {
  switch (status) {
    case HealthStatus::kUnknown: return "UNKNOWN";
    case HealthStatus::kServing: return "SERVING";
    case HealthStatus::kNotServing: return "NOT_SERVING";
  }
  return "UNKNOWN";
}

}  // namespace kernd::client
