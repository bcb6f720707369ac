// Tuned choices: what they are looked up by, what is made of them, and the file that keeps them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernd/kernels/error.h"
#include "kernd/kernels/tuning.h"
#include "server/tune/tuning_file.h"

namespace kernd::tune {
namespace {

using ::testing::HasSubstr;

const TuningVersion kVersion = {.device = "NVIDIA H200",
                                .processors = 132,
                                .driver = 13000,
                                .kernel_library = "cublaslt 130200",
                                .build = "0.1.0 (abc)"};

TunedChoices SomeChoices() {
  return {{"matmul/f32/1x2x3", {"matmul_f32_sm75_fake", 12.5}},
          {"z", {"k", 1.0 / 3}},
          {"a", {"b", 1e-300}},
          {"tiled", {"k", 2, Tile{64, 128, 32}}}};
}

MatmulProblem Plain(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.a = {.dtype = DataType::kF32, .shape = {m, k}}, .b = {.dtype = DataType::kF32, .shape = {k, n}}};
}

std::string KeyOf(const MatmulProblem& p) {
  return TuningKey(p, *Validate(p));
}

TEST(TuningKey, HoldsWhatTimeDependsOn) {
  const MatmulProblem plain = Plain(64, 128, 256);
  EXPECT_EQ(KeyOf(plain), "matmul/f32/64x128x256/b1/nn/a16b16/to-f32");
  std::vector<MatmulProblem> others(12, plain);
  others[0] = Plain(65, 128, 256);
  others[1].transpose_a = true;
  others[1].a.shape = {256, 64};
  others[2].bias = TensorSpec{.dtype = DataType::kF32, .shape = {128}};
  others[3].activation = Activation::kGelu;
  others[4].numerics = Numerics::kTf32;
  others[5].c = TensorSpec{.dtype = DataType::kF32, .shape = {64, 128}};
  others[5].beta = 1;
  others[6].a.strides = {257, 1};
  others[7].b.strides = {130, 1};
  others[8].alpha = 2;
  others[9].a.shape = {3, 64, 256};
  others[10].a.shape = {3, 64, 256};
  others[10].b.shape = {3, 256, 128};
  others[11].a.dtype = others[11].b.dtype = DataType::kF16;
  std::set<std::string> keys = {KeyOf(plain)};
  for (const MatmulProblem& p : others) EXPECT_TRUE(keys.insert(KeyOf(p)).second) << KeyOf(p);
  for (const std::string& key : keys) EXPECT_EQ(key.find(' '), std::string::npos);

  AttentionProblem p{.q = {.dtype = DataType::kF16, .shape = {2, 8, 5, 64}},
                     .k = {.dtype = DataType::kF16, .shape = {2, 4, 7, 64}},
                     .v = {.dtype = DataType::kF16, .shape = {2, 4, 7, 32}}};
  const std::string key = TuningKey(p, *Validate(p));
  EXPECT_EQ(key, "attention/f16/2x8,4x5,7x64,32/sum10,14/to-f16");
  p.causal = true;
  p.alignment = MaskAlignment::kTopLeft;
  EXPECT_EQ(TuningKey(p, *Validate(p)), key + "/right0");
}

TEST(TuningText, RoundTrip) {
  for (const TunedChoices& choices : {TunedChoices{}, SomeChoices()}) {
    const auto again = ParseTuningText(TuningText(kVersion, choices), kVersion);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, choices);
  }
}

TEST(TuningText, AnotherVersionIsStale) {
  std::vector<TuningVersion> others(5, kVersion);
  others[0].device = "NVIDIA H100";
  others[1].processors = 114;
  others[2].driver = 12080;
  others[3].kernel_library = "cublaslt 1";
  others[4].build = "0.1.0 (abd)";
  for (const TuningVersion& other : others) {
    const absl::Status status = ParseTuningText(TuningText(other, SomeChoices()), kVersion).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("here it is"));
  }
  std::string next = TuningText(kVersion, SomeChoices());
  next.replace(next.find("tuning 2"), 8, "tuning 3");
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseTuningText(next, kVersion).status()));
}

TEST(TuningText, HoldsAnyDeviceInItsWay) {
  const TuningVersion odd =
      Printable({.device = std::string(300, 'x'), .kernel_library = "b\nuild", .build = "\xc3\xa9"});
  EXPECT_EQ(odd.device, std::string(200, 'x'));
  EXPECT_EQ(odd.kernel_library, "b?uild");
  EXPECT_TRUE(ParseTuningText(TuningText(odd, SomeChoices()), odd).ok());
  const TuningVersion bare = Printable({});
  EXPECT_TRUE(ParseTuningText(TuningText(bare, {}), bare).ok());
}

// A crash of the machine may leave any beginning of the file, a disk any byte of it.
TEST(TuningText, EveryBeginningIsRefused) {
  const std::string text = TuningText(kVersion, SomeChoices());
  for (std::size_t size = 0; size < text.size(); ++size) {
    const absl::Status status = ParseTuningText(text.substr(0, size), kVersion).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) << size << ": " << status;
  }
}

TEST(TuningText, DamageIsNamedByItsLine) {
  const std::string head = TuningText(kVersion, {}).substr(0, TuningText(kVersion, {}).find("end "));
  const std::pair<std::string, std::string> rows[] = {
      {"", "line 1: must be there"},
      {"# kernd\n", "line 1: must be \"kernd tuning 2\""},
      {"kernd tuning 2\nname x\n", "line 2: must be \"device ...\""},
      {head + "choice a b\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b x\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b 0\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b -1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b nan\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b inf\nend 1\n", "line 7: must be \"choice"},
      {head + "choice  b 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a  1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b c 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a @1x2x3 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b@ 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b@1x2 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b@1x2x0 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b@1x2x03 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b@1x2x9999999999999999999 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b 1\nchoice a c 2\nend 2\n", "line 8: must be for another problem"},
      {head + "choice a b 1\nend 2\n", "line 8: must give the number of choices"},
      {head + "choice a b 1\n", "line 7: must be followed by"},
      {head + "end 0\nend 0\n", "line 7: must be the last"},
      {head + "end 0", "line 7: must end with a new line"},
      {head + "choice a\x01 b 1\nend 1\n", "line 7: must hold printable ASCII"},
      {head + "choice " + std::string(600, 'a') + " b 1\nend 1\n", "line 7: must be at most 512 bytes"},
  };
  for (const auto& [text, rule] : rows) {
    const absl::Status status = ParseTuningText(text, kVersion).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(rule)) << text;
  }
  std::string many = head;
  for (std::size_t i = 0; i <= kMaxTunedChoices; ++i) many += "choice k" + std::to_string(i) + " b 1\n";
  EXPECT_THAT(std::string(ParseTuningText(many + "end 4097\n", kVersion).status().message()),
              HasSubstr("at most 4096"));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseTuningText(std::string(kMaxTuningBytes + 1, '\n'), kVersion).status()));
}

class TuningFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kernd-tuning-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ / "choices";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::size_t Files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  void Write(const std::string& text) { std::ofstream(path_) << text; }

  std::filesystem::path folder_, path_;
};

TEST_F(TuningFileTest, WritesWholeAndForTheOwnerAlone) {
  Write("what was there before");
  chmod(path_.c_str(), 0666);
  ASSERT_TRUE(WriteTuningFile(path_, kVersion, SomeChoices()).ok());
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(Files(), 1u) << "nothing is left beside it";
  const auto read = ReadTuningFile(path_, kVersion);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, SomeChoices());
}

TEST_F(TuningFileTest, WhatCannotBeWrittenLeavesTheOldFile) {
  Write("old");
  EXPECT_TRUE(absl::IsInvalidArgument(WriteTuningFile(path_, kVersion, {{"two words", {"k", 1}}})));
  EXPECT_TRUE(absl::IsInternal(WriteTuningFile(folder_ / "no" / "such", kVersion, {})));
  std::filesystem::create_directory(folder_ / "taken");
  std::filesystem::create_directory(folder_ / "taken" / "inside");
  EXPECT_TRUE(absl::IsInternal(WriteTuningFile(folder_ / "taken", kVersion, {})));
  std::ostringstream text;
  text << std::ifstream(path_).rdbuf();
  EXPECT_EQ(text.str(), "old");
  EXPECT_EQ(Files(), 2u);
}

TEST_F(TuningFileTest, OthersMustNotChooseKernels) {
  ASSERT_TRUE(WriteTuningFile(path_, kVersion, SomeChoices()).ok());
  for (const mode_t mode : {0600, 0640, 0644, 0660}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    EXPECT_TRUE(ReadTuningFile(path_, kVersion).ok()) << std::oct << mode;
  }
  for (const mode_t mode : {0602, 0666, 0606}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    const absl::Status status = ReadTuningFile(path_, kVersion).status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << std::oct << mode << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("may be written by everybody"));
  }
  ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
  if (geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can give a file away";
  ASSERT_EQ(chown(path_.c_str(), 12345, static_cast<gid_t>(-1)), 0);
  EXPECT_THAT(std::string(ReadTuningFile(path_, kVersion).status().message()), HasSubstr("belongs to user 12345"));
}

TEST_F(TuningFileTest, ReadsRegularFilesOnly) {
  EXPECT_TRUE(absl::IsNotFound(ReadTuningFile(path_, kVersion).status()));
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTuningFile(path_, kVersion).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTuningFile(folder_, kVersion).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTuningFile("/dev/zero", kVersion).status()));
  std::filesystem::remove(path_);
  Write(std::string(kMaxTuningBytes + 1, 'x'));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTuningFile(path_, kVersion).status()));
}

}  // namespace
}  // namespace kernd::tune
