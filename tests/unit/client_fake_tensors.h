// Sessions and resident tensors for a FakeDaemon, by the rules of tensors.proto, in host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "kernd/client/tensor.h"
#include "kernd/v1/compute.pb.h"
#include "kernd/v1/tensors.grpc.pb.h"
#include "tests/unit/client_fake_daemon.h"

namespace kernd::client {

class FakeTensors final : public v1::Tensors::Service {
 public:
  struct Held {
    v1::PutHeader header;
    std::string bytes;
    std::map<std::int64_t, std::int64_t> received;  // begin to end, of each chunk
    bool ready() const {
      std::int64_t sum = 0;
      for (const auto& [begin, end] : received) sum += end - begin;
      return sum == static_cast<std::int64_t>(bytes.size());
    }
  };

  // --- set before the calls ------------------------------------------------------------------------------------------

  std::int64_t quota_bytes = std::int64_t{1} << 40;
  grpc::Status open_answer;  // not OK: no session is opened
  std::string endpoint;      // in the answer to OpenSession
  // Asked of each message of a Put before it is looked at, and of each chunk of a Get before it is sent; not OK: the
  // stream ends so. `index` is that of the message in its stream.
  std::function<grpc::Status(grpc::ServerContext&, const v1::PutRequest&, int index)> on_put;
  std::function<grpc::Status(grpc::ServerContext&, const v1::GetRequest&, int index)> on_get;

  // --- seen ----------------------------------------------------------------------------------------------------------

  struct Seen {
    std::vector<v1::OpenSessionRequest> opened;
    int closed = 0;
    std::size_t left_behind = 0;                 // tensors that sessions held when they were closed
    std::set<std::string> put_peers, get_peers;  // connections
    std::vector<v1::PutHeader> put_headers;      // of each stream
    std::vector<std::int64_t> put_offsets;       // of each chunk that was taken
    std::vector<v1::GetRequest> gets;
    std::size_t largest_message = 0;
  };
  Seen seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }
  std::size_t num_tensors() {
    const std::lock_guard lock(mutex_);
    std::size_t sum = 0;
    for (const auto& [id, tensors] : sessions_) sum += tensors.size();
    return sum;
  }

  // Forgets all, as a daemon that comes back.
  void Restart() {
    const std::lock_guard lock(mutex_);
    sessions_.clear();
    ++epoch_;
  }

  // The operand with its bytes, wherever they are. INVALID_ARGUMENT where it names a tensor that cannot be used.
  grpc::Status Resolve(const grpc::ServerContext& context, const std::string& session, const v1::Tensor& operand,
                       v1::Tensor* out) {
    *out = operand;
    if (!operand.has_resident()) return grpc::Status::OK;
    const std::lock_guard lock(mutex_);
    Held* held = nullptr;
    if (const grpc::Status found = Find(context, session, operand.resident().id(), &held); !found.ok()) return found;
    if (!held->ready()) return Refusal(grpc::FAILED_PRECONDITION, "filling", "NOT_READY", "", 10);
    out->clear_resident();
    out->set_data(held->bytes);
    return grpc::Status::OK;
  }

  // A result for the reply, left in the session where `spec` says so.
  void Keep(const std::string& session, const v1::ResultSpec& spec, v1::Tensor tensor, v1::Tensor* reply) {
    if (spec.has_resident()) {
      const std::lock_guard lock(mutex_);
      Held held;
      held.bytes = std::move(*tensor.mutable_data());
      tensor.clear_data();
      held.received[0] = static_cast<std::int64_t>(held.bytes.size());
      held.header.set_dtype(tensor.dtype());
      *held.header.mutable_shape() = tensor.shape();
      sessions_[session][spec.resident().id()] = std::move(held);
    }
    *reply = std::move(tensor);
  }

 private:
  grpc::Status OpenSession(grpc::ServerContext*, const v1::OpenSessionRequest* request,
                           v1::OpenSessionReply* reply) override {
    const std::lock_guard lock(mutex_);
    seen_.opened.push_back(*request);
    if (!open_answer.ok()) return open_answer;
    reply->set_session_id("session-" + std::to_string(10'000'000 + seen_.opened.size()));
    reply->set_server_epoch(epoch_);
    reply->set_endpoint(endpoint);
    reply->mutable_lease()->set_seconds(600);
    reply->set_quota_bytes(quota_bytes);
    sessions_[reply->session_id()];
    return grpc::Status::OK;
  }

  grpc::Status CloseSession(grpc::ServerContext* context, const v1::CloseSessionRequest* request,
                            v1::CloseSessionReply*) override {
    const std::lock_guard lock(mutex_);
    std::map<std::uint64_t, Held>* tensors = nullptr;
    if (const grpc::Status found = Find(*context, request->session_id(), &tensors); !found.ok()) return found;
    ++seen_.closed;
    seen_.left_behind += tensors->size();
    sessions_.erase(request->session_id());
    return grpc::Status::OK;
  }

  grpc::Status Put(grpc::ServerContext* context, grpc::ServerReader<v1::PutRequest>* reader,
                   v1::PutReply* reply) override {
    v1::PutRequest request;
    v1::PutHeader header;
    for (int index = 0; reader->Read(&request); ++index) {
      if (const grpc::Status asked = on_put ? on_put(*context, request, index) : grpc::Status::OK; !asked.ok()) {
        return asked;
      }
      const std::lock_guard lock(mutex_);
      if (index == 0) {
        header = request.header();
        seen_.put_peers.insert(context->peer());
        seen_.put_headers.push_back(header);
      }
      seen_.largest_message = std::max(seen_.largest_message, request.ByteSizeLong());
      if (const grpc::Status taken = Take(*context, header, request, index == 0); !taken.ok()) return taken;
    }
    const std::lock_guard lock(mutex_);
    Held* held = nullptr;
    if (const grpc::Status found = Find(*context, header.session_id(), header.id(), &held); !found.ok()) return found;
    reply->set_state(held->ready() ? v1::TENSOR_STATE_READY : v1::TENSOR_STATE_FILLING);
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext* context, const v1::GetRequest* request,
                   grpc::ServerWriter<v1::GetReply>* writer) override {
    Held copy;
    {
      const std::lock_guard lock(mutex_);
      seen_.gets.push_back(*request);
      seen_.get_peers.insert(context->peer());
      Held* held = nullptr;
      if (const grpc::Status found = Find(*context, request->session_id(), request->id(), &held); !found.ok()) {
        return found;
      }
      if (!held->ready()) return Refusal(grpc::FAILED_PRECONDITION, "filling", "NOT_READY", "", 10);
      copy = *held;
    }
    const auto size = static_cast<std::int64_t>(copy.bytes.size());
    const std::int64_t begin = request->offset_bytes();
    const std::int64_t end = request->length_bytes() == 0 ? size : begin + request->length_bytes();
    if (begin > size || end > size) return Refusal(grpc::OUT_OF_RANGE, "beyond the end", "OUT_OF_RANGE");
    const std::int64_t chunk = request->chunk_bytes() == 0 ? 2 << 20 : request->chunk_bytes();
    v1::GetReply reply;
    reply.mutable_header()->set_dtype(copy.header.dtype());
    *reply.mutable_header()->mutable_shape() = copy.header.shape();
    std::int64_t at = begin;
    for (int index = 0; index == 0 || at < end; ++index) {
      if (const grpc::Status asked = on_get ? on_get(*context, *request, index) : grpc::Status::OK; !asked.ok()) {
        return asked;
      }
      reply.set_offset_bytes(at);
      reply.set_data(
          copy.bytes.substr(static_cast<std::size_t>(at), static_cast<std::size_t>(std::min(chunk, end - at))));
      at += static_cast<std::int64_t>(reply.data().size());
      writer->Write(reply);
      reply.clear_header();
    }
    return grpc::Status::OK;
  }

  grpc::Status Delete(grpc::ServerContext* context, const v1::DeleteRequest* request, v1::DeleteReply*) override {
    const std::lock_guard lock(mutex_);
    std::map<std::uint64_t, Held>* tensors = nullptr;
    if (const grpc::Status found = Find(*context, request->session_id(), &tensors); !found.ok()) return found;
    for (const std::uint64_t id : request->ids()) tensors->erase(id);
    return grpc::Status::OK;
  }

  grpc::Status List(grpc::ServerContext* context, const v1::ListRequest* request, v1::ListReply* reply) override {
    const std::lock_guard lock(mutex_);
    std::map<std::uint64_t, Held>* tensors = nullptr;
    if (const grpc::Status found = Find(*context, request->session_id(), &tensors); !found.ok()) return found;
    for (const auto& [id, held] : *tensors) {
      v1::TensorInfo& info = *reply->add_tensors();
      info.set_id(id);
      info.set_dtype(held.header.dtype());
      *info.mutable_shape() = held.header.shape();
      info.set_state(held.ready() ? v1::TENSOR_STATE_READY : v1::TENSOR_STATE_FILLING);
      info.set_bytes(static_cast<std::int64_t>(held.bytes.size()));
      info.set_device("cpu");
      reply->set_used_bytes(reply->used_bytes() + info.bytes());
    }
    reply->set_quota_bytes(quota_bytes);
    reply->mutable_lease_left()->set_seconds(599);
    return grpc::Status::OK;
  }

  // The rest: mutex_ is held.

  grpc::Status Find(const grpc::ServerContext& context, const std::string& session,
                    std::map<std::uint64_t, Held>** tensors) {
    const auto found = sessions_.find(session);
    if (found != sessions_.end()) {
      *tensors = &found->second;
      return grpc::Status::OK;
    }
    const auto epoch = context.client_metadata().find("kernd-server-epoch");
    const bool restarted = epoch != context.client_metadata().end() &&
                           std::string(epoch->second.data(), epoch->second.size()) != std::to_string(epoch_);
    return Refusal(grpc::NOT_FOUND, "no such session", restarted ? "SERVER_RESTARTED" : "SESSION_NOT_FOUND");
  }

  grpc::Status Find(const grpc::ServerContext& context, const std::string& session, std::uint64_t id, Held** held) {
    std::map<std::uint64_t, Held>* tensors = nullptr;
    if (const grpc::Status found = Find(context, session, &tensors); !found.ok()) return found;
    const auto found = tensors->find(id);
    if (found == tensors->end()) return Refusal(grpc::NOT_FOUND, "no tensor " + std::to_string(id), "TENSOR_NOT_FOUND");
    *held = &found->second;
    return grpc::Status::OK;
  }

  grpc::Status Take(const grpc::ServerContext& context, const v1::PutHeader& header, const v1::PutRequest& request,
                    bool first) {
    std::map<std::uint64_t, Held>* tensors = nullptr;
    if (const grpc::Status found = Find(context, header.session_id(), &tensors); !found.ok()) return found;
    if (first) {
      const auto before = tensors->find(header.id());
      if (before != tensors->end() && header.version() < before->second.header.version()) {
        return Refusal(grpc::FAILED_PRECONDITION, "an older version", "OLD_VERSION");
      }
      if (before == tensors->end() || header.version() > before->second.header.version()) {
        const std::int64_t size =
            std::accumulate(header.shape().begin(), header.shape().end(),
                            ElementBytes(static_cast<DataType>(header.dtype())), std::multiplies<std::int64_t>());
        std::int64_t used = size;
        for (const auto& [id, held] : *tensors) {
          used += id == header.id() ? 0 : static_cast<std::int64_t>(held.bytes.size());
        }
        if (used > quota_bytes) return Refusal(grpc::RESOURCE_EXHAUSTED, "quota", "QUOTA_FULL");
        (*tensors)[header.id()] = Held{header, std::string(static_cast<std::size_t>(size), '\0'), {}};
      }
    }
    if (request.data().empty()) return grpc::Status::OK;
    const auto found = tensors->find(header.id());
    if (found == tensors->end()) return Refusal(grpc::NOT_FOUND, "deleted", "TENSOR_NOT_FOUND");
    Held& held = found->second;
    const std::int64_t begin = request.offset_bytes();
    const std::int64_t end = begin + static_cast<std::int64_t>(request.data().size());
    if (end > static_cast<std::int64_t>(held.bytes.size())) {
      return Refusal(grpc::OUT_OF_RANGE, "beyond the end", "OUT_OF_RANGE");
    }
    for (const auto& [b, e] : held.received) {
      if (b <= begin && end <= e) return grpc::Status::OK;  // a retry
      if (b < end && begin < e) return Refusal(grpc::INVALID_ARGUMENT, "chunks overlap", "OVERLAP");
    }
    held.received[begin] = end;
    held.bytes.replace(static_cast<std::size_t>(begin), request.data().size(), request.data());
    seen_.put_offsets.push_back(begin);
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::map<std::string, std::map<std::uint64_t, Held>> sessions_;
  std::uint64_t epoch_ = 7;
  Seen seen_;
};

}  // namespace kernd::client
