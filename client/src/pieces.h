// A serialised protobuf message in pieces, so that tensors are sent from where they are.
//
// The bytes on the wire are an ordinary message of the schema: each field once, lengths as protobuf would write them.
// Only the order of the fields differs from the official serialiser's: small ones come before the tensors.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "google/protobuf/message_lite.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace kernd::client {

// Memory of a caller that gRPC holds. gRPC lets go of it on whatever thread moves the connection: when its last byte is
// with the kernel, or when the call or its connection has ended, which can be after the call's status is known.
// Thread-safe. Must not be destroyed before all is returned.
class Loan {
 public:
  Loan() = default;
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  // A slice over `bytes`, which are not copied and must outlive the loan.
  grpc::Slice Lend(std::span<const std::byte> bytes);

  // Waits until all is returned, and empties `queue`, on which nothing is under way any more. Only after a call that
  // ended early is there anything to wait for. Polls, as no other thread may be moving the connection.
  void Await(grpc::CompletionQueue& queue) const;

  bool AllReturned() const { return lent_.load(std::memory_order_acquire) == 0; }

 private:
  static void Return(void* loan);

  std::atomic<int> lent_{0};
};

class Pieces {
 public:
  // Appends the fields of `message`.
  void Message(const google::protobuf::MessageLite& message);
  // Appends `message` as the length-delimited field `number`.
  void Field(int number, Pieces message);
  // Appends `bytes` as the field `number`. Longer ones are not copied and must outlive the pieces.
  void Bytes(int number, std::span<const std::byte> bytes);

  // Of the whole message.
  std::size_t size() const { return size_; }

  // The message for gRPC. What it holds of the caller's memory is lent by `loan`, or copied where that is null.
  grpc::ByteBuffer Buffer(Loan* loan) const;

 private:
  // `owned`, then `borrowed`.
  struct Piece {
    std::string owned;
    std::span<const std::byte> borrowed;
  };

  std::string& Tail();  // where owned bytes are appended
  void Header(int number, std::size_t length);

  std::vector<Piece> pieces_;
  std::size_t size_ = 0;
};

}  // namespace kernd::client
