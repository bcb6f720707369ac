// One run of a candidate: an ordinary call of the engine, behind everybody else's.
#pragma once

#include <stop_token>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/engine.h"

namespace kernd::tune {

// How long a tuning may go on.
struct Until {
  std::stop_token stop;  // nobody waits for it any more
  absl::Time end = absl::InfiniteFuture();

  bool Over() const;
};

// False, soon, where `until` is over before `wait` is.
bool Pause(absl::Duration wait, const Until& until);

// Runs `step` with its operands, and returns the call with its stages and results. Blocks; the call has ended when this
// returns, and is abandoned where `until` is over first. Where there is no room for it now it waits and tries again,
// for ten seconds.
//   CANCELLED  `until` is over
//   others     those of Engine::Submit
absl::StatusOr<core::CallPtr> RunOnce(core::Engine& engine, const core::Step& step, const Until& until);

}  // namespace kernd::tune
