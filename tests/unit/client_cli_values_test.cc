// Numbers, times, sizes and texts of the command line: what is used is what was typed, or it is refused.
#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/values.h"
#include "tests/unit/client_cli_fixture.h"

namespace kernd::cli {
namespace {

// Of a check: its refusal, or what it lets pass.
std::string Refused(const CLI::Validator& check, std::string text) {
  return check(text);
}
std::string Passed(const CLI::Validator& check, std::string text) {
  const std::string refused = check(text);
  return refused.empty() ? text : "refused: " + refused;
}

TEST(ValuesTest, WholeNumbers) {
  const CLI::Validator any = WholeNumber<std::uint64_t>(0);
  EXPECT_EQ(Passed(any, "0"), "0");
  EXPECT_EQ(Passed(any, "010"), "10") << "no octal digits";
  EXPECT_EQ(Passed(any, "18446744073709551615"), "18446744073709551615");
  for (const char* text : {"", "-1", "+1", "18446744073709551616", "99999999999999999999", "1.5", "1e3", "0x10", " 1",
                           "1 ", "nan", "one"}) {
    EXPECT_EQ(Refused(any, text), "'" + std::string(text) + "' must be a whole number from 0 to 18446744073709551615");
  }
  const CLI::Validator few = WholeNumber(-100, 100);
  EXPECT_EQ(Passed(few, "-100"), "-100");
  for (const char* text : {"-101", "101", "4294967297"}) EXPECT_NE(Refused(few, text), "") << text;
}

TEST(ValuesTest, Bytes) {
  const CLI::Validator bytes = ByteCount();
  EXPECT_EQ(Passed(bytes, "1"), "1");
  EXPECT_EQ(Passed(bytes, "3KiB"), "3072");
  EXPECT_EQ(Passed(bytes, "2MiB"), "2097152");
  EXPECT_EQ(Passed(bytes, "1GiB"), "1073741824");
  EXPECT_EQ(Passed(bytes, "8388607TiB"), "9223370937343148032");
  EXPECT_EQ(Passed(bytes, "9223372036854775807"), "9223372036854775807");
  for (const char* text : {"", "0", "-1", "1.5", "KiB", "1KB", "1MB", "1kib", "1 KiB", "8388608TiB",
                           "9007199254740992KiB", "9223372036854775808", "25%"}) {
    EXPECT_NE(Refused(bytes, text), "") << text;
  }
}

TEST(ValuesTest, RealNumbers) {
  for (const char* text : {"0", "-0.5", "1e-400", "1e308", "inf", "-inf", "nan"}) {
    EXPECT_EQ(Refused(RealNumber<double>(), text), "") << text;
  }
  for (const char* text : {"", "x", "1x", "1e309", "-1e5000"})
    EXPECT_NE(Refused(RealNumber<double>(), text), "") << text;
  EXPECT_EQ(Refused(RealNumber<float>(), "3.4028235e38"), "");
  EXPECT_EQ(Refused(RealNumber<float>(), "1e-300"), "");
  for (const char* text : {"3.5e38", "-1e300"}) EXPECT_NE(Refused(RealNumber<float>(), text), "") << text;
}

TEST(ValuesTest, Durations) {
  const CLI::Validator any = IsDuration();
  for (const char* text : {"1ns", "0.5us", "250ms", "1m30s", "8760h"}) EXPECT_EQ(Refused(any, text), "") << text;
  for (const char* text : {"", "0", "0.9ns", "-1s", "inf", "-inf", "nan", "8760h1ns", "1e9h", "30", "30 s"}) {
    EXPECT_NE(Refused(any, text), "") << text;
  }
  EXPECT_EQ(Refused(IsDuration(absl::ZeroDuration()), "0"), "");
  EXPECT_EQ(Refused(IsDuration(absl::Seconds(1), absl::Minutes(1)), "999ms"),
            "'999ms' must be a time from 1s to 1m, such as 30s, 1m30s or 250ms");
  EXPECT_NE(Refused(IsDuration(absl::Seconds(1), absl::Minutes(1)), "61s"), "");
  EXPECT_EQ(DurationOf("1.3ns"), absl::Nanoseconds(1)) << "as the wire has it";
  EXPECT_EQ(DurationOf(""), absl::ZeroDuration());
}

TEST(ValuesTest, Texts) {
  for (const char* text : {"", "weights", "\xc3\xa4", "\xf0\x9f\x98\x80"})
    EXPECT_EQ(Refused(IsText(), text), "") << text;
  for (const char* text : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_THAT(Refused(IsText(), text), HasSubstr("must be UTF-8"));
  }
  EXPECT_EQ(Refused(IsText(4), "four"), "");
  EXPECT_EQ(Refused(IsText(4), "fives"), "a text of 5 bytes must be of at most 4");
}

TEST(ValuesTest, Targets) {
  for (const char* text : {"localhost", "localhost:1", "[::1]:65535", "unix:/a", "xds:///x:99999", "host:http",
                           "ipv4:1.2.3.4:5,6.7.8.9:10"}) {
    EXPECT_EQ(Refused(IsTarget(), text), "") << text;
  }
  // 115587 is 50051 to who takes its last 16 bits.
  for (const char* text :
       {"localhost:0", "127.0.0.1:115587", "[::1]:65536", "ipv4:1.2.3.4:99999999999999999999", "dns:///x:99999"}) {
    EXPECT_THAT(Refused(IsTarget(), text), HasSubstr("port from 1 to 65535")) << text;
  }
  EXPECT_EQ(Refused(IsTarget(), "unix:"), "'unix:' must name a socket");
}

// Every option that takes such a value has its check: none of these lines gets as far as a daemon.
TEST_F(CliTest, ValuesThatWouldWrapAreRefusedWithOptionValueAndRule) {
  const std::string session(32, '0');
  struct Line {
    std::vector<std::string> command;
    std::string option;
    std::vector<std::string> values;
  };
  const std::vector<std::string> attention = {"attention", "--random", "1x1x2x8"},
                                 matmul = {"matmul", "--random", "2x2x2"};
  const std::vector<std::string> not_whole = {"-1", "18446744073709551616", "1.5", "0x1"};
  const std::vector<std::string> not_a_time = {"inf", "nan", "-1s", "1000000h", "9223372036854775807s"};
  const std::string latin1 = "f\xfcr";
  const std::vector<Line> lines = {
      {{"health"}, "--endpoint", {"127.0.0.1:115587"}},
      {{"health"}, "--timeout", not_a_time},
      {{"health"}, "--wait", not_a_time},
      {{"health"}, "--service", {latin1}},
      {{"tensors", "delete", "--session", session},
       "--id",
       {"-1", "9223372036854775808", "18446744073709551616", "0x1"}},
      {{"tensors", "open"}, "--lease", {"inf", "nan", "-1s", "1000000h", "0.2ns", "999ms"}},
      {{"tensors", "open"}, "--quota", {"-1", "0", "9223372036854775808", "8388608TiB", "1.5"}},
      {{"tensors", "open"}, "--label", {latin1, std::string(129, 'x')}},
      {matmul, "--seed", not_whole},
      {matmul, "--priority", {"101", "-101", "4294967297"}},
      {matmul, "--tolerance", {"nan", "inf", "-1", "1e5000"}},
      {matmul, "--alpha", {"1e5000", "x"}},
      {matmul, "--beta", {"-1e5000"}},
      {matmul, "--kernel", {latin1}},
      {matmul, "--device", {latin1}},
      {matmul, "--request-id", {latin1, std::string(129, 'x')}},
      {attention, "--window-left", not_whole},
      {attention, "--window-right", {"9223372036854775808"}},
      {attention, "--scale", {"1e5000"}},
      {attention, "--softcap", {"1e5000"}},
      {attention, "--slopes", {"1e300"}},
      {attention, "--sinks", {"1e300"}},
      {attention, "--q-scale", {"1e300"}},
      {attention, "--q-lengths", {"9223372036854775808"}},
      {attention, "--kv-offsets", {"99999999999999999999"}},
      {{"verify"}, "--seed", not_whole},
      {{"bench"}, "--seed", not_whole},
      {{"bench"}, "--concurrency", {"0", "513", "4294967297"}},
      {{"bench"}, "--connections", {"65"}},
      {{"bench"}, "--check", {"-1"}},
      {{"bench"}, "--rate", {"0", "inf", "nan", "-1", "1e7"}},
      {{"bench"}, "--duration", not_a_time},
      {{"bench"}, "--warmup", not_a_time},
      {{"bench"}, "--until-p99", not_a_time},
      {{"top"}, "--interval", {"99ms", "25h", "inf", "nan"}},
      {{"top"}, "--http", {"127.0.0.1:75000"}},
      {{"doctor"}, "--http", {"127.0.0.1:75000"}},
  };
  for (const auto& [command, option, values] : lines) {
    for (const std::string& value : values) {
      std::vector<std::string> line = command;
      line.insert(line.end(), {option, value});
      const Outcome outcome = Kernctl(daemon_, line);
      EXPECT_EQ(outcome.code, kBadArguments) << testing::PrintToString(line);
      EXPECT_THAT(outcome.err, testing::StartsWith("kernctl: " + option + ": ")) << testing::PrintToString(line);
    }
  }
}

}  // namespace
}  // namespace kernd::cli
