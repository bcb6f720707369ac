// kernctl verify against daemons that are wrong, each in a way of its own. Against a right one:
// tests/integration/verify_test.cc.
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "client/cli/verify/cases.h"
#include "client/cli/verify/check.h"
#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kM = 33, kN = 47, kK = 61;

std::vector<float> Floats(const v1::Tensor& tensor) {
  std::vector<float> values(tensor.data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
  return values;
}

template <typename Shape>
v1::Tensor F32(const Shape& shape, const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DATA_TYPE_F32);
  for (const std::int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

// A daemon with two kernels that multiplies the preset 33x47x61 as it should, but for what `spoil(D, call)` does.
class VerifyTest : public CliTest {
 protected:
  using Spoil = std::function<void(std::vector<float>&, int)>;

  VerifyTest() {
    daemon_.kernels = [](grpc::ServerContext&, const v1::ListKernelsRequest&, v1::ListKernelsReply& reply) {
      for (const auto& [name, operation] :
           {std::pair("matmul_one", "matmul"), {"matmul_two", "matmul"}, {"attention_one", "attention"}}) {
        v1::Kernel& kernel = *reply.add_kernels();
        kernel.set_name(name);
        kernel.set_operation(operation);
        kernel.add_dtypes(v1::DATA_TYPE_F32);
      }
      return grpc::Status::OK;
    };
    daemon_.matmul = [this](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
      const std::vector<float> a = Floats(request.matmul().a()), b = Floats(request.matmul().b());
      std::vector<float> d(kM * kN);
      for (std::int64_t i = 0; i < kM; ++i) {
        for (std::int64_t j = 0; j < kN; ++j) {
          double sum = 0;
          for (std::int64_t k = 0; k < kK; ++k) sum += double{a[i * kK + k]} * double{b[k * kN + j]};
          d[i * kN + j] = static_cast<float>(sum);
        }
      }
      if (spoil_) spoil_(d, calls_);
      ++calls_;
      *reply.mutable_d() = F32(std::vector{kM, kN}, d);
      const std::string& forced = request.matmul().kernel().name();
      reply.mutable_kernel()->set_name(forced.empty() ? "matmul_one" : forced);
      return grpc::Status::OK;
    };
  }

  Outcome Verify(std::vector<std::string> more = {}) {
    calls_ = 0;
    std::vector<std::string> line = {"verify", "--op", "matmul", "--dtype", "f32", "--filter", "odd 33x47x61"};
    line.insert(line.end(), more.begin(), more.end());
    return Kernctl(daemon_, line);
  }

  Spoil spoil_;
  int calls_ = 0;
};

TEST_F(VerifyTest, ARightDaemonPasses) {
  const Outcome outcome = Verify();
  EXPECT_EQ(outcome.code, kOk) << outcome.out << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(calls_, 2);
  EXPECT_THAT(outcome.out,
              HasSubstr("1 calls were made again: the same bits.\n1 passed, 0 failed, 0 not supported in"));
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos) << "no colours where nobody sees them";
}

TEST_F(VerifyTest, OneWrongElementIsFoundAtItsIndex) {
  spoil_ = [](std::vector<float>& d, int) {
    d[3 * kN + 17] += 1;
    d[30 * kN] += 0.5f;
  };
  const Outcome outcome = Verify();
  EXPECT_EQ(outcome.code, kWrong);
  EXPECT_THAT(outcome.out, HasSubstr("FAILED\n    D[3,17] is "));
  EXPECT_THAT(outcome.out, HasSubstr("; 2 of 1551 elements differ\n"));
  EXPECT_THAT(outcome.out, HasSubstr("again: kernctl verify --op matmul --dtype F32 --filter 'odd 33x47x61' --seed 0 "
                                     "--kernel matmul_one\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n0 passed, 1 failed, 0 not supported in"));

  const json report = json::parse(Verify({"--json"}).out);
  EXPECT_EQ(report.at("summary").at("failed"), 1);
  const json& row = report.at("cases").at(0);
  EXPECT_EQ(row.at("verdict"), "failed");
  EXPECT_EQ(row.at("mismatches"), 2);
  EXPECT_EQ(row.at("first_mismatch").at("tensor"), "D");
  EXPECT_EQ(row.at("first_mismatch").at("index"), json({3, 17}));
  EXPECT_NEAR(row.at("max_abs_error").get<double>(), 1, 1e-4);
  EXPECT_GT(row.at("error_over_tolerance").get<double>(), 1);
  EXPECT_EQ(row.at("repeatable"), true);
}

TEST_F(VerifyTest, NaNIsNoSmallError) {
  spoil_ = [](std::vector<float>& d, int) { d.back() = std::nanf(""); };
  const Outcome outcome = Verify();
  EXPECT_EQ(outcome.code, kWrong);
  EXPECT_THAT(outcome.out, HasSubstr("D[32,46] is nan"));
  EXPECT_THAT(outcome.out, HasSubstr("  nan  "));
}

TEST_F(VerifyTest, OtherBitsTheSecondTimeFailWithinAnyTolerance) {
  spoil_ = [](std::vector<float>& d, int call) {
    if (call == 1) d[5 * kN + 2] = std::nextafter(d[5 * kN + 2], 1e9f);
  };
  const Outcome outcome = Verify();
  EXPECT_EQ(outcome.code, kWrong);
  EXPECT_THAT(outcome.out, HasSubstr("FAILED\n    the same call again: D[5,2]\n"));
  EXPECT_EQ(json::parse(Verify({"--json"}).out).at("cases").at(0).at("repeatable"), false);
}

TEST_F(VerifyTest, AResultOfAnotherShapeIsNotRead) {
  daemon_.matmul = [](grpc::ServerContext&, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    *reply.mutable_d() = request.matmul().a();
    return grpc::Status::OK;
  };
  const Outcome outcome = Verify();
  EXPECT_EQ(outcome.code, kWrong);
  EXPECT_THAT(outcome.out, HasSubstr("D is F32[33,61], not F32[33,47]\n"));
}

TEST_F(VerifyTest, EachKernelIsForcedAndRefusalsAreNotSuccesses) {
  std::vector<std::string> forced;
  const auto multiply = daemon_.matmul;
  daemon_.matmul = [&](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    forced.push_back(request.matmul().kernel().name());
    if (forced.back() == "matmul_two") {
      return Refusal(grpc::INVALID_ARGUMENT, "too odd for it", "INVALID_FIELD", "matmul.kernel.name");
    }
    return multiply(context, request, reply);
  };
  const Outcome outcome = Verify({"--all"});
  EXPECT_EQ(outcome.code, kOk) << outcome.out;
  EXPECT_THAT(forced, testing::ElementsAre("matmul_one", "matmul_one", "matmul_two"));
  EXPECT_THAT(outcome.out, HasSubstr("not supported\n    too odd for it\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\n1 passed, 0 failed, 1 not supported in"));
  EXPECT_EQ(Verify({"--kernel", "matmul_two"}).code, kWrong) << "nothing was verified";

  daemon_.matmul = [&](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    const grpc::Status status = multiply(context, request, reply);
    reply.mutable_kernel()->set_name("matmul_one");
    return status;
  };
  const Outcome other = Verify({"--kernel", "matmul_two"});
  EXPECT_EQ(other.code, kWrong);
  EXPECT_THAT(other.out, HasSubstr("ran matmul_one instead\n"));
}

// One that rounds to TF32 runs no other call: it is asked for what it takes, and judged by what that may cost.
TEST_F(VerifyTest, AKernelOfTf32IsAskedForIt) {
  daemon_.kernels = [](grpc::ServerContext&, const v1::ListKernelsRequest&, v1::ListKernelsReply& reply) {
    for (const char* name : {"matmul_one", "matmul_two"}) {
      v1::Kernel& kernel = *reply.add_kernels();
      kernel.set_name(name);
      kernel.set_operation("matmul");
      kernel.add_dtypes(v1::DATA_TYPE_F32);
    }
    reply.mutable_kernels(1)->set_limits("numerics must be TF32");
    return grpc::Status::OK;
  };
  std::set<std::pair<std::string, v1::Numerics>> asked;
  const auto multiply = daemon_.matmul;
  daemon_.matmul = [&](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
    asked.emplace(request.matmul().kernel().name(), request.matmul().numerics());
    return multiply(context, request, reply);
  };
  spoil_ = [](std::vector<float>& d, int) { d[0] += 2e-3f; };  // too much, but for TF32
  const auto verify = [&](const char* filter) {
    return Kernctl(daemon_, {"verify", "--op", "matmul", "--dtype", "f32", "--filter", filter, "--all"});
  };
  EXPECT_THAT(verify("odd 33x47x61").out, HasSubstr("\n0 passed, 1 failed, 0 not supported in"));
  EXPECT_THAT(verify("odd, TF32 33x47x61").out, HasSubstr("\n1 passed, 0 failed, 0 not supported in"));
  EXPECT_THAT(asked, testing::ElementsAre(std::pair("matmul_one", v1::NUMERICS_UNSPECIFIED),
                                          std::pair("matmul_two", v1::NUMERICS_TF32)));
}

TEST_F(VerifyTest, AnErrorIsAFailureButAnAbsentDaemonIsTheEnd) {
  daemon_.matmul = [](grpc::ServerContext&, const v1::MatmulRequest&, v1::MatmulReply&) {
    return grpc::Status(grpc::INTERNAL, "the kernel failed");
  };
  const Outcome failed = Verify();
  EXPECT_EQ(failed.code, kWrong);
  EXPECT_THAT(failed.out, HasSubstr("INTERNAL: the kernel failed\n"));
  EXPECT_EQ(Kernctl({"--endpoint", "unix:/nonexistent/kernd.sock", "verify"}).code, kNotConnected);
}

// O of the preset by heart is right; when the future changes, so does the first row.
TEST_F(VerifyTest, ARowThatSeesTheFutureIsFound) {
  int calls = 0;
  bool sees_it = false;
  daemon_.attention = [&](grpc::ServerContext&, const v1::AttentionRequest& request, v1::AttentionReply& reply) {
    const bool other = ++calls == 3;
    *reply.mutable_o() = F32(request.attention().q().shape(), {1, other && sees_it ? 2.5f : 2, other ? 7.0f : 2, 3});
    return grpc::Status::OK;
  };
  const std::vector<std::string> line = {"verify", "--op", "attention", "--dtype", "f32", "--filter", "heart, causal"};
  const Outcome good = Kernctl(daemon_, line);
  EXPECT_EQ(good.code, kOk) << good.out;
  EXPECT_EQ(calls, 3);
  EXPECT_THAT(good.out, HasSubstr(" 1 with another future: no earlier row noticed.\n"));
  calls = 0;
  sees_it = true;
  const Outcome bad = Kernctl(daemon_, line);
  EXPECT_EQ(bad.code, kWrong);
  EXPECT_THAT(bad.out, HasSubstr("other keys after it changed a row: O[0,0,0,1]\n"));
}

TEST(PresetsTest, AreLegalDifferentAndTheSameForASeed) {
  for (const OpKind op : {OpKind::kMatmul, OpKind::kAttention}) {
    for (const DataType dtype : DataTypesOf(op)) {
      std::set<std::string> names;
      int quick = 0;
      for (const Case& c : Presets(op, dtype)) {
        EXPECT_TRUE(names.insert(c.name + " " + c.shape).second) << c.name << " " << c.shape << " stands there twice";
        quick += c.quick;
        reference::Source source(7), again(7);
        const Call call = c.make(source), same = c.make(again);
        if (const auto* matmul = std::get_if<reference::MatmulCase>(&call)) {
          EXPECT_TRUE(Validate(matmul->problem).ok()) << c.name << ": " << Validate(matmul->problem).status();
          EXPECT_EQ(matmul->a, std::get<reference::MatmulCase>(same).a) << c.name;
        } else {
          const auto& attention = std::get<reference::AttentionCase>(call);
          EXPECT_TRUE(Validate(attention.problem).ok()) << c.name << ": " << Validate(attention.problem).status();
          EXPECT_EQ(attention.q, std::get<reference::AttentionCase>(same).q) << c.name;
        }
      }
      EXPECT_GT(quick, 5);
      EXPECT_GT(names.size(), 30u);
    }
    EXPECT_TRUE(Presets(op, DataType::kBool).empty());
  }
}

}  // namespace
}  // namespace kernd::cli
