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
#include "server/gpu/backend.h"
#include "server/gpu/tuning_file.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/fake_kernels.h"

namespace kernd::gpu {
namespace {

using ::testing::ElementsAre;
using testing::FakeGpu;
using testing::FakeKernels;
using ::testing::HasSubstr;

const TuningVersion kVersion = {
    .gpu = "NVIDIA H200", .multiprocessors = 132, .driver = 13000, .cublaslt = 130200, .build = "0.1.0 (abc)"};

TunedChoices SomeChoices() {
  return {{"matmul/f32/1x2x3", {"matmul_f32_sm75_fake", 12.5}}, {"z", {"k", 1.0 / 3}}, {"a", {"b", 1e-300}}};
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
  others[0].gpu = "NVIDIA H100";
  others[1].multiprocessors = 114;
  others[2].driver = 12080;
  others[3].cublaslt = 1;
  others[4].build = "0.1.0 (abd)";
  for (const TuningVersion& other : others) {
    const absl::Status status = ParseTuningText(TuningText(other, SomeChoices()), kVersion).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("here it is"));
  }
  std::string next = TuningText(kVersion, SomeChoices());
  next.replace(next.find("tuning 1"), 8, "tuning 2");
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseTuningText(next, kVersion).status()));
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
      {"# kernd\n", "line 1: must be \"kernd tuning 1\""},
      {"kernd tuning 1\nname x\n", "line 2: must be \"gpu ...\""},
      {head + "choice a b\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b x\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b 0\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b -1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b nan\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b inf\nend 1\n", "line 7: must be \"choice"},
      {head + "choice  b 1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a  1\nend 1\n", "line 7: must be \"choice"},
      {head + "choice a b c 1\nend 1\n", "line 7: must be \"choice"},
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

// Of two rows that both run, the model takes the first; a tuned choice is taken in its place.
TEST(TunedChoice, IsTakenWhereItRuns) {
  FakeGpu gpu;
  const MatmulVariant& row = FakeKernels(gpu).matmul[0];
  std::vector<MatmulVariant> table(3, row);
  table[1].info.name = "second";
  table[2].info.name = "future";
  table[2].min_sm = 100;
  MatmulProblem p = Plain(8, 9, 10);
  const auto choose = [&](const TunedChoices& tuned, const KernelRequest& request = {}) {
    return *Choose(absl::Span<const MatmulVariant>(table), p, *Validate(p), request, gpu.info, &tuned);
  };
  EXPECT_EQ(choose({}).reason, ChoiceReason::kModel);
  const TunedChoices second = {{KeyOf(p), {"second", 1}}};
  EXPECT_EQ(choose(second).variant->info.name, "second");
  EXPECT_EQ(choose(second).reason, ChoiceReason::kTuned);
  EXPECT_EQ(choose(second, {.name = row.info.name}).reason, ChoiceReason::kForced);
  for (const char* name : {"future", "gone"}) {
    EXPECT_EQ(choose({{KeyOf(p), {name, 1}}}).variant->info.name, row.info.name) << name;
    EXPECT_EQ(choose({{KeyOf(p), {name, 1}}}).reason, ChoiceReason::kModel) << name;
  }
  p.numerics = Numerics::kBatchInvariant;
  EXPECT_EQ(choose({{KeyOf(p), {"second", 1}}}).reason, ChoiceReason::kModel) << "it would depend on M";
}

TEST(TunedChoice, ReachesThePlan) {
  auto gpu = std::make_shared<FakeGpu>();
  const KernelTables kernels = FakeKernels(*gpu);
  core::MatmulStep step{.problem = Plain(8, 9, 10)};
  BackendOptions options = {.memory_limit = 1 << 20, .primed_bytes = 1 << 20, .pinned_bytes = 1 << 20};
  options.tuned = {{KeyOf(step.problem), {kernels.matmul[0].info.name, 1}}};
  const auto backend = MakeBackend(gpu, kernels, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kTuned);
  step.problem = Plain(8, 9, 11);
  EXPECT_EQ((*backend)->PlanStep(step)->reason, ChoiceReason::kModel);
}

}  // namespace
}  // namespace kernd::gpu
