// What comes back beside the tensors: time, memory, and the kernel that ran.
#pragma once

#include <cstdint>
#include <vector>

#include "kernd/client/kernel.h"
#include "kernd/client/tensor.h"

namespace kernd::client {

// Time by stage in the daemon, in microseconds. Stages may overlap, so they need not add up to `total_us`.
struct Timing {
  double total_us = 0;     // from the call's first headers to the start of sending the reply
  double headers_us = 0;   // refuse or accept on the headers alone
  double decode_us = 0;    // receive and parse the body
  double validate_us = 0;  // shape rules, kernel choice, exact cost
  double admit_us = 0;     // reserve memory
  double queue_us = 0;     // wait for a worker
  double stage_in_us = 0;  // operands to staging memory
  double h2d_us = 0;       // staging memory to device
  double kernel_us = 0;    // compute
  double d2h_us = 0;       // device to host
  double encode_us = 0;    // headers of the reply around the results
};

// Memory of the call on its device, in bytes.
struct Memory {
  std::int64_t peak_bytes = 0;  // most that the call held: inputs + outputs + workspace; equal to Plan's
  std::int64_t input_bytes = 0;
  std::int64_t output_bytes = 0;
  std::int64_t workspace_bytes = 0;
  std::int64_t pinned_bytes = 0;  // page-locked host memory for the copies
  std::int64_t naive_bytes = 0;   // what the textbook algorithm would hold
};

// What a call would do and cost; nothing was run.
struct PlanReply {
  struct Result {
    DataType dtype = DataType::kUnspecified;
    std::vector<std::int64_t> shape;
  };
  KernelUsed kernel;
  std::vector<Result> results;  // d of a matmul; o, and lse where wanted, of attention
  Memory memory;                // exact
};

}  // namespace kernd::client
