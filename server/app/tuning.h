// What is told of tunings: as gauges, and in the log.
#pragma once

#include "server/telemetry/metrics.h"
#include "server/tune/tuner.h"

namespace kernd {

telemetry::TuningGauges TuningOf(const tune::Tuner::Counts& counts);

// What became of a shape; and of each kernel whose results were not right, which is an error of the build or the
// machine.
void LogTuning(const tune::Progress& progress);

}  // namespace kernd
