#include "client/src/pieces.h"

#include <chrono>
#include <utility>

namespace kernd::client {
namespace {

// Up to here a copy is cheaper than a slice.
constexpr std::size_t kCopyBytes = 4096;
constexpr std::chrono::milliseconds kReturnPoll{1};
constexpr unsigned kLengthDelimited = 2;

void AppendVarint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

}  // namespace

grpc::Slice Loan::Lend(std::span<const std::byte> bytes) {
  lent_.fetch_add(1, std::memory_order_relaxed);
  return grpc::Slice(const_cast<std::byte*>(bytes.data()), bytes.size(), &Loan::Return, this);
}

void Loan::Return(void* loan) {
  static_cast<Loan*>(loan)->lent_.fetch_sub(1, std::memory_order_release);
}

void Loan::Await(grpc::CompletionQueue& queue) const {
  void* tag = nullptr;
  bool ok = false;
  while (!AllReturned()) queue.AsyncNext(&tag, &ok, std::chrono::system_clock::now() + kReturnPoll);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
}

std::string& Pieces::Tail() {
  if (pieces_.empty() || !pieces_.back().borrowed.empty()) pieces_.emplace_back();
  return pieces_.back().owned;
}

void Pieces::Header(int number, std::size_t length) {
  std::string& tail = Tail();
  const std::size_t before = tail.size();
  AppendVarint(tail, static_cast<std::uint64_t>(number) << 3 | kLengthDelimited);
  AppendVarint(tail, length);
  size_ += tail.size() - before;
}

void Pieces::Message(const google::protobuf::MessageLite& message) {
  std::string& tail = Tail();
  const std::size_t before = tail.size();
  message.AppendToString(&tail);
  size_ += tail.size() - before;
}

void Pieces::Field(int number, Pieces message) {
  Header(number, message.size_);
  for (Piece& piece : message.pieces_) {
    Tail().append(piece.owned);
    pieces_.back().borrowed = piece.borrowed;
  }
  size_ += message.size_;
}

void Pieces::Bytes(int number, std::span<const std::byte> bytes) {
  Header(number, bytes.size());
  if (bytes.size() <= kCopyBytes) {
    Tail().append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  } else {
    pieces_.back().borrowed = bytes;
  }
  size_ += bytes.size();
}

grpc::ByteBuffer Pieces::Buffer(Loan* loan) const {
  std::vector<grpc::Slice> slices;
  for (const Piece& piece : pieces_) {
    if (!piece.owned.empty()) slices.emplace_back(piece.owned);
    if (piece.borrowed.empty()) continue;
    slices.push_back(loan != nullptr ? loan->Lend(piece.borrowed)
                                     : grpc::Slice(piece.borrowed.data(), piece.borrowed.size()));
  }
  if (slices.empty()) slices.emplace_back();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace kernd::client
