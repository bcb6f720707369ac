#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/commands.h"
#include "client/cli/files/tensor_file.h"
#include "client/cli/operation.h"
#include "client/cli/progress.h"
#include "client/cli/types.h"
#include "client/cli/values.h"
#include "client/cli/verify/cases.h"
#include "client/cli/verify/check.h"
#include "client/cli/verify/report.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

struct Flags {
  std::string op;                   // empty: both
  std::vector<std::string> dtypes;  // empty: all
  std::string filter, kernel;
  std::uint64_t seed = 0;
  bool quick = false, all = false, causal = false;
  std::string a, b, q, k, v;  // files in place of the presets
};

// A case, and a variant to run it: empty for the daemon's choice.
struct Turn {
  const Case* c = nullptr;
  std::string kernel;
};

// --- cases
// ------------------------------------------------------------------------------------------------------------

absl::StatusOr<reference::Elements> Take(const std::string& file, TensorSpec& spec) {
  KERND_ASSIGN_OR_RETURN(const client::Tensor tensor, ReadTensor(file));
  spec = {.dtype = KernelType(tensor.dtype()), .shape = {tensor.shape().begin(), tensor.shape().end()}, .strides = {}};
  return reference::Elements(tensor.bytes().begin(), tensor.bytes().end());
}

Case Given(OpKind op, const TensorSpec& first, std::string name, Call call) {
  const auto shared = std::make_shared<const Call>(std::move(call));
  Case c{.op = op, .dtype = first.dtype, .name = std::move(name), .quick = true};
  for (const std::int64_t dim : first.shape) absl::StrAppend(&c.shape, c.shape.empty() ? "" : "x", dim);
  c.make = [shared](reference::Source&) { return *shared; };
  return c;
}

absl::StatusOr<Case> GivenMatmul(const Flags& flags) {
  reference::MatmulCase c;
  KERND_ASSIGN_OR_RETURN(c.a, Take(flags.a, c.problem.a));
  KERND_ASSIGN_OR_RETURN(c.b, Take(flags.b, c.problem.b));
  const TensorSpec first = c.problem.a;
  return Given(OpKind::kMatmul, first, "given", std::move(c));
}

absl::StatusOr<Case> GivenAttention(const Flags& flags) {
  reference::AttentionCase c;
  c.problem.want_lse = true;
  c.problem.causal = flags.causal;
  KERND_ASSIGN_OR_RETURN(c.q, Take(flags.q, c.problem.q));
  KERND_ASSIGN_OR_RETURN(c.k, Take(flags.k, c.problem.k));
  KERND_ASSIGN_OR_RETURN(c.v, Take(flags.v, c.problem.v));
  const TensorSpec first = c.problem.q;
  return Given(OpKind::kAttention, first, flags.causal ? "given, causal" : "given", std::move(c));
}

std::vector<Case> PresetsOf(const Flags& flags) {
  std::vector<Case> cases;
  for (const OpKind op : {OpKind::kMatmul, OpKind::kAttention}) {
    if (!flags.op.empty() && flags.op != Name(op)) continue;
    for (const DataType dtype : DataTypesOf(op)) {
      const bool wanted = flags.dtypes.empty() ||
                          std::any_of(flags.dtypes.begin(), flags.dtypes.end(), [dtype](const std::string& name) {
                            return KernelType(DataTypeOf(name)) == dtype;
                          });
      if (!wanted) continue;
      for (Case& c : Presets(op, dtype)) {
        if (c.quick || !flags.quick) cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

absl::StatusOr<std::vector<Case>> CasesOf(const Flags& flags) {
  std::vector<Case> cases;
  if (!flags.a.empty()) {
    KERND_ASSIGN_OR_RETURN(cases.emplace_back(), GivenMatmul(flags));
  } else if (!flags.q.empty()) {
    KERND_ASSIGN_OR_RETURN(cases.emplace_back(), GivenAttention(flags));
  } else {
    cases = PresetsOf(flags);
  }
  return cases;
}

// --- variants
// ---------------------------------------------------------------------------------------------------------

// Whether it computes only what may be rounded to TF32, which it says of itself.
bool NeedsTf32(const client::KernelInfo& kernel) {
  return kernel.limits.find("numerics must be TF32") != std::string::npos;
}

bool Takes(const client::KernelInfo& kernel, const Case& c) {
  const auto is_type = [&c](client::DataType type) { return KernelType(type) == c.dtype; };
  return kernel.operation == Name(c.op) && std::any_of(kernel.dtypes.begin(), kernel.dtypes.end(), is_type) &&
         NeedsTf32(kernel) == c.tf32;
}

bool IsAskedFor(const client::KernelInfo& kernel, const Flags& flags) {
  return flags.all || kernel.name == flags.kernel;
}

// Adds to `cases` those that a kernel which is asked for takes in TF32 alone.
void AddTf32(const Flags& flags, const std::vector<client::KernelInfo>& kernels, std::vector<Case>& cases) {
  const std::size_t count = cases.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (cases[i].op != OpKind::kMatmul) continue;
    Case tf32 = InTf32(cases[i]);
    const bool needed = std::any_of(kernels.begin(), kernels.end(), [&](const client::KernelInfo& kernel) {
      return IsAskedFor(kernel, flags) && Takes(kernel, tf32);
    });
    if (needed) cases.push_back(std::move(tf32));
  }
}

// Each case with each variant that is asked for. Variants of one case are neighbours: they share the reference's
// answer.
std::vector<Turn> TurnsOf(const Flags& flags, const std::vector<Case>& cases,
                          const std::vector<client::KernelInfo>& kernels) {
  std::vector<Turn> turns;
  const auto add = [&](const Case& c, const std::string& kernel) {
    const std::string line =
        absl::StrCat(std::string(Name(c.op)), " ", std::string(Name(c.dtype)), " ", c.name, " ", c.shape, " ", kernel);
    if (line.find(flags.filter) != std::string::npos) turns.push_back({&c, kernel});
  };
  for (const Case& c : cases) {
    if (!flags.all && flags.kernel.empty()) add(c, "");
    for (const client::KernelInfo& kernel : kernels) {
      if (IsAskedFor(kernel, flags) && Takes(kernel, c)) add(c, kernel.name);
    }
  }
  return turns;
}

absl::Status NothingToDo(const Flags& flags, const std::vector<client::KernelInfo>& kernels) {
  const bool known = flags.kernel.empty() || std::any_of(kernels.begin(), kernels.end(), [&](const auto& kernel) {
                       return kernel.name == flags.kernel;
                     });
  if (!known) return absl::InvalidArgumentError("--kernel " + flags.kernel + ": kernctl kernels lists those there are");
  return absl::InvalidArgumentError("no case of that operation, element type, kernel and filter");
}

// --- the run
// ----------------------------------------------------------------------------------------------------------

// Kernels of operations that no call runs alone are named, not passed over in silence.
void AddUncalled(const std::vector<client::KernelInfo>& kernels, VerifyReport& report) {
  for (const client::KernelInfo& kernel : kernels) {
    if (kernel.operation == Name(OpKind::kMatmul) || kernel.operation == Name(OpKind::kAttention)) continue;
    const Case c{.op = OpKind::kMerge, .name = "-", .shape = "-"};
    report.Add(c, {.verdict = Verdict::kNotSupported,
                   .kernel = kernel.name,
                   .why = "no call runs an operation " + kernel.operation + " alone"});
  }
}

int RunVerify(const Context& context, const Flags& flags) {
  absl::StatusOr<std::vector<Case>> cases = CasesOf(flags);
  if (!cases.ok()) return context.BadArguments(cases.status());
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  const client::CallOptions options = context.CallOptions();
  const absl::StatusOr<std::vector<client::KernelInfo>> kernels = client->ListKernels(options);
  if (!kernels.ok()) return context.CallFailed(kernels.status());
  AddTf32(flags, *kernels, *cases);
  const std::vector<Turn> turns = TurnsOf(flags, *cases, *kernels);
  if (turns.empty()) return context.BadArguments(NothingToDo(flags, *kernels));

  const absl::Time start = absl::Now();
  std::vector<std::string> names;
  for (const client::KernelInfo& kernel : *kernels) names.push_back(kernel.name);
  VerifyReport report(context, *cases, names, flags.seed);
  Progress progress(context.err, context.terminal.progress, std::ssize(turns), start);
  absl::StatusOr<Exam> exam;
  const Case* prepared = nullptr;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Case& c = *turns[i].c;
    progress.Step(static_cast<std::int64_t>(i), absl::StrCat(std::string(Name(c.op)), " ", c.name));
    if (prepared != &c) {
      exam = Prepare(c, flags.seed);
      prepared = &c;
    }
    if (!exam.ok()) return context.BadArguments(exam.status());
    const absl::StatusOr<Result> result = Check(*client, *exam, turns[i].kernel, options);
    progress.Hide();
    if (!result.ok()) return context.CallFailed(result.status());
    report.Add(c, *result);
  }
  if (flags.all && flags.op.empty() && flags.filter.empty()) AddUncalled(*kernels, report);
  report.Finish(absl::Now() - start);
  return report.tally().failed > 0 || report.tally().passed == 0 ? kWrong : kOk;
}

}  // namespace

void AddVerify(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("verify", "Hold the daemon's results against an fp64 reference");
  command->footer(
      "Hold the daemon's results against an fp64 reference that is computed here. Each call is made\n"
      "twice, for the same bits; causal ones a third time with other keys and values in the future,\n"
      "which no earlier row may notice. err/tol: the largest error as a part of what the element type\n"
      "and the length of the sums allow. Exit code 4 where anything failed, or nothing passed.");
  command->add_option("--op", flags->op, "Only this operation")->check(CLI::IsMember({"matmul", "attention"}));
  command->add_option("--dtype", flags->dtypes, "Only this element type; may be repeated")
      ->check(IsDataType())
      ->allow_extra_args(false);
  command->add_option("--filter", flags->filter, "Only cases with this text in op, dtype, case, shape or kernel")
      ->type_name("TEXT");
  command->add_flag("--quick", flags->quick, "A few cases of each operation and type");
  CLI::Option* const all = command->add_flag("--all", flags->all, "Force each kernel in turn, not the daemon's choice");
  command->add_option("--kernel", flags->kernel, "Force this kernel (see kernctl kernels)")
      ->type_name("NAME")
      ->excludes(all);
  command->add_option("--seed", flags->seed, "Seed of the operands")
      ->transform(WholeNumber<std::uint64_t>(0))
      ->capture_default_str();
  CLI::Option* const a = command->add_option("--a", flags->a, "Multiply this, in place of the presets");
  CLI::Option* const b = command->add_option("--b", flags->b, "... by this");
  CLI::Option* const q = command->add_option("--q", flags->q, "Attend with this Q, in place of the presets");
  CLI::Option* const k = command->add_option("--k", flags->k, "... this K");
  CLI::Option* const v = command->add_option("--v", flags->v, "... and this V");
  for (CLI::Option* const file : {a, b, q, k, v}) {
    file->type_name("FILE");
    for (const char* preset : {"--op", "--dtype", "--quick", "--seed"}) file->excludes(command->get_option(preset));
  }
  a->needs(b)->excludes(q);
  b->needs(a);
  q->needs(k)->needs(v);
  k->needs(q);
  v->needs(q);
  command->add_flag("--causal", flags->causal, "... where row i sees no key after its own position")->needs(q);
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunVerify(context, *flags); }; });
}

}  // namespace kernd::cli
