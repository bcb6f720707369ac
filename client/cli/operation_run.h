// One call of an operation, from the connection to the report: what the commands matmul and attention have in common.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "client/cli/context.h"
#include "client/cli/files/tensor_file.h"
#include "client/cli/operands.h"
#include "client/cli/operation.h"
#include "client/cli/progress.h"
#include "client/cli/report.h"
#include "client/cli/session.h"

namespace kernd::cli {

// A result, and where the user wants it.
struct CallResult {
  const char* name;
  const client::Tensor& tensor;
  std::string file;  // empty: nowhere
  bool resident;     // in the session: there is nothing to write
};

template <typename Args, typename Reply>
struct OperationCommand {
  const char* name;
  // Reads the operands, or makes them up.
  std::function<absl::StatusOr<Args>(Operands& operands)> args;
  // Those that the report names. The type of the first one is the call's.
  std::function<std::vector<NamedShape>(const Args& args)> operands;
  // Through the session where there is one.
  std::function<absl::StatusOr<Reply>(const client::Client&, const client::Session*, const Args&,
                                      const client::CallOptions&)>
      call;
  // The first one is what --expect compares.
  std::function<std::vector<CallResult>(const Args& args, const Reply& reply)> results;
};

// Returns the exit code.
template <typename Args, typename Reply>
int RunOperation(const Context& context, const OperationFlags& flags, const OperationCommand<Args, Reply>& operation) {
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  Operands operands;
  const absl::StatusOr<std::optional<client::Session>> session = SessionFor(context, *client, flags.session, operands);
  if (!session.ok()) return context.CallFailed(session.status());
  std::optional<Busy> busy(std::in_place, context.err, context.terminal.progress, "reading or making the operands");
  const absl::StatusOr<Args> args = operation.args(operands);
  busy.reset();
  if (!args.ok()) return context.BadArguments(args.status());
  client::CallOptions options = CallOptionsOf(context, flags);
  const std::vector<NamedShape> shapes = operation.operands(*args);
  if (flags.plan) {
    const absl::StatusOr<client::PlanReply> plan = client->Plan(*args, options);
    if (!plan.ok()) return context.CallFailed(plan.status());
    PrintPlan(context, operation.name, shapes, *plan);
    return kOk;
  }

  busy.emplace(context.err, context.terminal.progress, "connecting to " + context.endpoint, context.Timeout());
  const absl::StatusOr<double> connect_us = ConnectNow(context, *client, options);
  busy.reset();
  if (!connect_us.ok()) return context.CallFailed(connect_us.status());
  busy.emplace(context.err, context.terminal.progress, SendingText(shapes), context.Timeout());
  const absl::Time start = absl::Now();
  const absl::StatusOr<Reply> reply = operation.call(*client, *session ? &**session : nullptr, *args, options);
  const double client_us = absl::ToDoubleMicroseconds(absl::Now() - start);
  busy.reset();
  if (!reply.ok()) return context.CallFailed(reply.status());
  CallReport report{operation.name, shapes,      {},        reply->kernel, reply->timing,
                    reply->memory,  *connect_us, client_us, std::nullopt};
  const std::vector<CallResult> results = operation.results(*args, *reply);
  for (const CallResult& result : results) {
    report.results.push_back({result.name, result.tensor.dtype(), result.tensor.shape()});
    if (result.file.empty() || result.resident) continue;
    const absl::Status written = WriteTensor(result.file, result.name, result.tensor.view());
    if (!written.ok()) return context.BadArguments(written);
  }
  if (!flags.expect.empty()) {
    absl::StatusOr<Expectation> expectation = Compare(flags, shapes.front().dtype, results.front().tensor);
    if (!expectation.ok()) return context.BadArguments(expectation.status());
    report.expectation = *std::move(expectation);
  }
  PrintCall(context, report);
  return report.expectation && !report.expectation->comparison.ok() ? kWrong : kOk;
}

}  // namespace kernd::cli
