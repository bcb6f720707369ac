// The parts of kernctl bench that need no daemon: due times, histogram, mixes, picture.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "client/cli/bench/arrivals.h"
#include "client/cli/bench/histogram.h"
#include "client/cli/bench/mix.h"
#include "client/cli/bench/plot.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/random.h"

namespace kernd::cli {
namespace {

using testing::HasSubstr;

// --- arrivals
// ---------------------------------------------------------------------------------------------------------

TEST(ArrivalsTest, ConstantOnesDoNotDrift) {
  Arrivals arrivals(ArrivalKind::kConstant, 3, 0);
  absl::Duration due;
  for (int i = 0; i < 3'000'000; ++i) due = arrivals.Next();
  // A third of a second, rounded to a nanosecond and added up, would be 1 ms early.
  EXPECT_LE(absl::AbsDuration(due - absl::Seconds(2'999'999.0 / 3)), absl::Nanoseconds(1));
  EXPECT_EQ(Arrivals(ArrivalKind::kConstant, 1e6, 0).Next(), absl::ZeroDuration());
}

TEST(ArrivalsTest, PoissonGapsAreExponential) {
  constexpr double kRate = 250;
  constexpr int kCount = 100'000;
  for (const std::uint64_t seed : {0u, 1u, 77u}) {
    SCOPED_TRACE(seed);
    Arrivals arrivals(ArrivalKind::kPoisson, kRate, seed);
    absl::Duration last = absl::ZeroDuration();
    double sum = 0, squares = 0;
    int longer_than_mean = 0;
    for (int i = 0; i < kCount; ++i) {
      const absl::Duration due = arrivals.Next();
      ASSERT_GE(due, last) << i;
      const double gap = absl::ToDoubleSeconds(due - last) * kRate;
      sum += gap;
      squares += gap * gap;
      longer_than_mean += gap > 1;
      last = due;
    }
    // Mean and variance 1, and P(gap > mean) = 1 / e; four standard deviations of each estimate, at 100,000 gaps.
    const double mean = sum / kCount, variance = squares / kCount - mean * mean;
    EXPECT_NEAR(mean, 1, 4 / std::sqrt(kCount));
    EXPECT_NEAR(variance, 1, 4 * std::sqrt(8.0 / kCount));
    EXPECT_NEAR(static_cast<double>(longer_than_mean) / kCount, std::exp(-1), 4 * 0.482 / std::sqrt(kCount));
  }
}

TEST(ArrivalsTest, TheSeedDecides) {
  const auto tenth = [](std::uint64_t seed) {
    Arrivals arrivals(ArrivalKind::kPoisson, 10, seed);
    absl::Duration due;
    for (int i = 0; i < 10; ++i) due = arrivals.Next();
    return due;
  };
  EXPECT_EQ(tenth(5), tenth(5));
  EXPECT_NE(tenth(5), tenth(6));
}

// --- histogram
// --------------------------------------------------------------------------------------------------------

constexpr double kSomeQuantiles[] = {0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1};

// By its definition: the value of rank ceil(q * count).
std::int64_t Exact(std::vector<std::int64_t> values, double q) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::max<std::size_t>(rank, 1) - 1];
}

Histogram Of(const std::vector<std::int64_t>& nanoseconds) {
  Histogram histogram;
  for (const std::int64_t value : nanoseconds) histogram.Add(absl::Nanoseconds(value));
  return histogram;
}

// Nine decades, from nanoseconds on.
std::vector<std::int64_t> Spread(std::uint64_t seed, int count) {
  reference::Normal normal(seed);
  std::vector<std::int64_t> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<std::int64_t>(std::exp(11 + 2.5 * normal.Next())));
  return values;
}

TEST(HistogramTest, QuantilesAreWithinTheStatedError) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const std::vector<std::int64_t> values = Spread(seed, 20'000);
    const Histogram histogram = Of(values);
    for (const double q : kSomeQuantiles) {
      const auto exact = static_cast<double>(Exact(values, q));
      EXPECT_NEAR(absl::ToDoubleNanoseconds(histogram.Quantile(q)), exact, exact * Histogram::kRelativeError)
          << "q " << q << ", seed " << seed;
    }
    EXPECT_EQ(histogram.Quantile(0), absl::Nanoseconds(Exact(values, 0)));
    EXPECT_EQ(histogram.Quantile(1), absl::Nanoseconds(Exact(values, 1)));
    double sum = 0;
    for (const std::int64_t value : values) sum += static_cast<double>(value);
    EXPECT_NEAR(absl::ToDoubleNanoseconds(histogram.Mean()), sum / 20'000, 1);
  }
}

TEST(HistogramTest, EveryPowerOfTwoAndItsNeighbours) {
  for (int bits = 0; bits < 63; ++bits) {
    for (const std::int64_t off : {-1, 0, 1}) {
      const std::int64_t value = (std::int64_t{1} << bits) + off;
      // With others at both ends, the answer comes from the bucket and not from the extremes.
      const Histogram histogram = Of({0, value, value, std::numeric_limits<std::int64_t>::max()});
      const std::int64_t median = absl::ToInt64Nanoseconds(histogram.Quantile(0.5));
      EXPECT_LE(std::abs(median - value), value / 256) << value;
      EXPECT_TRUE(value >= 256 || median == value) << value;
    }
  }
}

TEST(HistogramTest, MergedOnesAreAsOne) {
  const std::vector<std::int64_t> a = Spread(4, 5000), b = Spread(5, 70);
  std::vector<std::int64_t> both = a;
  both.insert(both.end(), b.begin(), b.end());
  Histogram merged = Of(b);
  merged.Merge(Of(a));
  merged.Merge(Histogram());
  const Histogram whole = Of(both);
  EXPECT_EQ(merged.count(), 5070);
  for (const double q : kSomeQuantiles) EXPECT_EQ(merged.Quantile(q), whole.Quantile(q)) << q;
  Histogram empty;
  empty.Merge(whole);
  EXPECT_EQ(empty.Min(), whole.Min());
}

TEST(HistogramTest, EmptyOneAndNegative) {
  EXPECT_EQ(Histogram().Quantile(0.5), absl::ZeroDuration());
  EXPECT_EQ(Histogram().Mean(), absl::ZeroDuration());
  Histogram one;
  one.Add(absl::Nanoseconds(12'345'678));
  for (const double q : kSomeQuantiles) EXPECT_EQ(one.Quantile(q), absl::Nanoseconds(12'345'678)) << q;
  one.Add(absl::Seconds(-1));
  EXPECT_EQ(one.Min(), absl::ZeroDuration());
}

// --- mix
// --------------------------------------------------------------------------------------------------------------

std::string ErrorOf(const std::string& text) {
  return std::string(ParseMix("m", text).status().message());
}

TEST(MixTest, ProblemsWithWeights) {
  const auto mix = ParseMix("m",
                            "# comment\n\n"
                            "90 attention 1x32x1x128,8,512 BF16 # decode\r\n"
                            "\t10\tattention  1x32x512x128,8  causal\n"
                            "1 matmul 2x3x4x5 f32");
  ASSERT_TRUE(mix.ok()) << mix.status();
  ASSERT_EQ(mix->size(), 3u);
  EXPECT_EQ((*mix)[0].Name(), "attention BF16 1x32x1x128,8,512");
  EXPECT_EQ((*mix)[0].weight, 90);
  EXPECT_EQ(OperandShapes((*mix)[0]),
            (std::vector<std::vector<std::int64_t>>{{1, 32, 1, 128}, {1, 8, 512, 128}, {1, 8, 512, 128}}));
  EXPECT_EQ((*mix)[1].Name(), "attention F16 1x32x512x128,8 causal");
  EXPECT_EQ((*mix)[2].Name(), "matmul F32 2x3x4x5");
  EXPECT_EQ(OperandShapes((*mix)[2]), (std::vector<std::vector<std::int64_t>>{{2, 3, 5}, {2, 5, 4}}));
}

TEST(MixTest, ErrorsNameTheLine) {
  EXPECT_EQ(ErrorOf(""), "m: no problem in it");
  EXPECT_EQ(ErrorOf("# nothing\n"), "m: no problem in it");
  EXPECT_EQ(ErrorOf("1 matmul 2x2x2\n\n1 matmul\n"), "m:3: 2 words: must be WEIGHT OP SHAPE [DTYPE] [causal]");
  EXPECT_THAT(ErrorOf("1 matmul 2x2x2 F32 causal now"), HasSubstr("m:1: 6 words"));
  for (const char* weight : {"0", "-1", "1.5", "1000001", "x", "9999999999999999999999", "0x10", "+1"}) {
    EXPECT_EQ(ErrorOf(std::string("1 matmul 2x2x2\n") + weight + " matmul 2x2x2"),
              "m:2: weight '" + std::string(weight) + "': must be a whole number from 1 to 1000000");
  }
  EXPECT_EQ(ErrorOf("1 conv 2x2x2"), "m:1: operation 'conv': must be matmul or attention");
  EXPECT_EQ(ErrorOf("1 matmul 2x2"), "m:1: 2x2: must be MxNxK, or BATCHxMxNxK");
  EXPECT_THAT(ErrorOf("1 attention 2x2x2"), HasSubstr("m:1: 2x2x2: must be BxHqxLqxD"));
  EXPECT_EQ(ErrorOf("1 matmul 2x2x2 F7"), "m:1: 'F7': must be an element type or causal");
  EXPECT_EQ(ErrorOf("1 matmul 2x2x2 F32 F32"), "m:1: 'F32': must be an element type or causal");
  EXPECT_EQ(ErrorOf("1 matmul 2x2x2 BOOL"), "m:1: 2x2x2: no operand is BOOL");
  EXPECT_EQ(ErrorOf("1 matmul 2x2x2 causal"), "m:1: 2x2x2: causal is for attention");
}

TEST(MixTest, HostileSizesAreRefusedBeforeAnythingIsMade) {
  EXPECT_THAT(ErrorOf("1 matmul 100000x100000x100000"), HasSubstr("m:1: 100000x100000x100000: "));
  EXPECT_THAT(ErrorOf("1 matmul 9223372036854775807x9223372036854775807x2"), HasSubstr("2^63 bytes and more"));
  EXPECT_THAT(ErrorOf("1 matmul 99999999999999999999x1x1"), HasSubstr("must be MxNxK"));
  std::string large, many;
  for (int i = 0; i < 6; ++i) large += "1 matmul 20000x20000x20000\n";  // 1.5 GiB each
  EXPECT_THAT(ErrorOf(large), HasSubstr("m:3: up to here the operands have 4.5 GiB; all problems"));
  for (int i = 0; i < 257; ++i) many += "1 matmul 1x1x1\n";
  EXPECT_EQ(ErrorOf(many), "m:257: more than 256 problems");
  EXPECT_FALSE(ParseMix("m", std::string_view("1 matmul 2x2x2\0", 15)).ok());
}

// --- picture
// ----------------------------------------------------------------------------------------------------------

// Tags are balanced, attributes quoted, and nothing stands bare: enough of XML for what PlotSvg writes.
std::string Malformed(const std::string& xml) {
  static const std::regex tag(
      R"re(<(/?)([a-z]+)((?: [a-zA-Z0-9-]+="[^"<&]*(?:&(?:amp|lt|gt|quot);[^"<&]*)*")*)(/?)>)re");
  static const std::regex text(R"([^<>&]*(?:&(?:amp|lt|gt|quot);[^<>&]*)*)");
  std::vector<std::string> open;
  auto last = xml.begin();
  for (std::sregex_iterator it(xml.begin(), xml.end(), tag), end; it != end; ++it) {
    const std::string between(last, (*it)[0].first);
    if (!std::regex_match(between, text)) return "bare: " + between;
    last = (*it)[0].second;
    if ((*it)[1].length() > 0) {
      if (open.empty() || open.back() != (*it)[2]) return "closes what is not open: " + (*it)[0].str();
      open.pop_back();
    } else if ((*it)[4].length() == 0) {
      open.push_back((*it)[2]);
    }
  }
  if (std::string(last, xml.end()) != "\n") return "after the end: " + std::string(last, xml.end());
  return open.empty() ? "" : "not closed: " + open.back();
}

struct Dot {
  std::string style;
  double x, y;
};

std::vector<Dot> Dots(const std::string& svg) {
  static const std::regex circle(R"re(<circle class="([^"]*)" cx="([^"]*)" cy="([^"]*)")re");
  std::vector<Dot> dots;
  for (std::sregex_iterator it(svg.begin(), svg.end(), circle), end; it != end; ++it) {
    dots.push_back({(*it)[1], std::stod((*it)[2]), std::stod((*it)[3])});
  }
  return dots;
}

TEST(PlotTest, PointsAreWhereTheyBelong) {
  PlotSpec spec{.title = "t", .subtitle = "s", .x_label = "x"};
  for (const double x : {100.0, 200.0, 400.0}) spec.points.push_back({x, "p", {100.0 * x, 1000.0 * x}});
  const std::string svg = PlotSvg(spec);
  EXPECT_EQ(Malformed(svg), "");
  const std::vector<Dot> dots = Dots(svg);
  ASSERT_EQ(dots.size(), 6u);
  EXPECT_EQ(dots[0].style, "d0");
  EXPECT_EQ(dots[3].style, "d1");
  EXPECT_NEAR(2 * (dots[1].x - dots[0].x), dots[2].x - dots[1].x, 0.3) << "x is linear";
  EXPECT_NEAR(dots[0].y - dots[1].y, dots[1].y - dots[2].y, 0.3) << "y is logarithmic";
  // Ten times as long is as far up as twice as long is, times log2(10).
  EXPECT_NEAR(dots[0].y - dots[3].y, (dots[0].y - dots[1].y) * std::log2(10), 0.6);
  EXPECT_EQ(dots[0].x, dots[3].x);
  for (const Dot& dot : dots) {
    EXPECT_TRUE(dot.x > 76 && dot.x < 800 && dot.y > 84 && dot.y < 428) << dot.x << ", " << dot.y;
  }
}

TEST(PlotTest, FarLoadsAreLogarithmic) {
  PlotSpec spec;
  for (const double x : {10.0, 100.0, 1000.0}) spec.points.push_back({x, "p", {500.0}});
  const std::vector<Dot> dots = Dots(PlotSvg(spec));
  ASSERT_EQ(dots.size(), 3u);
  EXPECT_NEAR(dots[1].x - dots[0].x, dots[2].x - dots[1].x, 0.3);
}

TEST(PlotTest, WhatCannotBeDrawnIsLeftOut) {
  PlotSpec spec{.title = "<&\"> \x1b[2J\xff"};
  EXPECT_EQ(Malformed(PlotSvg(spec)), "");
  EXPECT_THAT(PlotSvg(spec), HasSubstr("no call came back"));
  EXPECT_THAT(PlotSvg(spec), HasSubstr("&lt;&amp;&quot;&gt; \\x1b[2J\\xff"));
  spec.points = {{0, "", {5.0}}, {1, "", {std::nullopt, 0.0, std::nan(""), INFINITY}}, {2, "<x>", {7.0}, true}};
  spec.limit_us = 1e6;
  spec.limit_label = "1s";
  const std::string svg = PlotSvg(spec);
  EXPECT_EQ(Malformed(svg), "");
  ASSERT_EQ(Dots(svg).size(), 1u);
  EXPECT_EQ(Dots(svg)[0].style, "ring q0");
  EXPECT_THAT(svg, HasSubstr("class=\"limit\""));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
}

}  // namespace
}  // namespace kernd::cli
