// server/config: sizes, durations and addresses as people write them.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/config/units.h"
#include "tests/unit/config_support.h"

namespace kernd::config {
namespace {

TEST(Units, BytesRoundTrip) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {{"0", 0},
                                                                   {"1", 1},
                                                                   {"1000", 1000},
                                                                   {"1KiB", 1024},
                                                                   {"1536KiB", 1536 * 1024},
                                                                   {"64MiB", 64 * kMiB},
                                                                   {"3GiB", 3 * kGiB},
                                                                   {"5TiB", 5120 * kGiB}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
    EXPECT_EQ(BytesText(bytes), text);
  }
  EXPECT_EQ(*ParseBytes("1024KiB"), kMiB);
  EXPECT_EQ(*ParseBytes("9223372036854775807"), INT64_MAX);
}

TEST(Units, BytesRefused) {
  for (const char* text : {"", "MiB", "-1", "+1", "1.5GiB", "64MB", "64mib", "64 MiB", " 64", "9223372036854775808",
                           "8388608TiB", "1KiBKiB", "0x10", "50%", "inf"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(Units, Percent) {
  EXPECT_EQ(*ParseBytes("50%", 1001), 500);
  EXPECT_EQ(*ParseBytes("100%", 4096 * kGiB + 1), 4096 * kGiB + 1);
  EXPECT_EQ(*ParseBytes("12.5%", 800), 100);
  for (const char* text : {"0%", "100.1%", "%", "-1%", "1e1%", "nan%", "5%%", "5 %"}) {
    EXPECT_FALSE(ParseBytes(text, kGiB).ok()) << text;
  }
}

TEST(Units, Durations) {
  EXPECT_EQ(*ParseDuration("500ms", false), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("1h30m", false), absl::Minutes(90));
  EXPECT_EQ(*ParseDuration("0", false), absl::ZeroDuration());
  EXPECT_EQ(*ParseDuration("off", true), absl::InfiniteDuration());
  EXPECT_EQ(DurationText(absl::InfiniteDuration()), "off");
  EXPECT_EQ(DurationText(absl::Milliseconds(500)), "500ms");
  for (const char* text : {"", "30", "-5s", "inf", "off", "30 s", "1d"}) {
    EXPECT_FALSE(ParseDuration(text, false).ok()) << text;
  }
  EXPECT_FALSE(ParseDuration("inf", true).ok());
}

TEST(Units, Addresses) {
  EXPECT_EQ(*ParseAddress("127.0.0.1:50051"), (Address{.host = "127.0.0.1", .port = 50051}));
  EXPECT_EQ(*ParseAddress("localhost:0"), (Address{.host = "localhost", .port = 0}));
  EXPECT_EQ(*ParseAddress("[::1]:65535"), (Address{.host = "::1", .port = 65535}));
  EXPECT_EQ(*ParseAddress("unix:/run/kernd.sock"), (Address{.unix_path = "/run/kernd.sock"}));
  for (const char* text : {"127.0.0.1:50051", "localhost:0", "[::1]:65535", "unix:/run/kernd.sock"}) {
    EXPECT_EQ(AddressText(*ParseAddress(text)), text);
  }
  const std::string longest = "unix:/" + std::string(106, 'a');
  EXPECT_TRUE(ParseAddress(longest).ok());
  EXPECT_FALSE(ParseAddress(longest + "a").ok());
  for (const char* text : {"",        ":",        "50051",   ":50051",      "host",      "host:",          "host:65536",
                           "host:-1", "host:+1",  "host:1a", "host:000001", "::1:50051", "[::1]",          "[::1:5",
                           "::1]:5",  "[host]:5", "[]:5",    "unix:",       "unix:run",  "http://host:80", "a b:1"}) {
    EXPECT_FALSE(ParseAddress(text).ok()) << text;
  }
}

// --check-config prints what a file can hold.
TEST(Units, TextThatNoFileCanHold) {
  EXPECT_TRUE(FitsIntoQuotes("/run/a b,c\xc3\xa9"));
  for (const char* text : {"a\"b", "a'b", "a`b", "a\\b", "a#b", "a\nb", "a\x7f"}) {
    EXPECT_FALSE(FitsIntoQuotes(text)) << text;
    EXPECT_FALSE(ParseAddress(std::string("unix:/") + text).ok()) << text;
  }
}

}  // namespace
}  // namespace kernd::config
