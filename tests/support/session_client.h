// A client of the Tensors service with the generated stubs, as anybody would write one.
#pragma once

#include <grpcpp/channel.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernd/v1/tensors.grpc.pb.h"
#include "tests/support/raw_client.h"

namespace kernd::testing {

// What a tensor is charged for beside its bytes.
inline constexpr std::int64_t kTensorRecord = 2048;

// Bytes that differ by place and by seed.
std::string TensorBytes(std::size_t bytes, int seed = 0);

// One stream of Put.
class PutStream {
 public:
  PutStream(v1::Tensors::Stub& stub, const v1::PutHeader& header, const RawOptions& options = {});
  // Ends it, as a client that dies.
  ~PutStream();

  // False where the daemon has ended the call; Finish says why. The first one brings the header.
  bool Send(std::int64_t offset, const std::string& data);
  bool SendHeader() { return Send(0, ""); }
  bool SendMessage(const v1::PutRequest& request) { return writer_->Write(request); }
  // Half-closes and waits for the answer.
  RawReply Finish();
  void Cancel() { context_.TryCancel(); }

  v1::PutReply reply;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientWriter<v1::PutRequest>> writer_;
  v1::PutHeader header_;
  bool begun_ = false, finished_ = false;
};

// One session of one daemon; the default constructor's arguments open it.
class SessionClient {
 public:
  explicit SessionClient(const std::string& endpoint, const v1::OpenSessionRequest& request = {});

  // U8[bytes].
  v1::PutHeader Header(std::uint64_t id, std::int64_t bytes, std::uint64_t version = 0) const;
  std::unique_ptr<PutStream> Put(const v1::PutHeader& header) { return std::make_unique<PutStream>(*stub, header); }
  // The whole tensor on one stream, in chunks.
  RawReply PutAll(const v1::PutHeader& header, const std::string& data, std::size_t chunk = 1 << 20);
  RawReply PutAll(std::uint64_t id, const std::string& data) {
    return PutAll(Header(id, static_cast<std::int64_t>(data.size())), data);
  }
  // `body` has the bytes; `messages` those of each message, `info` the first one's header.
  RawReply Get(const v1::GetRequest& request, const RawOptions& options = {});
  RawReply Get(std::uint64_t id);
  RawReply Delete(const std::vector<std::uint64_t>& ids);
  RawReply List(v1::ListReply& reply);
  RawReply Close(const RawOptions& options = {});

  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Tensors::Stub> stub;
  RawReply opening;  // how OpenSession ended
  v1::OpenSessionReply opened;
  std::int64_t freed_bytes = 0;  // of the last Delete or Close
  std::vector<std::int64_t> messages;
  v1::TensorInfo info;
};

}  // namespace kernd::testing
