#include "client/src/stream.h"

namespace kernd::client {

Stream::Stream(const Stripe& stripe, const std::string& method, const CallTerms& terms) : stripe_(stripe) {
  context_.emplace();
  SetTerms(terms, *context_);
  // The headers go with the first message.
  context_->set_initial_metadata_corked(true);
  call_ = grpc::GenericStub(stripe.channel).PrepareCall(&*context_, method, &queue_);
  call_->StartCall(nullptr);
  cancel_.emplace(terms.stop, [this] { context_->TryCancel(); });
}

Stream::~Stream() {
  if (!finished_) {
    context_->TryCancel();
    Pushback unheard;
    Finish(&unheard).IgnoreError();
  }
  // What the call still holds of the caller's memory goes with it.
  call_.reset();
  context_.reset();
  loan_.Await(queue_);
}

bool Stream::Wait() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

bool Stream::Write(const Pieces& message) {
  call_->Write(message.Buffer(stripe_.lend ? &loan_ : nullptr), nullptr);
  return Wait();
}

bool Stream::HalfClose() {
  call_->WritesDone(nullptr);
  return Wait();
}

bool Stream::Read(grpc::ByteBuffer* message) {
  call_->Read(message, nullptr);
  return Wait();
}

absl::Status Stream::Finish(Pushback* pushback) {
  grpc::Status status;
  call_->Finish(&status, nullptr);
  Wait();
  finished_ = true;
  cancel_.reset();
  return EndOf(status, *context_, *stripe_.channel, stripe_.endpoint, pushback);
}

}  // namespace kernd::client
