// kernbench: times kernels without the service. Operands lie where the backend wants them; no network, no copies.
// Exit codes: 0 well, 1 bad arguments, or a problem that cannot run.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernd/kernels/error.h"
#include "nlohmann/json.hpp"
#include "server/config/build_info.h"
#include "tests/bench/kernbench.h"

namespace kernd::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFooter[] =
    "Examples:\n"
    "  kernbench matmul 1024x1024x1024 1x4096x4096 --dtype f32,bf16 --peer onednn-primitive\n"
    "  kernbench attention 1x8x1024x64 1x32x1024x128,8 --dtype f16 --causal --json\n"
    "Data are random. A problem runs twice to warm up, then --repeat times; its figure is the median. A peer's runs\n"
    "alternate with its own, so that both meet the same machine; a ratio above 1 means that the peer is slower.";

struct Flags {
  std::string backend = "cpu", kernel, peer, unit;
  std::vector<std::string> dtypes = {"f32"}, shapes;
  std::string result_dtype;
  bool causal = false, transpose_b = false, tf32 = false, json = false;
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  int repeat = 0;
};

// What the options and one shape pose.
struct Case {
  std::string name;  // "matmul/f32/64x64x64"
  std::variant<MatmulProblem, AttentionProblem> problem;
  double operations = 0;  // multiplications and additions, visible scores only
};

struct Row {
  std::string name, kernel;
  double seconds = 0, best = 0;  // median, fastest
  std::optional<double> peer_seconds;
  double operations = 0;
};

DataType DataTypeOf(const std::string& token) {
  for (int i = 1; i <= static_cast<int>(DataType::kF8E5M2); ++i) {
    if (Token(static_cast<DataType>(i)) == token) return static_cast<DataType>(i);
  }
  return DataType::kInvalid;
}

CLI::Validator IsDataType() {
  return CLI::Validator(
      [](const std::string& token) {
        return DataTypeOf(token) == DataType::kInvalid ? "'" + token + "' is no dtype such as f32, bf16, f8e4m3 or i8"
                                                       : std::string();
      },
      "DTYPE");
}

// Positive numbers between the characters of `separators`. Empty: something else is there.
std::vector<std::int64_t> ParseNumbers(const std::string& text, const char* separators) {
  std::vector<std::int64_t> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, number);
    if (error != std::errc() || stop != text.data() + end || number < 1) return {};
    numbers.push_back(number);
    begin = end + 1;
  }
  return numbers;
}

absl::StatusOr<Case> MatmulCase(const Flags& flags, DataType dtype, const std::string& shape) {
  const std::vector<std::int64_t> sizes = ParseNumbers(shape, "x");
  if (sizes.size() != 3) return absl::InvalidArgumentError("shape " + shape + ": must be MxNxK");
  const auto [m, n, k] = std::tuple(sizes[0], sizes[1], sizes[2]);
  MatmulProblem p{.a = {.dtype = dtype, .shape = {m, k}}, .b = {.dtype = dtype, .shape = {k, n}}};
  p.transpose_b = flags.transpose_b;
  if (flags.tf32) p.numerics = Numerics::kTf32;
  if (p.transpose_b) p.b.shape = {n, k};
  p.output_dtype = DataTypeOf(flags.result_dtype);
  const std::string token = flags.tf32 ? "tf32" : std::string(Token(dtype));
  return Case{.name = "matmul/" + token + "/" + shape + (flags.transpose_b ? "/tb" : ""),
              .problem = std::move(p),
              .operations = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)};
}

// "8", or "8x2" where they differ.
std::string Both(std::int64_t q, std::int64_t kv) {
  return std::to_string(q) + (q == kv ? "" : "x" + std::to_string(kv));
}

absl::StatusOr<Case> AttentionCase(const Flags& flags, DataType dtype, const std::string& shape) {
  const std::size_t comma = std::min(shape.find(','), shape.size());
  const std::vector<std::int64_t> q = ParseNumbers(shape.substr(0, comma), "x");
  std::vector<std::int64_t> kv;
  if (comma < shape.size()) kv = ParseNumbers(shape.substr(comma + 1), ",");
  if (q.size() != 4 || (comma < shape.size() && (kv.empty() || kv.size() > 3))) {
    return absl::InvalidArgumentError("shape " + shape +
                                      ": must be BxHqxLqxD, with ,Hkv[,Lkv[,Dv]] after it where they differ");
  }
  const auto [batch, heads, length, dim] = std::tuple(q[0], q[1], q[2], q[3]);
  const std::int64_t kv_heads = kv.empty() ? heads : kv[0], kv_length = kv.size() > 1 ? kv[1] : length,
                     v_dim = kv.size() > 2 ? kv[2] : dim;
  AttentionProblem p{.q = {.dtype = dtype, .shape = {batch, heads, length, dim}},
                     .k = {.dtype = dtype, .shape = {batch, kv_heads, kv_length, dim}},
                     .v = {.dtype = dtype, .shape = {batch, kv_heads, kv_length, v_dim}},
                     .causal = flags.causal};
  if (flags.causal) p.alignment = MaskAlignment::kBottomRight;
  p.output_dtype = DataTypeOf(flags.result_dtype);

  std::int64_t scores = length * kv_length;
  if (flags.causal) {
    scores = 0;
    for (std::int64_t i = 0; i < length; ++i)
      scores += std::clamp<std::int64_t>(i + kv_length - length + 1, 0, kv_length);
  }
  return Case{
      .name = "attention/" + std::string(Token(dtype)) + "/b" + std::to_string(batch) + "h" + Both(heads, kv_heads) +
              "/d" + Both(dim, v_dim) + "/L" + Both(length, kv_length) + (flags.causal ? "/causal" : "/full"),
      .problem = std::move(p),
      .operations =
          2.0 * static_cast<double>(batch * heads) * static_cast<double>(scores) * static_cast<double>(dim + v_dim)};
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// As many as take about a second.
int RoundsFor(double seconds) {
  return static_cast<int>(std::clamp(1.0 / std::max(seconds, 1e-7), 15.0, 2000.0));
}

absl::StatusOr<Row> Time(const Flags& flags, const Case& c, Target& target, Target* peer_target) {
  const KernelRequest request{.name = flags.kernel};
  const auto prepare = [&](Target& by, const KernelRequest& wish) {
    return std::visit([&](const auto& problem) { return by.Prepare(problem, wish); }, c.problem);
  };
  KERND_ASSIGN_OR_RETURN(const std::unique_ptr<Runnable> own, prepare(target, request));
  std::unique_ptr<Runnable> peer;
  if (peer_target != nullptr) {
    absl::StatusOr<std::unique_ptr<Runnable>> prepared = prepare(*peer_target, {});
    if (!prepared.ok() && !absl::IsUnimplemented(prepared.status())) return prepared.status();
    if (prepared.ok()) peer = *std::move(prepared);
  }
  for (Runnable* each : {own.get(), peer.get()}) {
    if (each != nullptr) KERND_RETURN_IF_ERROR(each->Run().status());
  }
  KERND_ASSIGN_OR_RETURN(const double warm, own->Run());
  std::vector<double> own_times, peer_times;
  for (int i = flags.repeat > 0 ? flags.repeat : RoundsFor(warm); i > 0; --i) {
    KERND_ASSIGN_OR_RETURN(const double seconds, own->Run());
    own_times.push_back(seconds);
    if (peer == nullptr) continue;
    KERND_ASSIGN_OR_RETURN(const double peer_seconds, peer->Run());
    peer_times.push_back(peer_seconds);
  }
  Row row{.name = c.name,
          .kernel = std::string(own->kernel()),
          .seconds = Median(own_times),
          .best = *std::min_element(own_times.begin(), own_times.end()),
          .operations = c.operations};
  if (!flags.kernel.empty()) row.name += flags.kernel.substr(flags.kernel.rfind('_')).replace(0, 1, "/");
  if (peer != nullptr) row.peer_seconds = Median(peer_times);
  return row;
}

double In(const std::string& unit, double seconds, double operations) {
  if (unit == "ms") return seconds * 1e3;
  if (unit == "us") return seconds * 1e6;
  return operations / seconds * (unit == "TFLOP/s" ? 1e-12 : 1e-9);
}

void PrintRow(const Flags& flags, const Row& row) {
  std::printf("%-44s %-28s %10.4g %-8s best %.4g", row.name.c_str(), row.kernel.c_str(),
              In(flags.unit, row.seconds, row.operations), flags.unit.c_str(),
              In(flags.unit, row.best, row.operations));
  if (row.peer_seconds) {
    std::printf("  %s %.4g, ratio %.3f", flags.peer.c_str(), In(flags.unit, *row.peer_seconds, row.operations),
                *row.peer_seconds / row.seconds);
  }
  std::printf("\n");
  std::fflush(stdout);
}

Json JsonOf(const Flags& flags, const Row& row) {
  Json json = {{"name", row.name}, {"value", In(flags.unit, row.seconds, row.operations)}, {"unit", flags.unit}};
  if (row.peer_seconds) {
    json["peer"] = flags.peer;
    json["peer_value"] = In(flags.unit, *row.peer_seconds, row.operations);
    json["ratio"] = *row.peer_seconds / row.seconds;
  }
  return json;
}

std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

Json Machine(const Flags& flags, const Target& target) {
  const std::string today = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  return {{"gpu", target.gpu()},
          {"driver", target.driver()},
          {"cpu", CpuModel() + ", " + std::to_string(flags.threads) + " threads"},
          {"date", today},
          {"build", config::VersionLine()}};
}

using CaseMaker = absl::StatusOr<Case> (*)(const Flags&, DataType, const std::string&);

absl::StatusOr<std::unique_ptr<Target>> TargetOf(const Flags& flags) {
  if (flags.backend == "cuda") return MakeGpuTarget();
  return MakeCpuTarget(flags.threads);
}

// Null: none is asked for.
absl::StatusOr<std::unique_ptr<Target>> PeerOf(const Flags& flags) {
  if (flags.peer.empty()) return nullptr;
  if ((flags.peer == "cublaslt-best") != (flags.backend == "cuda")) {
    return absl::InvalidArgumentError(flags.peer + " is no peer of the " + flags.backend + " backend");
  }
  if (flags.backend == "cuda") return MakeCublasLtTarget();
  return MakeOnednnTarget(flags.threads);
}

// Every problem, whatever becomes of the others.
int RunAll(const Flags& flags, CaseMaker make_case) {
  const absl::StatusOr<std::unique_ptr<Target>> target = TargetOf(flags), peer = PeerOf(flags);
  for (const absl::Status& status : {target.status(), peer.status()}) {
    if (status.ok()) continue;
    std::cerr << "kernbench: " << status.message() << '\n';
    return 1;
  }
  Json rows = Json::array();
  int code = 0;
  for (const std::string& dtype : flags.dtypes) {
    for (const std::string& shape : flags.shapes) {
      const auto timed = [&]() -> absl::StatusOr<Row> {
        KERND_ASSIGN_OR_RETURN(const Case c, make_case(flags, DataTypeOf(dtype), shape));
        return Time(flags, c, **target, peer->get());
      }();
      if (!timed.ok()) {
        std::cerr << "kernbench: " << dtype << ' ' << shape << ": " << timed.status().message() << '\n';
        code = 1;
      } else if (flags.json) {
        rows.push_back(JsonOf(flags, *timed));
      } else {
        PrintRow(flags, *timed);
      }
    }
  }
  if (flags.json) std::cout << Json{{"machine", Machine(flags, **target)}, {"results", rows}}.dump(1) << '\n';
  return code;
}

int ListKernels(const Flags& flags) {
  const absl::StatusOr<std::unique_ptr<Target>> target = TargetOf(flags);
  if (!target.ok()) {
    std::cerr << "kernbench: " << target.status().message() << '\n';
    return 1;
  }
  for (const VariantInfo& variant : (*target)->Variants()) {
    std::string dtypes;
    for (const DataType dtype : variant.dtypes) dtypes += (dtypes.empty() ? "" : ",") + std::string(Token(dtype));
    std::printf("%-28s %-36s %s\n", variant.name.c_str(), dtypes.c_str(), variant.method.c_str());
  }
  return 0;
}

CLI::App* AddOperation(CLI::App& app, Flags& flags, const char* name, const char* what, const char* shape) {
  CLI::App* command = app.add_subcommand(name, what);
  command->add_option("shapes", flags.shapes, "One problem each")->required()->type_name(shape);
  command->add_option("--dtype", flags.dtypes, "Of the operands; several: one problem each")
      ->check(IsDataType())
      ->delimiter(',')
      ->allow_extra_args(false)
      ->capture_default_str();
  command->add_option("--result-dtype", flags.result_dtype, "Of the result; default: the operation's own")
      ->check(IsDataType());
  command->add_option("--kernel", flags.kernel, "The variant to run; default: the one that a call would get")
      ->type_name("NAME");
  command->add_option("--repeat", flags.repeat, "Runs that count; default: about a second's worth, 15 to 2000")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", flags.json, "Print {\"machine\": ..., \"results\": [...]} in the end");
  return command;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("kernbench: times kernels of kernd without the service", "kernbench");
  app.set_version_flag("--version", config::VersionLine());
  app.add_option("--backend", flags.backend, "Whose kernels")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--threads", flags.threads, "CPU threads that a kernel may use")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  const auto units = CLI::IsMember({"ms", "us", "GFLOP/s", "TFLOP/s"});
  CLI::App* matmul = AddOperation(app, flags, "matmul", "D = AB", "MxNxK");
  matmul->add_option("--unit", flags.unit, "Of the figures; default: GFLOP/s")->check(units);
  matmul->add_flag("--transpose-b", flags.transpose_b, "B as [N, K]: as 8-bit operands like it");
  matmul->add_flag("--tf32", flags.tf32, "F32 operands may be rounded to TF32");
  matmul->add_option("--peer", flags.peer, "Run this library's product in turns with ours")
      ->check(CLI::IsMember({"onednn-primitive", "cublaslt-best"}));
  CLI::App* attention = AddOperation(app, flags, "attention", "O = softmax(QK^T) V", "BxHqxLqxD[,Hkv[,Lkv[,Dv]]]");
  attention->add_option("--unit", flags.unit, "Of the figures; default: ms")->check(units);
  attention->add_flag("--causal", flags.causal, "Row i sees no key after its own position; diagonal bottom-right");
  CLI::App* kernels = app.add_subcommand("kernels", "List the variants that this machine runs");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::cerr << "kernbench: " << error.what() << "; kernbench --help lists commands and options\n";
    return 1;
  }
  if (kernels->parsed()) return ListKernels(flags);
  if (flags.unit.empty()) flags.unit = matmul->parsed() ? "GFLOP/s" : "ms";
  return RunAll(flags, matmul->parsed() ? MatmulCase : AttentionCase);
}

}  // namespace
}  // namespace kernd::bench

int main(int argc, char** argv) {
  return kernd::bench::Main(argc, argv);
}
