// kernctl's calls: what its options send, and what it prints of the answer.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

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
  const Outcome number = with({"--expect", nan});
  EXPECT_EQ(number.code, kWrong) << "a number where NaN is expected";
  EXPECT_THAT(number.out, HasSubstr("WRONG: max error nan"));
  EXPECT_EQ(json::parse(with({"--expect", nan, "--json"}).out).at("expect").at("max_abs_error"), nullptr);
  const auto of_nan = [&](const std::string& expected) {
    return Kernctl(daemon_, {"attention", "--q", nan, "--k", x, "--v", x, "--expect", expected});
  };
  EXPECT_EQ(of_nan(x).code, kWrong) << "NaN where a number is expected";
  EXPECT_THAT(of_nan(x).out, HasSubstr("max error nan"));
  const Outcome both = of_nan(nan);
  EXPECT_EQ(both.code, kOk) << both.out;
  EXPECT_THAT(both.out, HasSubstr("OK: max error 0,"));
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
  EXPECT_GT(report.at("timing_us").at("connect"), 0.0);
  EXPECT_THAT(outcome.out, HasSubstr("\nconnect "));
  EXPECT_EQ(report.at("memory").at("naive_bytes"), 7168);
  EXPECT_EQ(report.at("kernel").at("reason"), "forced");
}

TEST_F(CliTest, MemoryIsComparedWhereItIsLess) {
  daemon_.matmul = [](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    *reply.mutable_d() = request.matmul().a();
    reply.mutable_memory()->set_peak_bytes(5000);
    reply.mutable_memory()->set_naive_bytes(500);
    return grpc::Status::OK;
  };
  EXPECT_THAT(Kernctl(daemon_, {"matmul", "--random", "2x2x2"}).out, testing::Not(HasSubstr("naive")));
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

TEST_F(CliTest, NothingIsComputedThatCannotBeKept) {
  for (const auto& [option, file] : std::vector<std::pair<std::string, std::string>>{
           {"--out", "o.txt"}, {"--out", "/nonexistent/o.npy"}, {"--lse-out", "lse"}, {"--out", folder_.string()}}) {
    const Outcome outcome = Kernctl(daemon_, {"attention", "--random", "1x1x2x8", option, file});
    EXPECT_EQ(outcome.code, kBadArguments) << file;
    EXPECT_THAT(outcome.err, HasSubstr(file));
  }
  EXPECT_FALSE(attention_.has_attention()) << "the daemon was called";
}

}  // namespace
}  // namespace kernd::cli
