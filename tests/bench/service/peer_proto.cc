#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <cstdio>

#include "kernd/v1/compute.grpc.pb.h"
#include "tests/bench/service/peer.h"

namespace kernd::bench {
namespace {

class ComputeService final : public v1::Compute::Service {
  grpc::Status Matmul(grpc::ServerContext*, const v1::MatmulRequest* request, v1::MatmulReply* reply) override {
    Multiply(*request, *reply);
    return grpc::Status::OK;
  }
};

}  // namespace

int ServeProto() {
  ComputeService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  server->Wait();
  return 0;
}

}  // namespace kernd::bench
