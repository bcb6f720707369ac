#include "client/cli/progress.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "client/cli/text.h"

namespace kernd::cli {
namespace {

constexpr int kWidth = 24;
constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr char kEraseLine[] = "\r\x1b[K";

std::string Left(absl::Duration left) {
  const std::int64_t seconds = std::max<std::int64_t>(1, absl::ToInt64Seconds(left));
  return seconds < 60 ? absl::StrFormat("%d s", seconds) : absl::StrFormat("%d min %02d s", seconds / 60, seconds % 60);
}

}  // namespace

Progress::Progress(std::ostream& err, bool on, std::int64_t total, absl::Time start)
    : err_(err), on_(on), total_(total), start_(start) {}

void Progress::Step(std::int64_t done, const std::string& what, absl::Time now, double part_of_next) {
  const absl::Duration spent = now - start_;
  if (!on_ || total_ <= 0 || spent < kPatience) return;
  const double part = std::clamp((static_cast<double>(done) + part_of_next) / static_cast<double>(total_), 0.0, 1.0);
  const auto length = static_cast<std::size_t>(part * kWidth);
  const std::string bar = std::string(length, '#') + std::string(kWidth - length, '.');
  err_ << kEraseLine << absl::StrFormat("[%s] %3.0f %%  %d of %d", bar, 100 * part, done, total_);
  if (part > 0) err_ << "  " << Left(spent * ((1 - part) / part)) << " left";
  err_ << "  " << Printable(what).substr(0, 32) << std::flush;
  shown_ = true;
}

void Progress::Hide() {
  if (shown_) err_ << kEraseLine << std::flush;
  shown_ = false;
}

Busy::Busy(std::ostream& err, bool on, const std::string& what, absl::Duration most, absl::Duration patience)
    : err_(err), what_(Printable(what)), most_(most), patience_(patience) {
  if (on) thread_ = std::thread([this] { Draw(); });
}

Busy::~Busy() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

// A block that goes to and fro: it moves, but says nothing of how far the work is.
void Busy::Draw() {
  constexpr int kBlock = 4, kTravel = kWidth - kBlock;
  constexpr auto kTick = std::chrono::milliseconds(100);
  const absl::Time start = absl::Now();
  std::unique_lock lock(mutex_);
  if (ended_.wait_for(lock, absl::ToChronoMilliseconds(patience_), [this] { return end_; })) return;
  for (int tick = 0; !end_; ++tick) {
    const int at = kTravel - std::abs(kTravel - tick % (2 * kTravel));
    std::string bar(kWidth, '.');
    bar.replace(static_cast<std::size_t>(at), kBlock, kBlock, '#');
    err_ << kEraseLine << '[' << bar << "] " << what_ << ", " << absl::ToInt64Seconds(absl::Now() - start) << " s";
    if (most_ != absl::InfiniteDuration()) err_ << ", at most " << absl::FormatDuration(most_);
    err_ << std::flush;
    ended_.wait_for(lock, kTick, [this] { return end_; });
  }
  err_ << kEraseLine << std::flush;
}

}  // namespace kernd::cli
