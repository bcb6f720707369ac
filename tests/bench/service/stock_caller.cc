// What a user has who knows the .proto files and nothing else: the stub that protoc generates. The request is built
// once, as one would for a benchmark; a reply is a new message each time.
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "kernd/v1/compute.grpc.pb.h"
#include "kernd/v1/tensors.grpc.pb.h"
#include "tests/bench/service/caller.h"

namespace kernd::bench {
namespace {

constexpr std::uint64_t kIdOfA = 1;

absl::Status ToAbsl(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

std::shared_ptr<grpc::Channel> Connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

// More than any call here takes: a server that hangs ends the run all the same.
void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
}

v1::Tensor F32(std::int64_t rows, std::int64_t cols) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DATA_TYPE_F32);
  tensor.add_shape(rows);
  tensor.add_shape(cols);
  return tensor;
}

template <typename Values>
void SetData(v1::Tensor& tensor, const Values& values) {
  tensor.set_data(values.data(), values.size() * sizeof(float));
}

class StockCaller : public Caller {
 public:
  StockCaller(const std::shared_ptr<grpc::Channel>& channel, v1::MatmulRequest request, std::int64_t moved_elements)
      : stub_(v1::Compute::NewStub(channel)), request_(std::move(request)), moved_elements_(moved_elements) {}

  absl::Status Call() override {
    reply_ = v1::MatmulReply();
    grpc::ClientContext context;
    SetDeadline(context);
    return ToAbsl(stub_->Matmul(&context, request_, &reply_));
  }
  std::span<const float> d() const override {
    const std::string& data = reply_.d().data();
    return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
  }
  std::int64_t MovedBytes(std::int64_t rows) const override {
    return rows * moved_elements_ * std::int64_t{sizeof(float)};
  }

 private:
  const std::unique_ptr<v1::Compute::Stub> stub_;
  const v1::MatmulRequest request_;
  const std::int64_t moved_elements_;  // of a row
  v1::MatmulReply reply_;
};

// Uploads A in chunks of 1 MiB.
absl::Status Put(v1::Tensors::Stub& stub, const std::string& session_id, std::int64_t rows) {
  constexpr std::size_t kChunk = std::size_t{1} << 20;
  grpc::ClientContext context;
  SetDeadline(context);
  v1::PutReply reply;
  const auto writer = stub.Put(&context, &reply);
  v1::PutRequest first;
  first.mutable_header()->set_session_id(session_id);
  first.mutable_header()->set_id(kIdOfA);
  first.mutable_header()->set_dtype(v1::DATA_TYPE_F32);
  first.mutable_header()->add_shape(rows);
  first.mutable_header()->add_shape(kDepth);
  bool open = writer->Write(first);
  const std::vector<float> a = MakeA(rows);
  const auto* const bytes = reinterpret_cast<const char*>(a.data());
  const std::size_t size = a.size() * sizeof(float);
  for (std::size_t at = 0; open && at < size; at += kChunk) {
    v1::PutRequest chunk;
    chunk.set_offset_bytes(static_cast<std::int64_t>(at));
    chunk.set_data(bytes + at, std::min(kChunk, size - at));
    open = writer->Write(chunk);
  }
  writer->WritesDone();
  return ToAbsl(writer->Finish());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Caller>> MakeStock(const std::string& target, std::int64_t rows) {
  v1::MatmulRequest request;
  v1::MatmulOp& op = *request.mutable_matmul();
  *op.mutable_a() = F32(rows, kDepth);
  SetData(*op.mutable_a(), MakeA(rows));
  *op.mutable_b() = F32(kDepth, 1);
  SetData(*op.mutable_b(), kB);
  return std::make_unique<StockCaller>(Connect(target), std::move(request), kDepth + 1);
}

absl::StatusOr<std::unique_ptr<Caller>> MakeStockResident(const std::string& target, std::int64_t rows) {
  const std::shared_ptr<grpc::Channel> channel = Connect(target);
  const std::unique_ptr<v1::Tensors::Stub> tensors = v1::Tensors::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(context);
  v1::OpenSessionReply session;
  const grpc::Status opened = tensors->OpenSession(&context, v1::OpenSessionRequest(), &session);
  if (!opened.ok()) return ToAbsl(opened);
  if (absl::Status put = Put(*tensors, session.session_id(), rows); !put.ok()) return put;

  v1::MatmulRequest request;
  request.mutable_options()->set_session_id(session.session_id());
  v1::MatmulOp& op = *request.mutable_matmul();
  *op.mutable_a() = F32(rows, kDepth);
  op.mutable_a()->mutable_resident()->set_id(kIdOfA);
  *op.mutable_b() = F32(kDepth, 1);
  SetData(*op.mutable_b(), kB);
  *op.mutable_c() = F32(rows, 1);
  SetData(*op.mutable_c(), std::vector<float>(static_cast<std::size_t>(rows)));
  op.set_beta(1);
  return std::make_unique<StockCaller>(channel, std::move(request), 2);
}

}  // namespace kernd::bench
