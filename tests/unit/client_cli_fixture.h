// kernctl without its process, against a daemon in the test's own process that gives back an operand as the result.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/app.h"
#include "client/cli/context.h"
#include "client/cli/files/tensor_file.h"
#include "nlohmann/json.hpp"
#include "tests/unit/client_fake_daemon.h"

namespace kernd::cli {

using client::FakeDaemon;
using client::Refusal;
using nlohmann::json;
using testing::HasSubstr;

struct Outcome {
  int code;
  std::string out, err;
};

inline Outcome Kernctl(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  const int code = Run(std::move(arguments), out, err);
  return {code, out.str(), err.str()};
}

inline Outcome Kernctl(const FakeDaemon& daemon, std::vector<std::string> arguments) {
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

}  // namespace kernd::cli
