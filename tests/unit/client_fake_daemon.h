// A daemon in the test's own process that answers what the test tells it to, on a free loopback port.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "google/protobuf/duration.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "kernd/v1/compute.grpc.pb.h"
#include "kernd/v1/device.grpc.pb.h"
#include "kernd/wire/error_details.pb.h"

namespace kernd::client {

// What a handler of the fake answers.
template <typename Request, typename Reply>
using Answer = std::function<grpc::Status(grpc::ServerContext&, const Request&, Reply&)>;

class FakeDaemon final : private v1::Compute::Service,
                         private v1::Device::Service,
                         private grpc::health::v1::Health::Service {
 public:
  // `tensors` serves kernd.v1.Tensors where there is one, else that is not implemented; it outlives the daemon.
  explicit FakeDaemon(grpc::Service* tensors = nullptr, const std::string& listen = "127.0.0.1:0") {
    // gRPC's shutdown, when its last object goes, waits for a poller that may sleep for ten seconds: let one stay.
    static const auto* const stays = new grpc::CompletionQueue();
    if (stays == nullptr) return;
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(static_cast<v1::Compute::Service*>(this));
    builder.RegisterService(static_cast<v1::Device::Service*>(this));
    builder.RegisterService(static_cast<grpc::health::v1::Health::Service*>(this));
    if (tensors != nullptr) builder.RegisterService(tensors);
    server_ = builder.BuildAndStart();
    endpoint_ = listen.starts_with("unix:") ? listen : "127.0.0.1:" + std::to_string(port);
  }
  ~FakeDaemon() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& endpoint() const { return endpoint_; }

  // Set before the first call. Absent: OK and an empty reply.
  Answer<v1::MatmulRequest, v1::MatmulReply> matmul;
  Answer<v1::AttentionRequest, v1::AttentionReply> attention;
  Answer<v1::PlanRequest, v1::PlanReply> plan;
  Answer<v1::GetCapabilitiesRequest, v1::GetCapabilitiesReply> capabilities;
  Answer<v1::ListKernelsRequest, v1::ListKernelsReply> kernels;
  std::function<grpc::Status(grpc::ServerContext&, const v1::AutotuneRequest&,
                             grpc::ServerWriter<v1::AutotuneProgress>&)>
      autotune;
  Answer<grpc::health::v1::HealthCheckRequest, grpc::health::v1::HealthCheckResponse> health;

 private:
  template <typename Request, typename Reply>
  static grpc::Status Do(const Answer<Request, Reply>& answer, grpc::ServerContext* context, const Request* request,
                         Reply* reply) {
    return answer ? answer(*context, *request, *reply) : grpc::Status::OK;
  }

  grpc::Status Matmul(grpc::ServerContext* context, const v1::MatmulRequest* request, v1::MatmulReply* reply) override {
    return Do(matmul, context, request, reply);
  }
  grpc::Status Attention(grpc::ServerContext* context, const v1::AttentionRequest* request,
                         v1::AttentionReply* reply) override {
    return Do(attention, context, request, reply);
  }
  grpc::Status Plan(grpc::ServerContext* context, const v1::PlanRequest* request, v1::PlanReply* reply) override {
    return Do(plan, context, request, reply);
  }
  grpc::Status GetCapabilities(grpc::ServerContext* context, const v1::GetCapabilitiesRequest* request,
                               v1::GetCapabilitiesReply* reply) override {
    return Do(capabilities, context, request, reply);
  }
  grpc::Status ListKernels(grpc::ServerContext* context, const v1::ListKernelsRequest* request,
                           v1::ListKernelsReply* reply) override {
    return Do(kernels, context, request, reply);
  }
  grpc::Status Autotune(grpc::ServerContext* context, const v1::AutotuneRequest* request,
                        grpc::ServerWriter<v1::AutotuneProgress>* writer) override {
    return autotune ? autotune(*context, *request, *writer) : grpc::Status::OK;
  }
  grpc::Status Check(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* reply) override {
    return Do(health, context, request, reply);
  }

  std::unique_ptr<grpc::Server> server_;
  std::string endpoint_;
};

// An error with details as the daemon sends them. Empty texts and a negative delay leave their part out.
inline grpc::Status Refusal(grpc::StatusCode code, const std::string& message, const std::string& reason,
                            const std::string& field = "", int retry_after_ms = -1) {
  wire::Status status;
  status.set_code(code);
  status.set_message(message);
  const auto add = [&status](const char* type, const google::protobuf::Message& detail) {
    google::protobuf::Any* any = status.add_details();
    any->set_type_url(std::string("type.googleapis.com/google.rpc.") + type);
    any->set_value(detail.SerializeAsString());
  };
  wire::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("kernd");
  (*info.mutable_metadata())["limit_bytes"] = "1024";
  if (!reason.empty()) add("ErrorInfo", info);
  if (!field.empty()) {
    wire::BadRequest request;
    request.add_field_violations()->set_field(field);
    add("BadRequest", request);
  }
  if (retry_after_ms >= 0) {
    wire::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_after_ms / 1000);
    retry.mutable_retry_delay()->set_nanos(retry_after_ms % 1000 * 1'000'000);
    add("RetryInfo", retry);
  }
  return grpc::Status(code, message, status.SerializeAsString());
}

}  // namespace kernd::client
