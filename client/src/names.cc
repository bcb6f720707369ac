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

std::string_view Name(HealthStatus status) {
  switch (status) {
    case HealthStatus::kUnknown: return "UNKNOWN";
    case HealthStatus::kServing: return "SERVING";
    case HealthStatus::kNotServing: return "NOT_SERVING";
  }
  return "UNKNOWN";
}

}  // namespace kernd::client
