// A problem of the kernels as a call of the client library.
#pragma once

#include "kernd/client/attention.h"
#include "kernd/client/matmul.h"
#include "kernd/kernels/args.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"

namespace kernd::cli {

// The same call, with views of the operands that `args` points to, all contiguous. alpha 1, beta 0 and other defaults
// are left out. The kernel is the daemon's to choose.
client::MatmulArgs ClientArgs(const MatmulProblem& problem, const MatmulArgs& args);
client::AttentionArgs ClientArgs(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace kernd::cli
