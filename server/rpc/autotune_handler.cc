// Device: Autotune. The tuner measures on a thread of its own; here its words are translated.
#include <utility>

#include "absl/strings/str_join.h"
#include "kernd/kernels/error.h"
#include "kernd/v1/device.pb.h"
#include "server/rpc/encode.h"
#include "server/rpc/handlers.h"
#include "server/rpc/message.h"

namespace kernd::rpc {
namespace {

using tune::Progress;

// As many shapes as may be declared, of the longest, and what protobuf puts around them.
constexpr std::int64_t kMaxRequest = core::kMaxDeclaredShapes * (core::kMaxShapeText + 8) + 64;

v1::AutotuneProgress::Event EncodeEvent(Progress::Kind kind) {
  switch (kind) {
    case Progress::Kind::kRunning: return v1::AutotuneProgress::EVENT_RUNNING;
    case Progress::Kind::kCandidate: return v1::AutotuneProgress::EVENT_CANDIDATE;
    case Progress::Kind::kShape: return v1::AutotuneProgress::EVENT_SHAPE;
    case Progress::Kind::kEnd: return v1::AutotuneProgress::EVENT_END;
  }
  return v1::AutotuneProgress::EVENT_UNSPECIFIED;
}

v1::AutotuneProgress::Verdict EncodeVerdict(tune::Verdict verdict) {
  switch (verdict) {
    case tune::Verdict::kMeasured: return v1::AutotuneProgress::VERDICT_MEASURED;
    case tune::Verdict::kSlow: return v1::AutotuneProgress::VERDICT_SLOW;
    case tune::Verdict::kWrong: return v1::AutotuneProgress::VERDICT_WRONG;
    case tune::Verdict::kUnstable: return v1::AutotuneProgress::VERDICT_UNSTABLE;
    case tune::Verdict::kFailed: return v1::AutotuneProgress::VERDICT_FAILED;
  }
  return v1::AutotuneProgress::VERDICT_UNSPECIFIED;
}

v1::AutotuneProgress::Outcome EncodeOutcome(tune::Outcome outcome) {
  switch (outcome) {
    case tune::Outcome::kTuned: return v1::AutotuneProgress::OUTCOME_TUNED;
    case tune::Outcome::kModelKept: return v1::AutotuneProgress::OUTCOME_MODEL_KEPT;
    case tune::Outcome::kRefused: return v1::AutotuneProgress::OUTCOME_REFUSED;
    case tune::Outcome::kNotReached: return v1::AutotuneProgress::OUTCOME_NOT_REACHED;
  }
  return v1::AutotuneProgress::OUTCOME_UNSPECIFIED;
}

v1::AutotuneProgress Encode(const Progress& progress) {
  v1::AutotuneProgress out;
  out.set_event(EncodeEvent(progress.kind));
  out.set_done(progress.done);
  out.set_total(progress.total);
  out.set_shape(progress.shape);
  out.set_part(progress.part);
  out.set_best(progress.best);
  out.set_best_us(progress.best_us);
  out.set_kernel(progress.kernel);
  if (progress.tile) EncodeTile(*progress.tile, *out.mutable_tile());
  out.set_median_us(progress.times.median);
  out.set_p20_us(progress.times.p20);
  out.set_p80_us(progress.times.p80);
  out.set_runs(progress.times.runs);
  if (progress.kind == Progress::Kind::kCandidate) out.set_verdict(EncodeVerdict(progress.verdict));
  if (progress.kind == Progress::Kind::kShape) out.set_outcome(EncodeOutcome(progress.outcome));
  out.set_why(progress.why);
  out.set_model(progress.model);
  out.set_model_us(progress.model_times.median);
  return out;
}

class ProgressSource final : public MessageSource {
 public:
  explicit ProgressSource(std::shared_ptr<tune::Feed> feed) : feed_(std::move(feed)) {}
  ~ProgressSource() override { feed_->Leave(); }

  bool Ready() override { return feed_->Ready(); }
  absl::StatusOr<grpc::ByteBuffer> Next(bool& last) override {
    KERND_ASSIGN_OR_RETURN(const Progress progress, feed_->Take(last));
    return Serialize(Encode(progress));
  }

 private:
  const std::shared_ptr<tune::Feed> feed_;
};

}  // namespace

void AddAutotune(tune::Tuner& tuner, MethodTable& table) {
  table.Add("/kernd.v1.Device/Autotune",
            {.name = "Device/Autotune",
             .max_message_bytes = kMaxRequest,
             .source = [&tuner](Exchange& exchange) -> absl::StatusOr<std::unique_ptr<MessageSource>> {
               v1::AutotuneRequest request;
               KERND_RETURN_IF_ERROR(Parse(exchange.request, request));
               const std::vector<std::string> shapes(request.shapes().begin(), request.shapes().end());
               KERND_ASSIGN_OR_RETURN(std::shared_ptr<tune::Feed> feed,
                                      tuner.Start(shapes, request.budget_s(), exchange.Waker()));
               exchange.record.shapes = absl::StrJoin(shapes, " ");
               return std::make_unique<ProgressSource>(std::move(feed));
             }});
}

}  // namespace kernd::rpc
