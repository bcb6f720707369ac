// kernctl as a program: help, bad arguments, errors, health.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>

#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

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
  tensors                     Tensors that stay at the daemon, in a session
  verify                      Hold the daemon's results against an fp64 reference
  tune                        Let the daemon measure which kernels are the quickest
  bench                       Latency and throughput under a load
  doctor                      What is wrong here, and what to do; to paste into a bug report
  top                         The daemon's load, live: calls, stages, memory, kernels, errors
  health                      Whether the daemon serves: exit code 0, or 4 where it does not
  gpu-info                    The daemon, its devices, and what it can compute
  kernels                     The kernels of the daemon
  completion                  Print a script that completes kernctl in a shell

Tensor files: FILE.npy, FILE.safetensors (with one tensor), FILE.safetensors:TENSOR.
In the place of one, with --session: resident:ID, a tensor of the session (see kernctl tensors --help).
Exit codes: 0 well; 1 bad arguments or files; 2 no connection; 3 the call failed or was refused;
4 not SERVING, not what --expect says, or not verified.
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

TEST_F(CliTest, WithJsonLocalErrorsAreJsonToo) {
  const auto error = [](std::vector<std::string> line) {
    line.push_back("--json");
    const Outcome outcome = Kernctl(line);
    EXPECT_EQ(outcome.code, kBadArguments) << testing::PrintToString(line);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    const json parsed = json::parse(outcome.err, nullptr, /*allow_exceptions=*/false);
    return parsed.is_object() && parsed.contains("error") ? parsed["error"]
                                                          : json({{"code", outcome.err}, {"message", ""}});
  };
  EXPECT_EQ(error({"dance"}).at("code"), "INVALID_ARGUMENT");
  EXPECT_THAT(error({"dance"}).at("message").get<std::string>(), HasSubstr("dance"));
  EXPECT_EQ(error({}).at("message"), "no command given");
  EXPECT_EQ(error({"matmul", "--a", "absent.npy", "--b", "absent.npy"}).at("code"), "NOT_FOUND");
  EXPECT_THAT(error({"matmul", "--random", "2x2"}).at("message").get<std::string>(), HasSubstr("MxNxK"));
}

TEST_F(CliTest, OptionsThatCannotGoTogetherAreBothNamed) {
  const std::vector<std::vector<std::string>> lines = {
      {"matmul", "--random", "2x2x2", "--a", "a.npy"},
      {"matmul", "--random", "2x2x2", "--b", "b.npy"},
      {"attention", "--random", "1x2x3x4", "--q", "q.npy"},
      {"attention", "--random", "1x2x3x4", "--k", "k.npy"},
      {"attention", "--random", "1x2x3x4", "--v", "v.npy"},
      {"matmul", "--plan", "", "--out", "d.npy"},
      {"matmul", "--plan", "", "--expect", "d.npy"},
      {"attention", "--plan", "", "--lse-out", "lse.npy"},
      {"verify", "--all", "", "--kernel", "k"},
      {"verify", "--a", "a.npy", "--quick", ""},
  };
  for (std::vector<std::string> line : lines) {
    const std::string first = line[1], second = line[3];
    std::erase(line, "");
    const Outcome outcome = Kernctl(line);
    EXPECT_EQ(outcome.code, kBadArguments) << first << " " << second;
    EXPECT_THAT(outcome.err, HasSubstr(first));
    EXPECT_THAT(outcome.err, HasSubstr(second));
  }
}

// None of these tensors can be made: were the size not checked first, the test would run out of memory.
TEST_F(CliTest, OperandsThatNoCallCanCarryAreRefusedBeforeTheyAreMade) {
  for (const char* sizes :
       {"1000000x1000000x1000000", "2x1x1073741823", "4611686018427387904x1x2", "16777216x16777216x1x1"}) {
    const Outcome outcome = Kernctl({"matmul", "--random", sizes});
    EXPECT_EQ(outcome.code, kBadArguments) << sizes;
    EXPECT_THAT(outcome.err, HasSubstr("2 GiB")) << sizes;
  }
  EXPECT_THAT(Kernctl({"attention", "--random", "1x1x1000000x1000000"}).err, HasSubstr("2 GiB"));
  for (const char* sizes : {"1000000000000x0x0x0", "131073x1x1x1", "2x1x9223372036854775807x1"}) {
    const Outcome outcome = Kernctl({"attention", "--random", sizes, "--layout", "packed", "--plan"});
    EXPECT_EQ(outcome.code, kBadArguments) << sizes;
    EXPECT_THAT(outcome.err, HasSubstr("more sequences or rows")) << sizes;
  }
}

// A peer that accepts and says nothing: the connection never stands.
TEST_F(CliTest, ADeadlineThatRanOutWhileConnectingSaysBoth) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = Path("silent.sock");
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::copy(path.begin(), path.end(), address.sun_path);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  for (const auto& call : {std::vector<std::string>{"health"}, {"matmul", "--random", "2x2x2"}}) {
    std::vector<std::string> line = {"--endpoint", "unix:" + path, "--timeout", "50ms"};
    line.insert(line.end(), call.begin(), call.end());
    const Outcome outcome = Kernctl(line);
    EXPECT_EQ(outcome.code, kNotConnected);
    EXPECT_EQ(outcome.err, "kernctl: no connection to unix:" + path + " when the 50ms of --timeout were over\n");
    line.push_back("--json");
    const json error = json::parse(Kernctl(line).err).at("error");
    EXPECT_EQ(error.at("code"), "DEADLINE_EXCEEDED");
    EXPECT_EQ(error.at("reason"), "NOT_CONNECTED");
  }
  ::close(listener);
}

TEST_F(CliTest, ForeignTextIsMadeFitForATerminal) {
  daemon_.matmul = [](grpc::ServerContext&, const v1::MatmulRequest&, v1::MatmulReply&) {
    return Refusal(grpc::INTERNAL, "clear \x1b[2J screen\nkernctl: all is well",
                   "RE\x1b"
                   "ASON",
                   "fi\reld");
  };
  daemon_.kernels = [](grpc::ServerContext&, const v1::ListKernelsRequest&, v1::ListKernelsReply& reply) {
    reply.add_kernels()->set_name("kernel\x1b]0;title\x07");
    return grpc::Status::OK;
  };
  const auto is_plain = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
  };
  const Outcome refused = Kernctl(daemon_, {"matmul", "--random", "2x2x2"});
  EXPECT_THAT(refused.err, HasSubstr("clear \\x1b[2J screen\\nkernctl: all is well\n"));
  EXPECT_TRUE(is_plain(refused.err)) << refused.err;
  EXPECT_TRUE(is_plain(Kernctl(daemon_, {"kernels"}).out));
  EXPECT_TRUE(is_plain(Kernctl(daemon_, {"kernels", "--json"}).out));

  const std::string header = "{\"\x1b[31mred\": {\"dtype\": \"\x1b[2J\", \"shape\": [], \"data_offsets\": [0, 0]}}";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  std::ofstream(Path("hostile.safetensors"), std::ios::binary) << length << header;
  for (const bool as_json : {false, true}) {
    const std::string file = Path("hostile.safetensors");
    std::vector<std::string> line = {"matmul", "--a", file, "--b", file};
    if (as_json) line.push_back("--json");
    const Outcome outcome = Kernctl(line);
    EXPECT_EQ(outcome.code, kBadArguments);
    EXPECT_TRUE(is_plain(outcome.err)) << outcome.err;
  }
}

}  // namespace
}  // namespace kernd::cli
