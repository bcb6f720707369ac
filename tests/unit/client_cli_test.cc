// kernctl without its process: what it prints, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/app.h"
#include "client/cli/context.h"
#include "client/cli/files/tensor_file.h"
#include "client/cli/operands.h"
#include "client/cli/operation.h"
#include "client/cli/table.h"
#include "client/cli/types.h"
#include "kernels/reference/convert.h"
#include "nlohmann/json.hpp"
#include "tests/unit/client_fake_daemon.h"

namespace kernd::cli {
namespace {

using client::FakeDaemon;
using client::Refusal;
using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int code;
  std::string out, err;
};

Outcome Kernctl(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  const int code = Run(std::move(arguments), out, err);
  return {code, out.str(), err.str()};
}

Outcome Kernctl(const FakeDaemon& daemon, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--endpoint", daemon.endpoint()});
  return Kernctl(std::move(arguments));
}

class CliTest : public testing::Test {
 protected:
  CliTest() {
    ::unsetenv("KERND_ENDPOINT");
    std::string name = (std::filesystem::temp_directory_path() / "kernd-cli.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    daemon_.attention = [this](grpc::ServerContext&, const v1::AttentionRequest& request, v1::AttentionReply& reply) {
      attention_ = request;
      *reply.mutable_o() = request.attention().q();
      reply.mutable_lse()->set_dtype(v1::DATA_TYPE_F32);
      reply.mutable_lse()->add_shape(1);
      reply.mutable_lse()->set_data("\0\0\x80\x3f", 4);
      Fill(reply);
      return grpc::Status::OK;
    };
    daemon_.matmul = [this](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
      matmul_ = request;
      *reply.mutable_d() = request.matmul().a();
      Fill(reply);
      return grpc::Status::OK;
    };
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }

  template <typename Reply>
  static void Fill(Reply& reply) {
    reply.mutable_kernel()->set_name("some_kernel");
    reply.mutable_kernel()->set_device("cpu");
    reply.mutable_kernel()->set_numerics("default");
    reply.mutable_kernel()->set_reason("forced");
    reply.mutable_timing()->set_total_us(100);
    reply.mutable_timing()->set_kernel_us(75.25);
    reply.mutable_memory()->set_peak_bytes(2048);
    reply.mutable_memory()->set_naive_bytes(7168);
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  // A file with `values` as F32 [1, 1, 2, 2].
  std::string File(const std::string& name, const std::vector<float>& values) const {
    EXPECT_TRUE(WriteTensor(Path(name), "x", client::View(values, {1, 1, 2, 2})).ok());
    return Path(name);
  }

  std::filesystem::path folder_;
  FakeDaemon daemon_;
  v1::AttentionRequest attention_;
  v1::MatmulRequest matmul_;
};

constexpr char kHelp[] =
    R"(kernctl: matrix products and attention on a kernd daemon
Usage: kernctl [OPTIONS] [SUBCOMMAND]

Options:
  -h,--help                   Print this help message and exit
  --version                   Display program version information and exit
  --endpoint TARGET=127.0.0.1:50051 (Env:KERND_ENDPOINT)
                              HOST:PORT or unix:/path of the daemon
  --timeout TEXT:TIME=60s     Of a call, retries included
  --metadata TEXT:KEY=VALUE ...
                              Send this with each call; may be repeated
  --json                      Print JSON; errors too, on standard error

Subcommands:
  matmul                      D = act(alpha * op(A) op(B) + beta * C + bias)
  attention                   O = softmax(QK^T) V
  health                      Whether the daemon serves: exit code 0, or 4 where it does not
  gpu-info                    The daemon, its devices, and what it can compute
  kernels                     The kernels of the daemon

Tensor files: FILE.npy, FILE.safetensors (with one tensor), FILE.safetensors:TENSOR.
Exit codes: 0 well; 1 bad arguments or files; 2 no connection; 3 the call failed or was refused;
4 not SERVING, or not what --expect says.
)";

TEST_F(CliTest, Help) {
  const Outcome help = Kernctl({"--help"});
  EXPECT_EQ(help.code, kOk);
  EXPECT_EQ(help.out, kHelp);
  EXPECT_EQ(help.err, "");
  for (const char* option :
       {"--q ",          "--k ",         "--v ",          "--random ",    "--dtype ",       "--seed ",
        "--layout ",     "--scale ",     "--causal",      "--alignment ", "--window-left ", "--window-right ",
        "--softcap ",    "--mask ",      "--bias ",       "--slopes ",    "--sinks ",       "--q-lengths ",
        "--kv-lengths ", "--q-offsets ", "--kv-offsets ", "--q-scale ",   "--k-scale ",     "--v-scale ",
        "--lse",         "--lse-out ",   "--out ",        "--out-dtype ", "--numerics ",    "--kernel ",
        "--tile ",       "--expect ",    "--tolerance ",  "--plan"}) {
    EXPECT_THAT(Kernctl({"attention", "--help"}).out, HasSubstr(option));
  }
  for (const char* option : {"--a ", "--b ", "--c ", "--bias ", "--transpose-a", "--transpose-b", "--alpha ", "--beta ",
                             "--activation ", "--a-scale ", "--a-scale-block ", "--b-scale ", "--b-scale-block "}) {
    EXPECT_THAT(Kernctl({"matmul", "--help"}).out, HasSubstr(option));
  }
}

TEST_F(CliTest, VersionIsTheLibrarys) {
  EXPECT_EQ(Kernctl({"--version"}).out, "kernctl " + std::string(client::Version()) + "\n");
}

TEST_F(CliTest, BadArgumentsEndWithOneAndOneLine) {
  const std::vector<std::vector<std::string>> lines = {
      {"dance"},
      {"health", "--wait", "soon"},
      {"health", "--wait", "-1s"},
      {"health", "--timeout", "0s"},
      {"health", "--metadata", "novalue"},
      {"attention"},
      {"attention", "--random", "1x2x3"},
      {"attention", "--random", "1x2x3x4,5,6,7,8"},
      {"attention", "--random", "1x2x3x4", "--dtype", "F7"},
      {"attention", "--random", "1x2x3x4", "--dtype", "BOOL"},
      {"attention", "--random", "1x2x3x4", "--layout", "hlbd"},
      {"attention", "--random", "1x2x3x4", "--tile", "1x2"},
      {"attention", "--q", "absent.npy", "--k", "absent.npy", "--v", "absent.npy"},
      {"matmul", "--random", "1x-2x3"},
      {"matmul", "--random", "99999999999999999999x2x3"},
      {"matmul", "--random", "4611686018427387904x2x4611686018427387904"},
      {"matmul", "--random", "2x2x2", "--activation", "tanh"},
      {"matmul", "--random", "2x2x2", "--priority", "101"},
      {"matmul", "--random", "2x2x2", "--tolerance", "-1"},
  };
  for (const std::vector<std::string>& line : lines) {
    const Outcome outcome = Kernctl(line);
    EXPECT_EQ(outcome.code, kBadArguments) << testing::PrintToString(line);
    EXPECT_EQ(outcome.out, "") << testing::PrintToString(line);
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_THAT(outcome.err, testing::StartsWith("kernctl: "));
  }
  EXPECT_THAT(Kernctl({"dance"}).err, HasSubstr("dance"));
  EXPECT_EQ(Kernctl({}).code, kBadArguments);
  EXPECT_THAT(Kernctl({}).err, HasSubstr("Usage:"));
}

TEST_F(CliTest, NoDaemonIsOneLine) {
  const Outcome outcome = Kernctl({"--endpoint", "unix:/nonexistent/kernd.sock", "health"});
  EXPECT_EQ(outcome.code, kNotConnected);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "kernctl: no kernd at unix:/nonexistent/kernd.sock (No such file or directory)\n");
}

TEST_F(CliTest, TheEndpointMayStandInTheEnvironment) {
  ::setenv("KERND_ENDPOINT", "unix:/nonexistent/from-environment.sock", 1);
  EXPECT_THAT(Kernctl({"health"}).err, HasSubstr("from-environment"));
  EXPECT_THAT(Kernctl({"--endpoint", "unix:/nonexistent/from-flag.sock", "health"}).err, HasSubstr("from-flag"));
  ::unsetenv("KERND_ENDPOINT");
}

TEST_F(CliTest, HealthHasTheExitCodesOfTheProbe) {
  using Response = grpc::health::v1::HealthCheckResponse;
  std::atomic<int> calls = 0;
  grpc::Status status;
  Response::ServingStatus answer = Response::SERVING;
  int refusals = 0;
  daemon_.health = [&](grpc::ServerContext&, const grpc::health::v1::HealthCheckRequest&, Response& reply) {
    reply.set_status(++calls > refusals ? answer : Response::NOT_SERVING);
    return status;
  };
  Outcome outcome = Kernctl(daemon_, {"health"});
  EXPECT_EQ(outcome.code, kOk);
  EXPECT_EQ(outcome.out, "SERVING\n");
  EXPECT_EQ(json::parse(Kernctl(daemon_, {"health", "--json"}).out).at("status"), "SERVING");

  answer = Response::NOT_SERVING;
  outcome = Kernctl(daemon_, {"health"});
  EXPECT_EQ(outcome.code, kWrong);
  EXPECT_EQ(outcome.out, "NOT_SERVING\n");

  status = grpc::Status(grpc::NOT_FOUND, "no such service");
  EXPECT_EQ(Kernctl(daemon_, {"health", "--service", "x", "--wait", "1h"}).code, kCallFailed) << "waiting is no use";

  status = grpc::Status::OK;
  answer = Response::SERVING;
  calls = 0;
  refusals = 2;
  EXPECT_EQ(Kernctl(daemon_, {"health", "--wait", "1h"}).code, kOk);
  EXPECT_EQ(calls, 3);
}

TEST_F(CliTest, AttentionSendsWhatItsOptionsSay) {
  const std::string x = File("x.npy", {1, 2, 3, 4});
  const Outcome outcome = Kernctl(daemon_, {"attention",
                                            "--q",
                                            x,
                                            "--k",
                                            x,
                                            "--v",
                                            x,
                                            "--layout",
                                            "blhd",
                                            "--scale",
                                            "-0.5",
                                            "--causal",
                                            "--alignment",
                                            "bottom-right",
                                            "--window-left",
                                            "0",
                                            "--window-right",
                                            "9",
                                            "--softcap",
                                            "30",
                                            "--slopes",
                                            "0.5,0.25",
                                            "--sinks",
                                            "1,-2",
                                            "--q-lengths",
                                            "1",
                                            "--kv-lengths",
                                            "2",
                                            "--lse",
                                            "--numerics",
                                            "batch-invariant",
                                            "--tile",
                                            "16x32x64",
                                            "--out-dtype",
                                            "f32",
                                            "--request-id",
                                            "id-1",
                                            "--priority",
                                            "-3",
                                            "--device",
                                            "cpu"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  const v1::AttentionOp& op = attention_.attention();
  EXPECT_EQ(op.layout(), v1::ATTENTION_LAYOUT_BLHD);
  EXPECT_EQ(op.q().data().size(), 16u);
  EXPECT_EQ(op.scale(), -0.5);
  EXPECT_TRUE(op.causal());
  EXPECT_EQ(op.alignment(), v1::MASK_ALIGNMENT_BOTTOM_RIGHT);
  EXPECT_TRUE(op.has_window_left());
  EXPECT_EQ(op.window_right(), 9);
  EXPECT_EQ(op.softcap(), 30);
  EXPECT_THAT(op.alibi_slopes(), testing::ElementsAre(0.5f, 0.25f));
  EXPECT_THAT(op.sinks(), testing::ElementsAre(1.f, -2.f));
  EXPECT_THAT(op.q_lengths(), testing::ElementsAre(1));
  EXPECT_THAT(op.kv_lengths(), testing::ElementsAre(2));
  EXPECT_TRUE(op.want_lse());
  EXPECT_EQ(op.numerics(), v1::NUMERICS_BATCH_INVARIANT);
  EXPECT_EQ(op.kernel().tile().n(), 32);
  EXPECT_EQ(op.o().dtype(), v1::DATA_TYPE_F32);
  EXPECT_EQ(attention_.options().request_id(), "id-1");
  EXPECT_EQ(attention_.options().priority(), -3);
  EXPECT_EQ(attention_.options().placement().device_uuid(), "cpu");
}

TEST_F(CliTest, RandomPackedAttentionHasOffsetsAndNothingUnasked) {
  ASSERT_EQ(Kernctl(daemon_, {"attention", "--random", "3x4x5x6,2,7,8", "--layout", "packed", "--dtype", "bf16"}).code,
            kOk);
  const v1::AttentionOp& packed = attention_.attention();
  EXPECT_THAT(packed.q().shape(), testing::ElementsAre(15, 4, 6));
  EXPECT_THAT(packed.k().shape(), testing::ElementsAre(21, 2, 6));
  EXPECT_THAT(packed.v().shape(), testing::ElementsAre(21, 2, 8));
  EXPECT_THAT(packed.q_offsets(), testing::ElementsAre(0, 5, 10, 15));
  EXPECT_THAT(packed.kv_offsets(), testing::ElementsAre(0, 7, 14, 21));
  EXPECT_EQ(packed.q().dtype(), v1::DATA_TYPE_BF16);
  EXPECT_FALSE(packed.has_scale() || packed.has_window_left() || packed.has_softcap() || packed.has_kernel() ||
               packed.has_o());
  EXPECT_FALSE(attention_.has_options());
}

TEST_F(CliTest, MatmulSendsWhatItsOptionsSay) {
  const std::vector<float> scale = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(WriteTensor(Path("row.npy"), "s", client::View(scale, {6})).ok());
  ASSERT_TRUE(WriteTensor(Path("block.npy"), "s", client::View(scale, {2, 3})).ok());
  const Outcome outcome = Kernctl(daemon_, {"matmul",
                                            "--random",
                                            "5x6x2x3",
                                            "--dtype",
                                            "i8",
                                            "--transpose-a",
                                            "--transpose-b",
                                            "--alpha",
                                            "0",
                                            "--beta",
                                            "-2",
                                            "--activation",
                                            "gelu",
                                            "--a-scale",
                                            Path("block.npy"),
                                            "--a-scale-block",
                                            "3x1",
                                            "--b-scale",
                                            Path("row.npy"),
                                            "--c",
                                            Path("row.npy"),
                                            "--bias",
                                            Path("row.npy"),
                                            "--kernel",
                                            "k"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  const v1::MatmulOp& op = matmul_.matmul();
  EXPECT_THAT(op.a().shape(), testing::ElementsAre(5, 3, 6));
  EXPECT_THAT(op.b().shape(), testing::ElementsAre(5, 2, 3));
  EXPECT_TRUE(op.transpose_a() && op.transpose_b());
  EXPECT_TRUE(op.has_alpha());
  EXPECT_EQ(op.alpha(), 0);
  EXPECT_EQ(op.beta(), -2);
  EXPECT_EQ(op.activation(), v1::ACTIVATION_GELU);
  EXPECT_EQ(op.a_scale().kind(), v1::Scales::KIND_BLOCK);
  EXPECT_EQ(op.a_scale().block_rows(), 3);
  EXPECT_EQ(op.a_scale().block_k(), 1);
  EXPECT_EQ(op.b_scale().kind(), v1::Scales::KIND_ROW);
  EXPECT_EQ(op.c().shape_size(), 1);
  EXPECT_EQ(op.bias().shape_size(), 1);
  EXPECT_EQ(op.kernel().name(), "k");
  EXPECT_EQ(Kernctl(daemon_, {"matmul", "--random", "2x2x2", "--dtype", "i8", "--a-scale", Path("block.npy")}).code,
            kBadArguments)
      << "a scale for each block needs the block's size";
}

TEST_F(CliTest, ResultsAreWrittenAndCompared) {
  const std::string x = File("x.npy", {1, -2, 3, 4}), near = File("near.npy", {1, -2, 3, 4.00003f}),
                    far = File("far.npy", {1, -2, 3, 4.00005f});
  const std::vector<std::string> call = {"attention", "--q", x, "--k", x, "--v", x};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), call.begin(), call.end());
    return Kernctl(daemon_, more);
  };
  EXPECT_EQ(with({"--out", Path("o.safetensors"), "--lse-out", Path("lse.npy")}).code, kOk);
  const absl::StatusOr<client::Tensor> o = ReadTensor(Path("o.safetensors:o"));
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->values<float>()[1], -2);
  EXPECT_EQ(ReadTensor(Path("lse.npy"))->values<float>()[0], 1.0f);

  // F32: 1e-5 of the largest expected value, 4.
  const Outcome good = with({"--expect", near});
  EXPECT_EQ(good.code, kOk) << good.out;
  EXPECT_THAT(good.out, HasSubstr("expect  OK: max error 3"));
  const Outcome bad = with({"--expect", far});
  EXPECT_EQ(bad.code, kWrong);
  EXPECT_THAT(bad.out, HasSubstr("WRONG"));
  EXPECT_THAT(bad.out, HasSubstr("1 of 4 differ, first at [3]"));
  EXPECT_EQ(with({"--expect", far, "--tolerance", "1e-4"}).code, kOk);
  EXPECT_EQ(with({"--expect", near, "--tolerance", "0"}).code, kWrong);
  const json report = json::parse(with({"--expect", far, "--json"}).out);
  EXPECT_EQ(report.at("expect").at("ok"), false);
  EXPECT_EQ(report.at("expect").at("mismatches"), 1);

  const std::vector<float> flat = {1, -2, 3, 4};
  ASSERT_TRUE(WriteTensor(Path("flat.npy"), "x", client::View(flat, {4})).ok());
  EXPECT_EQ(with({"--expect", Path("flat.npy")}).code, kBadArguments) << "another shape";
  const std::string nan = File("nan.npy", {1, -2, 3, std::nanf("")});
  EXPECT_EQ(with({"--expect", nan}).code, kWrong) << "a number where NaN is expected";
}

TEST_F(CliTest, ACallIsReportedForPeople) {
  const std::string x = File("x.npy", {1, 2, 3, 4});
  const Outcome outcome = Kernctl(daemon_, {"attention", "--q", x, "--k", x, "--v", x});
  EXPECT_THAT(outcome.out, HasSubstr("q       F32[1,1,2,2]\n"));
  EXPECT_THAT(outcome.out, HasSubstr("kernel  some_kernel, on cpu, numerics default, chosen by forced\n"));
  EXPECT_THAT(outcome.out, HasSubstr("memory  2.0 KiB at most"));
  EXPECT_THAT(outcome.out, HasSubstr("naive   7.0 KiB, 3.5 times as much\n"));
  EXPECT_THAT(outcome.out, HasSubstr(" 75.2  #"));
  EXPECT_THAT(outcome.out, HasSubstr("\nqueue "));
  const json report = json::parse(Kernctl(daemon_, {"attention", "--q", x, "--k", x, "--v", x, "--json"}).out);
  EXPECT_EQ(report.at("results").at("o").at("shape"), json({1, 1, 2, 2}));
  EXPECT_EQ(report.at("timing_us").at("kernel"), 75.25);
  EXPECT_GT(report.at("timing_us").at("client"), 0.0);
  EXPECT_EQ(report.at("memory").at("naive_bytes"), 7168);
  EXPECT_EQ(report.at("kernel").at("reason"), "forced");
}

TEST_F(CliTest, APlanRunsNothing) {
  v1::PlanRequest seen;
  daemon_.plan = [&seen](grpc::ServerContext&, const v1::PlanRequest& request, v1::PlanReply& reply) {
    seen = request;
    v1::PlanReply::Step& step = *reply.add_steps();
    step.mutable_kernel()->set_name("planned_kernel");
    step.mutable_memory()->set_peak_bytes(1234);
    v1::Tensor& d = *step.add_results();
    d.set_dtype(v1::DATA_TYPE_F16);
    d.add_shape(3);
    return grpc::Status::OK;
  };
  const Outcome outcome = Kernctl(daemon_, {"matmul", "--random", "100000x100000x100000", "--plan"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("d       F16[3]\n"));
  EXPECT_THAT(outcome.out, HasSubstr("planned_kernel"));
  EXPECT_THAT(seen.steps(0).matmul().a().shape(), testing::ElementsAre(100000, 100000));
  EXPECT_EQ(json::parse(Kernctl(daemon_, {"matmul", "--random", "2x2x2", "--plan", "--json"}).out)
                .at("memory")
                .at("peak_bytes"),
            1234);
  EXPECT_EQ(matmul_.matmul().a().shape_size(), 0) << "the operation itself was called";
}

TEST_F(CliTest, ARefusalSaysFieldReasonWhenAndWhatNext) {
  daemon_.matmul = [](grpc::ServerContext&, const v1::MatmulRequest&, v1::MatmulReply&) {
    return Refusal(grpc::RESOURCE_EXHAUSTED, "no room", "MEMORY_FULL", "matmul.a", 1500);
  };
  const Outcome outcome = Kernctl(daemon_, {"matmul", "--random", "2x2x2"});
  EXPECT_EQ(outcome.code, kCallFailed);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "kernctl: RESOURCE_EXHAUSTED: no room\n"
            "  field        matmul.a\n"
            "  reason       MEMORY_FULL\n"
            "  retry after  1.5s\n"
            "  limit_bytes = 1024\n"
            "  hint: the daemon is full now: try again later\n");
  const json error = json::parse(Kernctl(daemon_, {"matmul", "--random", "2x2x2", "--json"}).err).at("error");
  EXPECT_EQ(error.at("code"), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error.at("field"), "matmul.a");
  EXPECT_EQ(error.at("retry_after_s"), 1.5);
}

TEST_F(CliTest, MetadataIsSent) {
  std::string tenant;
  daemon_.kernels = [&tenant](grpc::ServerContext& context, const v1::ListKernelsRequest&,
                              v1::ListKernelsReply& reply) {
    const auto found = context.client_metadata().find("x-tenant");
    if (found != context.client_metadata().end()) tenant.assign(found->second.data(), found->second.size());
    v1::Kernel& kernel = *reply.add_kernels();
    kernel.set_name("one_kernel");
    kernel.add_dtypes(v1::DATA_TYPE_BF16);
    kernel.mutable_tile()->set_m(64);
    return grpc::Status::OK;
  };
  const Outcome outcome = Kernctl(daemon_, {"--metadata", "x-tenant=a=b", "kernels"});
  EXPECT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_EQ(tenant, "a=b");
  EXPECT_THAT(outcome.out, HasSubstr("one_kernel             BF16    64x0x0"));
  EXPECT_EQ(json::parse(Kernctl(daemon_, {"kernels", "--json"}).out).at(0).at("tile"), json({64, 0, 0}));
}

TEST(RandomTest, SeededNormalAndRounded) {
  const auto values = [](client::DataType dtype, std::uint64_t seed, std::uint32_t stream) {
    const absl::StatusOr<client::Tensor> tensor = RandomTensor(dtype, {100, 100}, seed, stream);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return reference::LoadAll(KernelType(dtype), tensor->bytes().data(), 10'000);
  };
  for (const client::DataType dtype : {client::DataType::kF32, client::DataType::kF16, client::DataType::kBF16,
                                       client::DataType::kF8E4M3, client::DataType::kI8}) {
    const std::vector<double> x = values(dtype, 7, 0);
    EXPECT_EQ(x, values(dtype, 7, 0));
    EXPECT_NE(x, values(dtype, 8, 0));
    EXPECT_NE(x, values(dtype, 7, 1));
    const double size = dtype == client::DataType::kI8 ? 32 : 1;
    double sum = 0, squares = 0;
    for (const double value : x) {
      sum += value / size;
      squares += value * value / (size * size);
    }
    // Ten standard errors of 10,000 deviates.
    EXPECT_NEAR(sum / 1e4, 0, 0.1) << client::Name(dtype);
    EXPECT_NEAR(squares / 1e4, 1, 0.15) << client::Name(dtype);
  }
}

TEST(TableTest, Text) {
  Table table({Table::Align::kLeft, Table::Align::kRight});
  table.Add({"a", "1.5", "x"});
  table.Add({"long", "10.25"});
  std::ostringstream out;
  table.Print(out, 1);
  EXPECT_EQ(out.str(), " a       1.5  x\n long  10.25\n");
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(INT64_MAX), "8.0 EiB");
  EXPECT_EQ(Bar(1, 2, 10), "#####");
  EXPECT_EQ(Bar(0.001, 100, 10), "#");
  EXPECT_EQ(Bar(5, 2, 10), "##########");
  EXPECT_EQ(Bar(0, 2, 10), "");
  EXPECT_EQ(Bar(1, 0, 10), "");
}

}  // namespace
}  // namespace kernd::cli
