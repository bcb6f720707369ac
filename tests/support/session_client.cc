#include "tests/support/session_client.h"

#include <algorithm>

namespace kernd::testing {
namespace {

void Prepare(grpc::ClientContext& context, const RawOptions& options) {
  context.set_deadline(std::chrono::system_clock::now() + options.timeout);
  for (const auto& [key, value] : options.metadata) context.AddMetadata(key, value);
}

}  // namespace

std::string TensorBytes(std::size_t bytes, int seed) {
  std::string text(bytes, '\0');
  std::uint32_t state = 2654435761u * static_cast<std::uint32_t>(seed + 1);
  for (char& c : text) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

PutStream::PutStream(v1::Tensors::Stub& stub, const v1::PutHeader& header, const RawOptions& options)
    : header_(header) {
  Prepare(context_, options);
  writer_ = stub.Put(&context_, &reply);
}

PutStream::~PutStream() {
  if (finished_) return;
  context_.TryCancel();
  writer_->Finish();
}

bool PutStream::Send(std::int64_t offset, const std::string& data) {
  v1::PutRequest request;
  if (!std::exchange(begun_, true)) *request.mutable_header() = header_;
  request.set_offset_bytes(offset);
  request.set_data(data);
  return writer_->Write(request);
}

RawReply PutStream::Finish() {
  writer_->WritesDone();
  finished_ = true;
  return Explained(writer_->Finish());
}

SessionClient::SessionClient(const std::string& endpoint, const v1::OpenSessionRequest& request)
    : channel(Connect(endpoint)), stub(v1::Tensors::NewStub(channel)) {
  grpc::ClientContext context;
  Prepare(context, {});
  opening = Explained(stub->OpenSession(&context, request, &opened));
}

v1::PutHeader SessionClient::Header(std::uint64_t id, std::int64_t bytes, std::uint64_t version) const {
  v1::PutHeader header;
  header.set_session_id(opened.session_id());
  header.set_id(id);
  header.set_dtype(v1::DATA_TYPE_U8);
  header.add_shape(bytes);
  header.set_version(version);
  return header;
}

RawReply SessionClient::PutAll(const v1::PutHeader& header, const std::string& data, std::size_t chunk) {
  PutStream stream(*stub, header);
  bool open = stream.SendHeader();
  for (std::size_t at = 0; open && at < data.size(); at += chunk) {
    open = stream.Send(static_cast<std::int64_t>(at), data.substr(at, chunk));
  }
  return stream.Finish();
}

RawReply SessionClient::Get(const v1::GetRequest& request, const RawOptions& options) {
  grpc::ClientContext context;
  Prepare(context, options);
  const auto reader = stub->Get(&context, request);
  std::string body;
  messages.clear();
  for (v1::GetReply reply; reader->Read(&reply);) {
    if (messages.empty()) info = reply.header();
    // Chunks come in order, and say where they belong.
    if (reply.offset_bytes() != request.offset_bytes() + static_cast<std::int64_t>(body.size())) body += "?";
    messages.push_back(static_cast<std::int64_t>(reply.data().size()));
    body += reply.data();
  }
  RawReply result = Explained(reader->Finish());
  result.body = std::move(body);
  return result;
}

RawReply SessionClient::Get(std::uint64_t id) {
  v1::GetRequest request;
  request.set_session_id(opened.session_id());
  request.set_id(id);
  return Get(request);
}

RawReply SessionClient::Delete(const std::vector<std::uint64_t>& ids) {
  grpc::ClientContext context;
  Prepare(context, {});
  v1::DeleteRequest request;
  request.set_session_id(opened.session_id());
  request.mutable_ids()->Assign(ids.begin(), ids.end());
  v1::DeleteReply reply;
  RawReply result = Explained(stub->Delete(&context, request, &reply));
  freed_bytes = reply.freed_bytes();
  return result;
}

RawReply SessionClient::List(v1::ListReply& reply) {
  grpc::ClientContext context;
  Prepare(context, {});
  v1::ListRequest request;
  request.set_session_id(opened.session_id());
  return Explained(stub->List(&context, request, &reply));
}

RawReply SessionClient::Close(const RawOptions& options) {
  grpc::ClientContext context;
  Prepare(context, options);
  v1::CloseSessionRequest request;
  request.set_session_id(opened.session_id());
  v1::CloseSessionReply reply;
  RawReply result = Explained(stub->CloseSession(&context, request, &reply));
  freed_bytes = reply.freed_bytes();
  return result;
}

}  // namespace kernd::testing
