#include "client/src/relay.h"

#include <random>
#include <string>

#include "kernd/client/error.h"

namespace kernd::client {
namespace {

// With kStriped: smaller tensors stay in the request, for which a page more or less is nothing.
constexpr std::int64_t kMinStripedBytes = 4096;

}  // namespace

Travellers Choose(const std::vector<std::int64_t>& tensor_bytes, const ClientOptions& options) {
  if (options.transfer == Transfer::kInline) return {};
  if (options.transfer == Transfer::kStriped) return {.min_bytes = kMinStripedBytes};
  std::int64_t total = 0;
  for (const std::int64_t bytes : tensor_bytes) {
    if (__builtin_add_overflow(total, bytes, &total)) total = INT64_MAX;
  }
  // What is less than a chunk is in the request sooner than it would be uploaded.
  return total >= options.stripe_threshold_bytes ? Travellers{.min_bytes = kChunkBytes} : Travellers();
}

std::uint64_t OwnId() {
  thread_local std::mt19937_64 random{std::random_device{}() + (std::uint64_t{std::random_device{}()} << 32)};
  return random() | std::uint64_t{1} << 63;
}

absl::Status PutOperands(const SessionLink& link, const std::vector<Upload>& uploads, const CallTerms& terms) {
  Stripes& stripes = link.wire().stripes;
  bool crowded = stripes.crew().HasLater();
  const absl::Status put = PutTensors(stripes, link.session().id, uploads, terms);
  crowded = crowded || stripes.crew().HasLater();
  if (!IsSessionFull(put) || !crowded) return put;
  stripes.crew().AwaitLater();
  return PutTensors(stripes, link.session().id, uploads, terms);
}

bool IsSessionFull(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return false;
  const std::string why = DetailsOf(status).reason;
  return why == reason::kQuotaFull || why == reason::kMemoryFull || why == reason::kTooLarge;
}

bool IsSessionFullFor(const absl::Status& status, const char* result) {
  return IsSessionFull(status) && DetailsOf(status).field == std::string(result) + ".resident.id";
}

absl::StatusOr<Tensor> Destination(const char* name, const Tensor& result, std::span<std::byte> into) {
  if (into.empty()) return Tensor::Allocate(result.dtype(), result.shape());
  absl::StatusOr<Tensor> tensor = Tensor::Borrow(result.dtype(), result.shape(), into);
  if (tensor.ok()) return tensor;
  return InvalidField(std::string(name) + ".into", std::to_string(into.size()) + " bytes",
                      "the result is " + ToString(result.dtype(), result.shape()));
}

}  // namespace kernd::client
