// The commands of kernctl. Each function adds one to `app` and, once it was chosen and its options parsed, sets
// `action`.
#pragma once

#include "CLI/CLI.hpp"
#include "client/cli/context.h"

namespace kernd::cli {

void AddMatmul(CLI::App& app, const Context& context, Action& action);
void AddAttention(CLI::App& app, const Context& context, Action& action);
void AddTensors(CLI::App& app, const Context& context, Action& action);
void AddVerify(CLI::App& app, const Context& context, Action& action);
void AddTune(CLI::App& app, const Context& context, Action& action);
void AddBench(CLI::App& app, const Context& context, Action& action);
void AddDoctor(CLI::App& app, const Context& context, Action& action);
void AddTop(CLI::App& app, const Context& context, Action& action);
void AddHealth(CLI::App& app, const Context& context, Action& action);
void AddGpuInfo(CLI::App& app, const Context& context, Action& action);
void AddKernels(CLI::App& app, const Context& context, Action& action);
// `app` is the whole program's: it completes what the others have added.
void AddCompletion(CLI::App& app, const Context& context, Action& action);

}  // namespace kernd::cli
