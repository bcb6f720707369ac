#include "client/src/transport.h"

#include <limits>
#include <utility>

#include "client/src/status.h"
#include "client/src/stream.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "kernd/client/error.h"

namespace kernd::client {
namespace {

// protobuf's own limit, which the daemon's parser and every other client share.
constexpr std::size_t kMaxMessageBytes = std::numeric_limits<std::int32_t>::max();

}  // namespace

Transport::Transport(ClientOptions options) : options_(std::move(options)), lend_(!IsUnix(options_.endpoint)) {
  for (int i = 0; i < options_.channels; ++i) channels_.push_back(Dial(options_));
}

absl::Status Transport::AwaitConnection(absl::Time deadline) const {
  for (const std::shared_ptr<grpc::Channel>& channel : channels_) {
    while (true) {
      const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
      if (state == GRPC_CHANNEL_READY) break;
      if (state == GRPC_CHANNEL_TRANSIENT_FAILURE)
        return NotConnected(options_.endpoint, absl::StatusCode::kUnavailable, "refused");
      if (!channel->WaitForStateChange(state, absl::ToChronoTime(deadline))) {
        return NotConnected(options_.endpoint, absl::StatusCode::kDeadlineExceeded, "");
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<grpc::ByteBuffer> Transport::Call(const std::string& method, const Pieces& request,
                                                 const CallOptions& options) const {
  const absl::StatusOr<CallTerms> terms = TermsOf(options, options_);
  KERND_CLIENT_RETURN_IF_ERROR(terms.status());
  return Call(method, request, *terms);
}

absl::StatusOr<grpc::ByteBuffer> Transport::Call(const std::string& method, const Pieces& request,
                                                 const CallTerms& terms) const {
  if (request.size() > kMaxMessageBytes) {
    return LocalError(absl::StatusCode::kResourceExhausted, reason::kTooLarge, {},
                      "the request has " + std::to_string(request.size()) + " bytes, a message at most " +
                          std::to_string(kMaxMessageBytes));
  }
  grpc::ByteBuffer reply;
  KERND_CLIENT_RETURN_IF_ERROR(
      Repeat(terms, [&](Pushback* pushback) { return Try(method, request, terms, &reply, pushback); }));
  return reply;
}

absl::Status Transport::Listen(const std::string& method, const Pieces& request, const CallTerms& terms,
                               const std::function<absl::Status(grpc::ByteBuffer)>& take) const {
  return Repeat(terms, [&](Pushback* pushback) -> absl::Status {
    const Stripe stripe = {.channel = NextChannel(), .endpoint = options_.endpoint, .lend = lend_};
    Stream stream(stripe, method, terms);
    bool begun = false;
    if (stream.Write(request) && stream.HalfClose()) {
      for (grpc::ByteBuffer reply; stream.Read(&reply); begun = true) {
        KERND_CLIENT_RETURN_IF_ERROR(take(std::move(reply)));
        reply.Clear();
      }
    }
    const absl::Status status = stream.Finish(pushback);
    if (begun) pushback->never = true;
    return status;
  });
}

absl::Status Transport::Try(const std::string& method, const Pieces& request, const CallTerms& terms,
                            grpc::ByteBuffer* reply, Pushback* pushback) const {
  absl::Status result;
  Loan loan;
  const std::shared_ptr<grpc::Channel>& channel = NextChannel();
  // A queue of the call's own, polled by this thread: no thread of gRPC's stands between the socket and the caller.
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  {
    grpc::ClientContext context;
    SetTerms(terms, context);
    // The daemon admits a call by this before it reads the body.
    context.AddMetadata("kernd-body-bytes", std::to_string(request.size()));

    grpc::GenericStub stub(channel);
    grpc::Status status;
    const auto reader = stub.PrepareUnaryCall(&context, method, request.Buffer(lend_ ? &loan : nullptr), &queue);
    {
      const std::stop_callback cancel(terms.stop, [&context] { context.TryCancel(); });
      reader->StartCall();
      reader->Finish(reply, &status, nullptr);
      queue.Next(&tag, &ok);
    }
    result = EndOf(status, context, *channel, options_.endpoint, pushback);
  }
  loan.Await(queue);
  return result;
}

}  // namespace kernd::client
