// A client that sends any bytes as a request, well-formed or not, and sees everything that comes back.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace kernd::testing {

struct RawReply {
  grpc::Status status;
  std::string body;
  std::string reason;                           // of ErrorInfo
  std::string field;                            // of BadRequest
  std::map<std::string, std::string> metadata;  // of ErrorInfo
  std::optional<double> retry_after_s;          // of RetryInfo
};

struct RawOptions {
  std::map<std::string, std::string> metadata;
  std::chrono::milliseconds timeout = std::chrono::seconds(20);
};

std::shared_ptr<grpc::Channel> Connect(const std::string& endpoint);

// One unary call of `path`, "/kernd.v1.Compute/Matmul", with `body` as its message.
RawReply RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path, const std::string& body,
                 const RawOptions& options = {});

// A status that came by any other way, with what it carries.
RawReply Explained(const grpc::Status& status);

template <typename Reply>
RawReply Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
              const google::protobuf::Message& request, Reply& reply, const RawOptions& options = {}) {
  RawReply raw = RawCall(channel, path, request.SerializeAsString(), options);
  reply.Clear();
  if (raw.status.ok() && !reply.ParseFromString(raw.body))
    raw.status = grpc::Status(grpc::StatusCode::DATA_LOSS, "no such reply");
  return raw;
}

}  // namespace kernd::testing
