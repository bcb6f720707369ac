// What matmul and attention have in common as calls: method, translation, operands, results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/src/decode.h"
#include "client/src/encode.h"
#include "kernd/client/attention.h"
#include "kernd/client/matmul.h"

namespace kernd::client {

// A result of a call: where it shall be, where it is in the reply, and how many bytes it will about have (0: it will
// not be). The guess only says which way is faster: it may be wrong.
template <typename Reply>
struct Result {
  const char* name;
  ResultPlace* place;
  Tensor Reply::*tensor;
  std::int64_t about_bytes;
};

struct MatmulCall {
  using Args = MatmulArgs;
  using Reply = MatmulReply;
  static constexpr char kMethod[] = "/kernd.v1.Compute/Matmul";

  static absl::StatusOr<Pieces> Encode(const Args& args, const CallOptions& options, const std::string& session,
                                       const SharedRegions* shared = nullptr) {
    return EncodeMatmul(args, options, session, shared);
  }
  static absl::StatusOr<Reply> Decode(grpc::ByteBuffer reply, const Args& args, const SharedRegions* shared = nullptr) {
    return DecodeMatmul(std::move(reply), args.d, shared);
  }
  // Those that are given.
  static std::vector<Operand*> Operands(Args& args);
  static std::vector<Result<Reply>> Results(Args& args);
};

struct AttentionCall {
  using Args = AttentionArgs;
  using Reply = AttentionReply;
  static constexpr char kMethod[] = "/kernd.v1.Compute/Attention";

  static absl::StatusOr<Pieces> Encode(const Args& args, const CallOptions& options, const std::string& session,
                                       const SharedRegions* shared = nullptr) {
    return EncodeAttention(args, options, session, shared);
  }
  static absl::StatusOr<Reply> Decode(grpc::ByteBuffer reply, const Args& args, const SharedRegions* shared = nullptr) {
    return DecodeAttention(std::move(reply), args.o, args.lse, shared);
  }
  static std::vector<Operand*> Operands(Args& args);
  static std::vector<Result<Reply>> Results(Args& args);
};

}  // namespace kernd::client
