// A call as the tests of metrics and log want it.
#pragma once

#include "server/core/call_record.h"

namespace kernd::telemetry {

inline core::CallRecord SomeCall() {
  core::CallRecord record;
  record.request_id = "id-1";
  record.peer = "ipv4:127.0.0.1:40000";
  record.method = "Compute/Matmul";
  record.shapes = "a=F32[2,3] b=F32[3,4]";
  record.kernel = "matmul_f32_cpu_onednn";
  record.stages.Add(core::Stage::kKernel, absl::Microseconds(30));
  record.total = absl::Microseconds(400);
  record.request_bytes = 72;
  record.copied_bytes = 64;
  record.reply_bytes = 32;
  record.peak_bytes = 104;
  return record;
}

}  // namespace kernd::telemetry
