#include "tests/support/raw_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include "kernd/wire/error_details.pb.h"

namespace kernd::testing {
namespace {

void ReadDetails(RawReply& reply) {
  wire::Status details;
  if (!details.ParseFromString(reply.status.error_details())) return;
  for (const auto& any : details.details()) {
    wire::ErrorInfo info;
    wire::BadRequest bad;
    wire::RetryInfo retry;
    if (any.type_url() == "type.googleapis.com/google.rpc.ErrorInfo" && info.ParseFromString(any.value())) {
      reply.reason = info.reason();
      reply.metadata = {info.metadata().begin(), info.metadata().end()};
    } else if (any.type_url() == "type.googleapis.com/google.rpc.BadRequest" && bad.ParseFromString(any.value())) {
      if (bad.field_violations_size() > 0) reply.field = bad.field_violations(0).field();
    } else if (any.type_url() == "type.googleapis.com/google.rpc.RetryInfo" && retry.ParseFromString(any.value())) {
      reply.retry_after_s = static_cast<double>(retry.retry_delay().seconds()) + 1e-9 * retry.retry_delay().nanos();
    }
  }
}

}  // namespace

RawReply Explained(const grpc::Status& status) {
  RawReply reply;
  reply.status = status;
  ReadDetails(reply);
  return reply;
}

std::shared_ptr<grpc::Channel> Connect(const std::string& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), arguments);
}

RawReply RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path, const std::string& body,
                 const RawOptions& options) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + options.timeout);
  for (const auto& [key, value] : options.metadata) context.AddMetadata(key, value);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(body);
  const auto call = stub.PrepareUnaryCall(&context, path, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  RawReply reply;
  grpc::ByteBuffer answer;
  call->Finish(&answer, &reply.status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (reply.status.ok() && answer.Dump(&slices).ok()) {
    for (const grpc::Slice& s : slices) reply.body.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  ReadDetails(reply);
  return reply;
}

}  // namespace kernd::testing
