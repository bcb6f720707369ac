// server/rpc: what takes long does not hold up an I/O thread, and with it every other connection.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"
#include "kernd/v1/tensors.grpc.pb.h"
#include "server/cpu/backend.h"
#include "server/rpc/message.h"
#include "server/rpc/server.h"

namespace kernd::rpc {
namespace {

class NoObserver final : public core::CallObserver {
  void CallEnded(const core::CallRecord&) override {}
};

// A server with one I/O thread, whose Put, Get and Delete wait until they are let go, and whose OpenSession does not.
class BulkTest : public ::testing::Test {
 protected:
  struct Sink final : MessageSink {
    explicit Sink(BulkTest& test) : test(test) {}
    absl::Status Take(grpc::ByteBuffer&) override {
      test.Wait();
      return absl::OkStatus();
    }
    absl::StatusOr<grpc::ByteBuffer> End() override { return Serialize(v1::PutReply()); }
    BulkTest& test;
  };
  struct Source final : MessageSource {
    explicit Source(BulkTest& test) : test(test) {}
    absl::StatusOr<grpc::ByteBuffer> Next(bool& last) override {
      test.Wait();
      last = true;
      return Serialize(v1::GetReply());
    }
    BulkTest& test;
  };

  void SetUp() override {
    methods_.Add("/kernd.v1.Tensors/Put", {.name = "Put", .max_message_bytes = 8 << 20, .sink = [this](Exchange&) {
                                             return std::make_unique<Sink>(*this);
                                           }});
    methods_.Add("/kernd.v1.Tensors/Get",
                 {.name = "Get", .source = [this](Exchange&) {
                    return absl::StatusOr<std::unique_ptr<MessageSource>>(std::make_unique<Source>(*this));
                  }});
    methods_.Add("/kernd.v1.Tensors/Delete",
                 {.name = "Delete", .bulk = true, .handler = [this](const ExchangePtr& call) {
                    Wait();
                    call->Reply(Serialize(v1::DeleteReply()));
                  }});
    methods_.Add("/kernd.v1.Tensors/OpenSession", {.name = "OpenSession", .handler = [](const ExchangePtr& call) {
                                                     call->Reply(Serialize(v1::OpenSessionReply()));
                                                   }});
    auto server = Server::Start({.listen = {"127.0.0.1:0"},
                                 .io_threads = 1,
                                 .max_message_bytes = 8 << 20,
                                 .quota_bytes = 64 << 20,
                                 .max_concurrent_streams = 16,
                                 .handshake_timeout = absl::Seconds(10),
                                 .keepalive_time = absl::Seconds(60),
                                 .keepalive_timeout = absl::Seconds(20),
                                 .receive_stall = absl::Seconds(60),
                                 .send_stall = absl::Seconds(60)},
                                methods_, gate_, observer_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = v1::Tensors::NewStub(grpc::CreateChannel(server_->addresses().front(), grpc::InsecureChannelCredentials()));
  }
  void Wait() {
    waiting_.Notify();
    let_go_.WaitForNotification();
  }
  // A call while another one waits.
  void ExpectAnswers() {
    waiting_.WaitForNotification();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));  // only ends one that hangs
    v1::OpenSessionReply reply;
    const grpc::Status status = stub_->OpenSession(&context, v1::OpenSessionRequest(), &reply);
    EXPECT_TRUE(status.ok()) << status.error_message() << ": the I/O thread was held up";
    let_go_.Notify();
  }

  absl::Notification waiting_, let_go_;
  MethodTable methods_;
  core::Engine engine_{{.memory_limit = 1 << 20, .max_queued_calls = 16, .max_reply_bytes = 1 << 20},
                       cpu::MakeBackend({.threads = 1})};
  Gate gate_{{.body_budget = 64 << 20, .default_body_bytes = 1 << 20, .max_message_bytes = 8 << 20}, engine_};
  NoObserver observer_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Tensors::Stub> stub_;
  grpc::ClientContext context_;
};

TEST_F(BulkTest, UploadsDoNot) {
  v1::PutReply reply;
  const auto put = stub_->Put(&context_, &reply);
  v1::PutRequest request;
  request.set_data(std::string(1 << 20, 'x'));
  ASSERT_TRUE(put->Write(request));
  ASSERT_TRUE(put->WritesDone());
  ExpectAnswers();
  EXPECT_TRUE(put->Finish().ok());
}

TEST_F(BulkTest, DownloadsDoNot) {
  const auto get = stub_->Get(&context_, v1::GetRequest());
  ExpectAnswers();
  v1::GetReply reply;
  EXPECT_TRUE(get->Read(&reply));
  EXPECT_TRUE(get->Finish().ok());
}

TEST_F(BulkTest, HandlersThatSaySoDoNot) {
  grpc::CompletionQueue queue;
  const auto call = stub_->AsyncDelete(&context_, v1::DeleteRequest(), &queue);
  v1::DeleteReply reply;
  grpc::Status status;
  call->Finish(&reply, &status, this);
  ExpectAnswers();
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace kernd::rpc
