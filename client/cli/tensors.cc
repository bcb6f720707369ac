// kernctl tensors: sessions, and the tensors that stay in them.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/files/tensor_file.h"
#include "client/cli/progress.h"
#include "client/cli/report.h"
#include "client/cli/session.h"
#include "client/cli/table.h"
#include "client/cli/values.h"

namespace kernd::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxLabelBytes = 128;  // SessionOptions::label

struct Flags {
  std::string action, session;
  std::vector<std::uint64_t> ids;
  std::string file, out, lease, label;
  std::int64_t quota = 0;
};

// Wishes that the daemon has cut down, which is no error, are better known.
void PrintCuts(const Context& context, const client::SessionOptions& wish, const client::Session& session) {
  if (session.lease() < wish.lease) {
    context.err << "kernctl: the daemon gives a lease of " << absl::FormatDuration(session.lease()) << ", not "
                << absl::FormatDuration(wish.lease) << '\n';
  }
  if (session.quota_bytes() < wish.quota_bytes) {
    context.err << "kernctl: the daemon gives a quota of " << FormatBytes(session.quota_bytes()) << ", not "
                << FormatBytes(wish.quota_bytes) << '\n';
  }
}

int Open(const Context& context, const Flags& flags, const client::Client& client) {
  const client::SessionOptions options{
      .lease = DurationOf(flags.lease), .quota_bytes = flags.quota, .label = flags.label};
  absl::StatusOr<client::Session> session = client.OpenSession(options, context.CallOptions());
  if (!session.ok()) return context.CallFailed(session.status());
  session->Release();
  if (context.json) {
    PrintJson(context, {{"session", SessionIdText(session->id())},
                        {"server_epoch", session->server_epoch()},
                        {"endpoint", session->endpoint()},
                        {"lease_s", absl::ToDoubleSeconds(session->lease())},
                        {"quota_bytes", session->quota_bytes()}});
  } else {
    context.out << SessionIdText(session->id()) << '\n';  // alone, for $(kernctl tensors open)
    PrintCuts(context, options, *session);
  }
  return kOk;
}

int Close(const Context& context, const Flags& flags, client::Session& session) {
  const absl::Status closed = session.Close(context.CallOptions());
  if (!closed.ok()) return context.CallFailed(closed);
  if (context.json) PrintJson(context, {{"session", flags.session}});
  return kOk;
}

// What was moved, for programs: people see that nothing was said.
void PrintMoved(const Context& context, std::uint64_t id, const client::TensorView& tensor, const std::string& file) {
  if (!context.json) return;
  PrintJson(context, {{"id", id},
                      {"dtype", std::string(client::Name(tensor.dtype))},
                      {"shape", tensor.shape},
                      {"bytes", tensor.data.size()},
                      {"file", file}});
}

int List(const Context& context, const Flags&, client::Session& session) {
  const absl::StatusOr<client::SessionContents> contents = session.List(context.CallOptions());
  if (!contents.ok()) return context.CallFailed(contents.status());
  if (context.json) {
    json tensors = json::array();
    for (const client::TensorInfo& t : contents->tensors) {
      tensors.push_back({{"id", t.id},
                         {"dtype", std::string(client::Name(t.dtype))},
                         {"shape", t.shape},
                         {"state", std::string(client::Name(t.state))},
                         {"bytes", t.bytes},
                         {"device", t.device},
                         {"users", t.users}});
    }
    PrintJson(context, {{"tensors", tensors},
                        {"used_bytes", contents->used_bytes},
                        {"quota_bytes", contents->quota_bytes},
                        {"lease_left_s", absl::ToDoubleSeconds(contents->lease_left)}});
    return kOk;
  }
  Table table({Table::Align::kRight, Table::Align::kLeft, Table::Align::kLeft, Table::Align::kRight});
  table.Add({"id", "tensor", "state", "size", "device", "users"});
  for (const client::TensorInfo& t : contents->tensors) {
    table.Add({std::to_string(t.id), client::ToString(t.dtype, t.shape), std::string(client::Name(t.state)),
               FormatBytes(t.bytes), t.device, std::to_string(t.users)});
  }
  table.Print(context.out);
  context.out << FormatBytes(contents->used_bytes) << " of " << FormatBytes(contents->quota_bytes) << ", lease ends in "
              << absl::FormatDuration(contents->lease_left) << " unless the session is used\n";
  return kOk;
}

int Put(const Context& context, const Flags& flags, client::Session& session) {
  const absl::StatusOr<client::Tensor> tensor = ReadTensor(flags.file);
  if (!tensor.ok()) return context.BadArguments(tensor.status());
  absl::Status put;
  {
    const Busy busy(context.err, context.terminal.progress, "sending " + FormatBytes(std::ssize(tensor->bytes())),
                    context.Timeout());
    put = session.Put(flags.ids.front(), tensor->view(), context.CallOptions());
  }
  if (!put.ok()) return context.CallFailed(put);
  PrintMoved(context, flags.ids.front(), tensor->view(), flags.file);
  return kOk;
}

int Get(const Context& context, const Flags& flags, client::Session& session) {
  if (const absl::Status writable = CheckOutput(flags.out); !writable.ok()) return context.BadArguments(writable);
  std::optional<Busy> busy(std::in_place, context.err, context.terminal.progress, "receiving", context.Timeout());
  const absl::StatusOr<client::Tensor> tensor = session.Get(flags.ids.front(), context.CallOptions());
  busy.reset();
  if (!tensor.ok()) return context.CallFailed(tensor.status());
  const absl::Status written = WriteTensor(flags.out, "tensor", tensor->view());
  if (!written.ok()) return context.BadArguments(written);
  PrintMoved(context, flags.ids.front(), tensor->view(), flags.out);
  return kOk;
}

int Delete(const Context& context, const Flags& flags, client::Session& session) {
  const absl::Status deleted = session.Delete(flags.ids, context.CallOptions());
  if (!deleted.ok()) return context.CallFailed(deleted);
  if (context.json) PrintJson(context, {{"ids", flags.ids}});
  return kOk;
}

// What can be done, and with which options.
struct Deed {
  const char* name;
  int (*run)(const Context&, const Flags&, client::Session&);  // null: open, which has none yet
  std::size_t min_ids = 0, max_ids = 0;
  bool file = false, out = false;
};

constexpr Deed kDeeds[] = {
    {.name = "open", .run = nullptr},
    {.name = "list", .run = List},
    {.name = "put", .run = Put, .min_ids = 1, .max_ids = 1, .file = true},
    {.name = "get", .run = Get, .min_ids = 1, .max_ids = 1, .out = true},
    {.name = "delete", .run = Delete, .min_ids = 1, .max_ids = SIZE_MAX},
    {.name = "close", .run = Close},
};

std::vector<std::string> DeedNames() {
  std::vector<std::string> names;
  for (const Deed& deed : kDeeds) names.emplace_back(deed.name);
  return names;
}

// INVALID_ARGUMENT where the deed needs what is not given, or has no use for what is: "tensors get needs --out".
absl::Status CheckFlags(const Deed& deed, const Flags& flags) {
  const bool open = deed.run == nullptr;
  const auto wrong = [&deed](const std::string& what) {
    return absl::InvalidArgumentError("tensors " + std::string(deed.name) + what);
  };
  struct Use {
    const char* option;
    bool given, needed, taken;
  };
  const Use uses[] = {
      {"--session", !flags.session.empty(), !open, !open},
      {deed.max_ids == 1 ? "one --id" : "--id", !flags.ids.empty(), deed.min_ids > 0, deed.max_ids > 0},
      {"--file", !flags.file.empty(), deed.file, deed.file},
      {"--out", !flags.out.empty(), deed.out, deed.out},
      {"--lease", !flags.lease.empty(), false, open},
      {"--quota", flags.quota > 0, false, open},
      {"--label", !flags.label.empty(), false, open},
  };
  for (const Use& use : uses) {
    if (use.needed && !use.given) return wrong(std::string(" needs ") + use.option);
    if (use.given && !use.taken) return wrong(std::string(" takes no ") + use.option);
  }
  return flags.ids.size() > deed.max_ids ? wrong(" needs one --id") : absl::OkStatus();
}

int RunTensors(const Context& context, const Flags& flags) {
  const Deed& deed =
      *std::find_if(std::begin(kDeeds), std::end(kDeeds), [&flags](const Deed& d) { return flags.action == d.name; });
  if (const absl::Status right = CheckFlags(deed, flags); !right.ok()) return context.BadArguments(right);
  const absl::StatusOr<client::Client> client = context.Connect();
  if (!client.ok()) return context.BadArguments(client.status());
  if (deed.run == nullptr) return Open(context, flags, *client);
  client::Session session = AttachSession(*client, flags.session);
  return deed.run(context, flags, session);
}

}  // namespace

void AddTensors(CLI::App& app, const Context& context, Action& action) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("tensors", "Tensors that stay at the daemon, in a session");
  command->footer(
      "S=$(kernctl tensors open --label weights)\n"
      "kernctl tensors put --session $S --id 1 --file weights.safetensors:layer.0\n"
      "kernctl matmul --session $S --a x.npy --b resident:1 --out resident:2\n"
      "kernctl tensors get --session $S --id 2 --out y.npy\n"
      "kernctl tensors close --session $S");
  command->add_option("action", flags->action, "What to do")->required()->check(CLI::IsMember(DeedNames()));
  command->add_option("--session", flags->session, "The session; all but open need one")->check(IsSessionId());
  command->add_option("--id", flags->ids, "Ids of tensors, of your choice: put, get (one), delete")
      ->delimiter(',')
      ->transform(TensorId())
      ->allow_extra_args(false)
      ->type_name("N,N,...");
  command->add_option("--file", flags->file, "put: the tensor")->type_name("FILE");
  command->add_option("--out", flags->out, "get: write the tensor to this file")->type_name("FILE");
  command
      ->add_option("--lease", flags->lease, "open: ends when it has not been used for so long; default: the daemon's")
      ->check(IsDuration(absl::Seconds(1)));
  command->add_option("--quota", flags->quota, "open: most that its tensors may have; default: the daemon's")
      ->transform(ByteCount())
      ->type_name("BYTES");
  command->add_option("--label", flags->label, "open: a name for the daemon's logs, of at most 128 bytes")
      ->check(IsText(kMaxLabelBytes))
      ->type_name("TEXT");
  command->callback([&context, &action, flags] { action = [&context, flags] { return RunTensors(context, *flags); }; });
}

}  // namespace kernd::cli
