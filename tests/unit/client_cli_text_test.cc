// What kernctl's commands share: text for terminals, and random operands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/operands.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "client/cli/text.h"
#include "client/cli/types.h"
#include "kernels/reference/convert.h"

namespace kernd::cli {
namespace {

TEST(PrintableTest, NothingThatATerminalActsUpon) {
  EXPECT_EQ(Printable("plain text, 1.5 \\ {}"), "plain text, 1.5 \\ {}");
  EXPECT_EQ(Printable("gr\xc3\xb6\xc3\x9f"
                      "er \xe2\x82\xac \xf0\x9f\x98\x80"),
            "gr\xc3\xb6\xc3\x9f"
            "er \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(Printable("a\x1b[2Jb\r\n\tc\x7f"), "a\\x1b[2Jb\\x0d\\n\\tc\\x7f");
  EXPECT_EQ(Printable(std::string("\0", 1)), "\\x00");
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b") << "CSI as one character";
  EXPECT_EQ(Printable("\xe2\x80\xae"), "\\xe2\\x80\\xae") << "right to left from here on";
  EXPECT_EQ(Printable("\xc0\x9b \xed\xa0\x80 \xff \xe2\x82"), "\\xc0\\x9b \\xed\\xa0\\x80 \\xff \\xe2\\x82")
      << "no UTF-8";
  EXPECT_EQ(Printable(std::string(3000, 'x')), std::string(2000, 'x') + "...");
}

TEST(ProgressTest, IsSilentForASecondAndOffATerminal) {
  const absl::Time start = absl::UnixEpoch();
  std::ostringstream out;
  {
    Progress off(out, /*on=*/false, 10, start);
    off.Step(5, "x", start + absl::Seconds(9));
    Progress early(out, /*on=*/true, 10, start);
    early.Step(1, "x", start + absl::Milliseconds(900));
    Progress none(out, /*on=*/true, 0, start);
    none.Step(0, "x", start + absl::Seconds(9));
  }
  EXPECT_EQ(out.str(), "");
}

TEST(ProgressTest, ShowsPartTimeAndNameAndGoesAway) {
  const absl::Time start = absl::UnixEpoch();
  std::ostringstream out;
  {
    Progress progress(out, /*on=*/true, 4, start);
    progress.Step(1, "square\x1b", start + absl::Seconds(30));
    EXPECT_EQ(out.str(), "\r\x1b[K[######..................]  25 %  1 of 4  1 min 30 s left  square\\x1b");
    out.str("");
  }
  EXPECT_EQ(out.str(), "\r\x1b[K");
}

// Takes what is drawn from the drawing thread, and can be waited for.
class Drawn : public std::stringbuf {
 public:
  int sync() override {
    const std::lock_guard lock(mutex_);
    if (!str().empty()) pictures_.push_back(str());
    str("");
    changed_.notify_all();
    return 0;
  }
  std::string Picture(std::size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pictures_.size() > index; });
    return pictures_[index];
  }
  std::string Last() {
    const std::lock_guard lock(mutex_);
    return pictures_.empty() ? "" : pictures_.back();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> pictures_;
};

TEST(BusyTest, MovesShowsTheTimeAndGoesAway) {
  Drawn drawn;
  std::ostream out(&drawn);
  {
    const Busy busy(out, /*on=*/true, "sending\x1b", absl::Minutes(1), absl::ZeroDuration());
    const std::string first = drawn.Picture(0);
    EXPECT_THAT(first, testing::StartsWith("\r\x1b[K[####....................] sending\\x1b, "));
    EXPECT_THAT(first, testing::EndsWith(" s, at most 1m"));
    EXPECT_THAT(drawn.Picture(1), testing::HasSubstr("[.####...................] sending"));
  }
  EXPECT_EQ(drawn.Last(), "\r\x1b[K");
}

TEST(BusyTest, IsSilentUntilItsPatienceEndsAndOffATerminal) {
  std::ostringstream out;
  { const Busy off(out, /*on=*/false, "x", absl::Minutes(1), absl::ZeroDuration()); }
  { const Busy early(out, /*on=*/true, "x", absl::Minutes(1), absl::Hours(1)); }
  EXPECT_EQ(out.str(), "");
}

TEST(RandomTest, SeededNormalAndRounded) {
  const auto values = [](client::DataType dtype, std::uint64_t seed, std::uint32_t stream) {
    const absl::StatusOr<client::Tensor> tensor = RandomTensor(dtype, {100, 100}, seed, stream);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return reference::LoadAll(KernelType(dtype), tensor->bytes().data(), 10'000);
  };
  for (const client::DataType dtype : {client::DataType::kF32, client::DataType::kF16, client::DataType::kBF16,
                                       client::DataType::kF8E4M3, client::DataType::kI8}) {
    const std::vector<double> x = values(dtype, 7, 0);
    EXPECT_EQ(x, values(dtype, 7, 0));
    EXPECT_NE(x, values(dtype, 8, 0));
    EXPECT_NE(x, values(dtype, 7, 1));
    const double size = dtype == client::DataType::kI8 ? 32 : 1;
    double sum = 0, squares = 0;
    for (const double value : x) {
      sum += value / size;
      squares += value * value / (size * size);
    }
    // Ten standard errors of 10,000 deviates.
    EXPECT_NEAR(sum / 1e4, 0, 0.1) << client::Name(dtype);
    EXPECT_NEAR(squares / 1e4, 1, 0.15) << client::Name(dtype);
  }
}

TEST(TableTest, Text) {
  Table table({Table::Align::kLeft, Table::Align::kRight});
  table.Add({"a", "1.5", "x"});
  table.Add({"long", "10.25"});
  std::ostringstream out;
  table.Print(out, 1);
  EXPECT_EQ(out.str(), " a       1.5  x\n long  10.25\n");
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(INT64_MAX), "8.0 EiB");
  EXPECT_EQ(Bar(1, 2, 10), "#####");
  EXPECT_EQ(Bar(0.001, 100, 10), "#");
  EXPECT_EQ(Bar(5, 2, 10), "##########");
  EXPECT_EQ(Bar(0, 2, 10), "");
  EXPECT_EQ(Bar(1, 0, 10), "");
}

}  // namespace
}  // namespace kernd::cli
