#include "client/src/own_session.h"

#include <string>

#include "client/src/status.h"
#include "kernd/client/error.h"

namespace kernd::client {
namespace {

constexpr absl::Duration kAskAgain = absl::Seconds(30);

}  // namespace

OwnSession::~OwnSession() {
  const std::lock_guard lock(mutex_);
  if (link_ == nullptr) return;
  link_->wire().stripes.crew().AwaitLater();
  link_->CloseSoon();
}

absl::StatusOr<std::shared_ptr<const SessionLink>> OwnSession::Get(const CallTerms& terms) {
  std::unique_lock lock(mutex_);
  if (!opened_.wait_until(lock, terms.stop, absl::ToChronoTime(terms.deadline), [this] { return !opening_; })) {
    if (terms.stop.stop_requested()) return absl::CancelledError("stopped by the caller");
    return absl::DeadlineExceededError("no session before the deadline");
  }
  if (link_ != nullptr) return link_;
  if (absl::Now() < ask_again_) return refusal_;
  opening_ = true;
  lock.unlock();
  absl::StatusOr<std::shared_ptr<const SessionLink>> link =
      SessionLink::Open(wire_, {.label = "kernd::client transfers"}, terms);
  lock.lock();
  opening_ = false;
  opened_.notify_all();
  if (link.ok()) {
    link_ = *link;
  } else if (IsRefusal(link.status())) {
    refusal_ = link.status();
    ask_again_ = absl::Now() + kAskAgain;
  }
  return link;
}

void OwnSession::Drop(const std::shared_ptr<const SessionLink>& link) {
  const std::lock_guard lock(mutex_);
  if (link_ == link) link_ = nullptr;
}

bool OwnSession::IsRefusal(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status) ||
         (absl::IsResourceExhausted(status) && DetailsOf(status).reason == reason::kSessionsFull);
}

bool OwnSession::IsGone(const absl::Status& status) {
  const std::string why = DetailsOf(status).reason;
  return why == reason::kSessionNotFound || why == reason::kServerRestarted;
}

}  // namespace kernd::client
