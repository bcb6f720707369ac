// kernctl tensors, and operands and results of other commands that are resident.
#include <vector>

#include "tests/unit/client_cli_fixture.h"
#include "tests/unit/client_fake_tensors.h"

namespace kernd::cli {
namespace {

// The fake's product is B.
class TensorsTest : public CliTest {
 protected:
  TensorsTest() {
    served_.matmul = [this](grpc::ServerContext& context, const v1::MatmulRequest& request, v1::MatmulReply& reply) {
      v1::Tensor b;
      const std::string& session = request.options().session_id();
      if (const grpc::Status status = tensors_.Resolve(context, session, request.matmul().b(), &b); !status.ok()) {
        return status;
      }
      tensors_.Keep(session, request.matmul().d(), b, reply.mutable_d());
      return grpc::Status::OK;
    };
    const std::vector<float> values = {1, 2, 3, 4};
    EXPECT_TRUE(WriteTensor(Path("w.npy"), "w", client::View(values, {2, 2})).ok());
  }

  // Of `kernctl tensors`, in the session.
  Outcome Tensors(const std::string& action, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), {"tensors", action});
    if (!session_.empty()) arguments.insert(arguments.end(), {"--session", session_});
    return Kernctl(served_, arguments);
  }
  void Open() {
    const Outcome opened = Tensors("open", {"--label", "weights", "--lease", "90s", "--quota", "5000"});
    ASSERT_EQ(opened.code, kOk) << opened.err;
    session_ = opened.out.substr(0, opened.out.find('\n'));
  }

  client::FakeTensors tensors_;
  FakeDaemon served_{&tensors_};
  std::string session_;
};

TEST_F(TensorsTest, OpenPutListGetDeleteClose) {
  Open();
  EXPECT_EQ(session_.size(), 32u) << session_;
  EXPECT_EQ(tensors_.seen().opened.at(0).label(), "weights");
  EXPECT_EQ(tensors_.seen().opened.at(0).lease().seconds(), 90);
  EXPECT_EQ(tensors_.seen().opened.at(0).quota_bytes(), 5000);
  EXPECT_EQ(tensors_.seen().closed, 0) << "it outlives the process that opened it";
  for (const char* id : {"7", "8"}) {
    const Outcome put = Tensors("put", {"--id", id, "--file", Path("w.npy")});
    EXPECT_EQ(put.code, kOk) << put.err;
    EXPECT_EQ(put.out, "");
  }
  EXPECT_THAT(Tensors("list").out, HasSubstr("F32[2,2]  READY  16 B"));
  const json list = json::parse(Tensors("list", {"--json"}).out);
  EXPECT_EQ(list["tensors"].size(), 2u);
  EXPECT_EQ(list["tensors"][0]["id"], 7);
  EXPECT_EQ(list["tensors"][0]["state"], "READY");
  EXPECT_EQ(list["used_bytes"], 32);

  EXPECT_EQ(Tensors("get", {"--id", "7", "--out", Path("back.npy")}).code, kOk);
  const absl::StatusOr<client::Tensor> back = ReadTensor(Path("back.npy"));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->shape(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(back->values<float>()[3], 4);

  EXPECT_EQ(Tensors("delete", {"--id", "7,8"}).code, kOk);
  EXPECT_EQ(tensors_.num_tensors(), 0u);
  EXPECT_EQ(Tensors("close").code, kOk);
  EXPECT_EQ(tensors_.seen().closed, 1);
  const Outcome gone = Tensors("list");
  EXPECT_EQ(gone.code, kCallFailed);
  EXPECT_THAT(gone.err, HasSubstr("SESSION_NOT_FOUND"));
}

TEST_F(TensorsTest, OpenAsJson) {
  const json opened = json::parse(Tensors("open", {"--json"}).out);
  EXPECT_EQ(opened["session"].get<std::string>().size(), 32u);
  EXPECT_EQ(opened["server_epoch"], 7);
  EXPECT_EQ(opened["endpoint"], served_.endpoint());
  EXPECT_EQ(opened["lease_s"], 600);
}

TEST_F(TensorsTest, OperandsAndResultsMayBeResident) {
  Open();
  ASSERT_EQ(Tensors("put", {"--id", "1", "--file", Path("w.npy")}).code, kOk);
  const auto matmul = [this](std::vector<std::string> more) {
    more.insert(more.begin(), {"matmul", "--a", Path("w.npy")});
    return Kernctl(served_, more);
  };
  const Outcome kept = matmul({"--session", session_, "--b", "resident:1", "--out", "resident:2"});
  EXPECT_EQ(kept.code, kOk) << kept.err;
  EXPECT_EQ(tensors_.num_tensors(), 2u);
  const Outcome read = matmul({"--session", session_, "--b", "resident:2", "--expect", Path("w.npy")});
  EXPECT_EQ(read.code, kOk) << read.err;

  EXPECT_THAT(matmul({"--session", session_, "--b", "resident:3"}).err, HasSubstr("no tensor 3"));
  EXPECT_THAT(matmul({"--session", session_, "--b", "resident:x"}).err, HasSubstr("must be resident:ID"));
  for (const char* id : {"-1", "9223372036854775808", "18446744073709551617"}) {
    EXPECT_THAT(matmul({"--session", session_, "--b", "resident:" + std::string(id)}).err,
                HasSubstr("must be resident:ID, with an ID from 0 to 9223372036854775807"));
  }
  EXPECT_THAT(matmul({"--b", "resident:1"}).err, HasSubstr("resident:1 needs --session"));
  EXPECT_THAT(matmul({"--b", Path("w.npy"), "--out", "resident:1"}).err, HasSubstr("resident:1 needs --session"));
  EXPECT_THAT(
      matmul({"--session", session_, "--b", "resident:1", "--out", "resident:2", "--expect", Path("w.npy")}).err,
      HasSubstr("the result stays at the daemon"));
}

TEST_F(TensorsTest, WhatIsMissingIsNamed) {
  EXPECT_THAT(Tensors("list").err, HasSubstr("tensors list needs --session"));
  EXPECT_THAT(Kernctl(served_, {"tensors", "list", "--session", "xyz"}).err, HasSubstr("32 hexadecimal digits"));
  EXPECT_EQ(Kernctl(served_, {"tensors", "burn"}).code, kBadArguments);
  session_ = std::string(32, '0');
  EXPECT_THAT(Tensors("put", {"--file", Path("w.npy")}).err, HasSubstr("needs one --id"));
  EXPECT_THAT(Tensors("get", {"--id", "1,2", "--out", Path("w.npy")}).err, HasSubstr("needs one --id"));
  EXPECT_THAT(Tensors("put", {"--id", "1"}).err, HasSubstr("needs --file"));
  EXPECT_THAT(Tensors("get", {"--id", "1"}).err, HasSubstr("needs --out"));
  EXPECT_THAT(Tensors("delete").err, HasSubstr("needs --id"));
}

TEST_F(TensorsTest, WhatIsOfNoUseIsNamed) {
  EXPECT_THAT(Tensors("open", {"--id", "1"}).err, HasSubstr("tensors open takes no --id"));
  EXPECT_THAT(Tensors("open", {"--session", std::string(32, '0')}).err, HasSubstr("takes no --session"));
  session_ = std::string(32, '0');
  EXPECT_THAT(Tensors("close", {"--id", "1"}).err, HasSubstr("takes no --id"));
  EXPECT_THAT(Tensors("list", {"--label", "x"}).err, HasSubstr("takes no --label"));
  EXPECT_THAT(Tensors("put", {"--id", "1", "--file", Path("w.npy"), "--out", "y.npy"}).err,
              HasSubstr("takes no --out"));
  EXPECT_THAT(Tensors("get", {"--id", "1", "--out", "y.npy", "--file", Path("w.npy")}).err,
              HasSubstr("takes no --file"));
  EXPECT_TRUE(tensors_.seen().opened.empty());
}

TEST_F(TensorsTest, EveryActionHasJson) {
  Open();
  const json put = json::parse(Tensors("put", {"--id", "7", "--file", Path("w.npy"), "--json"}).out);
  EXPECT_EQ(put, json({{"id", 7}, {"dtype", "F32"}, {"shape", {2, 2}}, {"bytes", 16}, {"file", Path("w.npy")}}));
  const json get = json::parse(Tensors("get", {"--id", "7", "--out", Path("y.npy"), "--json"}).out);
  EXPECT_EQ(get, json({{"id", 7}, {"dtype", "F32"}, {"shape", {2, 2}}, {"bytes", 16}, {"file", Path("y.npy")}}));
  EXPECT_EQ(json::parse(Tensors("delete", {"--id", "7", "--json"}).out), json({{"ids", {7}}}));
  EXPECT_EQ(json::parse(Tensors("close", {"--json"}).out), json({{"session", session_}}));
}

TEST_F(TensorsTest, NothingIsFetchedThatCannotBeWritten) {
  Open();
  ASSERT_EQ(Tensors("put", {"--id", "1", "--file", Path("w.npy")}).code, kOk);
  for (const std::string& file : {Path("y.txt"), Path("none/y.npy"), Path("")}) {
    const Outcome get = Tensors("get", {"--id", "1", "--out", file});
    EXPECT_EQ(get.code, kBadArguments) << file;
    EXPECT_THAT(get.err, HasSubstr(file)) << file;
  }
  EXPECT_TRUE(tensors_.seen().gets.empty());
}

TEST_F(TensorsTest, WishesThatWereCutDownAreNamed) {
  EXPECT_EQ(Tensors("open", {"--lease", "10m"}).err, "");
  const Outcome lease = Tensors("open", {"--lease", "48h"});
  EXPECT_EQ(lease.code, kOk);
  EXPECT_EQ(lease.out.size(), 33u) << "the id alone";
  EXPECT_EQ(lease.err, "kernctl: the daemon gives a lease of 10m, not 48h\n");
  EXPECT_EQ(tensors_.seen().opened.back().lease().seconds(), 48 * 3600);
  tensors_.quota_bytes = 1 << 20;
  EXPECT_EQ(Tensors("open", {"--quota", "1MiB"}).err, "");
  EXPECT_EQ(tensors_.seen().opened.back().quota_bytes(), 1 << 20);
  EXPECT_EQ(Tensors("open", {"--quota", "1GiB"}).err, "kernctl: the daemon gives a quota of 1.0 MiB, not 1.0 GiB\n");
}

TEST_F(TensorsTest, BenchWithEveryPlace) {
  for (const char* place : {"auto", "inline", "striped", "resident"}) {
    const Outcome bench = Kernctl(served_, {"bench", "--shape", "8x8x8", "--dtype", "F32", "--place", place,
                                            "--duration", "50ms", "--warmup", "0", "--json"});
    ASSERT_EQ(bench.code, kOk) << place << ": " << bench.err;
    const json report = json::parse(bench.out);
    EXPECT_EQ(report["place"], place);
    EXPECT_EQ(report["calls"][0]["sent_bytes"], std::string(place) == "resident" ? 0 : 512) << place;
  }
  EXPECT_EQ(tensors_.num_tensors(), 0u);
}

}  // namespace
}  // namespace kernd::cli
