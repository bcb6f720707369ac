// Requests of the wire to core's values. Only translation: the rules of the operations are kernels' business, those of
// the wire (bytes as many as the shape says, enums known, places built) are here.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernd/v1/compute.pb.h"
#include "server/core/program.h"
#include "server/rpc/message.h"
#include "server/rpc/session_decode.h"

namespace kernd::rpc {

// What CallOptions asks for, checked.
struct CallWish {
  int priority = 0;
  SessionPlaces session;  // without a store where the call names none
};

// For the log: empty where it is none that DecodeOptions takes.
std::string RequestId(const v1::CallOptions& options);

// What operands may refer to.
struct Places {
  // The bytes of the message that is decoded. Null: none are asked for, as in Plan.
  const Payloads* payloads = nullptr;
  // Where resident tensors are found, and how they must lie for kernels to read them there.
  SessionPlaces session = {};
  std::int64_t alignment = 1;
  // Whether kernels read shared regions where they are; else they are copied to the device.
  bool host_in_place = true;
};

// INVALID_ARGUMENT: request_id longer than 128 or not printable ASCII, priority outside -100..100.
// NOT_FOUND: another device than `device`; no such session in `sessions`; no such tensor to be placed with. The
// session is held open by what comes back.
absl::StatusOr<CallWish> DecodeOptions(const v1::CallOptions& options, std::string_view device,
                                       core::SessionStore* sessions = nullptr);

// The step's values. `field` is the path of `op` in the request.
absl::StatusOr<core::MatmulStep> DecodeMatmul(const v1::MatmulOp& op, const std::string& field, const Places& places);
absl::StatusOr<core::AttentionStep> DecodeAttention(const v1::AttentionOp& op, const std::string& field,
                                                    const Places& places);

// The steps of a plan. 1 to 64.
absl::StatusOr<core::Program> DecodeSteps(const google::protobuf::RepeatedPtrField<v1::Step>& steps,
                                          const Places& places);

}  // namespace kernd::rpc
