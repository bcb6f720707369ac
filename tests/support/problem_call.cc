#include "tests/support/problem_call.h"

#include <cstdlib>
#include <optional>
#include <utility>

#include "gmock/gmock.h"
#include "kernels/reference/matmul.h"
#include "kernels/reference/tolerance.h"

namespace kernd::testing {
namespace {

std::optional<client::Client> shared_client;
std::vector<client::KernelInfo> shared_kernels;

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

// The bytes of a result, which must be what `spec` says.
Bits Received(const char* name, const client::Tensor& tensor, const TensorSpec& spec) {
  const Dims shape(tensor.shape().begin(), tensor.shape().end());
  EXPECT_EQ(tensor.dtype(), ClientType(spec.dtype)) << name;
  EXPECT_EQ(shape, spec.shape) << name;
  EXPECT_EQ(static_cast<std::int64_t>(tensor.bytes().size()), spec.bytes()) << name;
  return {tensor.bytes().begin(), tensor.bytes().end()};
}

void ExpectKernel(const client::KernelUsed& used, const std::string& forced) {
  EXPECT_EQ(used.device == "cpu", !OnGpu()) << used.device;
  if (forced.empty()) return;
  EXPECT_EQ(used.name, forced);
  EXPECT_EQ(used.reason, "forced");
}

std::int64_t BytesOf(const std::optional<TensorSpec>& spec) {
  return spec ? spec->bytes() : 0;
}
std::int64_t BytesOf(const std::optional<ScaleSpec>& scale) {
  return scale ? scale->spec.bytes() : 0;
}

// What both operations promise. `results`: those of the reply, in the order of the plan's.
void ExpectKept(const client::PlanReply& plan, const client::KernelUsed& kernel, const client::Memory& memory,
                std::int64_t input_bytes, const std::vector<const client::Tensor*>& results) {
  std::int64_t output_bytes = 0;
  ASSERT_EQ(plan.results.size(), results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(plan.results[i].dtype, results[i]->dtype()) << i;
    EXPECT_EQ(plan.results[i].shape, results[i]->shape()) << i;
    output_bytes += std::ssize(results[i]->bytes());
  }
  // A GPU's pool rounds each buffer up, and holds an attention's small arrays beside its operands.
  const std::int64_t more_in = OnGpu() ? 64 << 10 : 0, more_out = OnGpu() ? 1024 : 0;
  EXPECT_EQ(plan.memory.input_bytes, memory.input_bytes);
  EXPECT_EQ(plan.memory.output_bytes, memory.output_bytes);
  for (const client::Memory& m : {plan.memory, memory}) {
    EXPECT_THAT(m.input_bytes, AllOf(Ge(input_bytes), Le(input_bytes + more_in)));
    EXPECT_THAT(m.output_bytes, AllOf(Ge(output_bytes), Le(output_bytes + more_out)));
    EXPECT_EQ(m.peak_bytes, m.input_bytes + m.output_bytes + m.workspace_bytes);
  }
  EXPECT_EQ(plan.memory.workspace_bytes, memory.workspace_bytes);
  EXPECT_EQ(plan.memory.naive_bytes, memory.naive_bytes);
  EXPECT_EQ(plan.kernel.name, kernel.name);
}

}  // namespace

void SharedDaemon::SetUp() {
  daemon_ = Daemon::Start();
  ASSERT_NE(daemon_, nullptr);
  // Without retries: a daemon that is gone fails the tests at once.
  auto client = client::Client::Connect({.endpoint = daemon_->endpoint(), .retry = {.max_attempts = 1}});
  ASSERT_TRUE(client.ok()) << client.status();
  auto kernels = client->ListKernels();
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  shared_client = *std::move(client);
  shared_kernels = *std::move(kernels);
}

void SharedDaemon::TearDown() {
  shared_client.reset();
  if (daemon_ == nullptr) return;
  EXPECT_TRUE(daemon_->WaitForMetric("kernd_memory_used_bytes{pool=\"memory\"}", 0));
  EXPECT_TRUE(daemon_->WaitForMetric("kernd_body_budget_used_bytes", 0));
  EXPECT_EQ(daemon_->Stop(), 0) << daemon_->Log();
}

const client::Client& SharedDaemon::client() {
  if (!shared_client) std::abort();
  return *shared_client;
}

const std::vector<client::KernelInfo>& SharedDaemon::kernels() {
  return shared_kernels;
}

bool Runs(const AttentionCase& c, const std::string& kernel) {
  client::AttentionArgs args = c.ClientArgs();
  args.kernel.name = kernel;
  const absl::Status status = SharedDaemon::client().Plan(args).status();
  if (status.ok()) return true;
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cannot run this problem: "));
  return false;
}

Bits Ask(const MatmulCase& c, const std::string& kernel) {
  const auto geometry = Validate(c.p);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  client::MatmulArgs args = c.ClientArgs();
  args.kernel.name = kernel;
  const auto reply = SharedDaemon::client().Matmul(args);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!geometry.ok() || !reply.ok()) return {};
  ExpectKernel(reply->kernel, kernel);
  EXPECT_EQ(reply->kernel.numerics, Name(c.p.numerics));
  return Received("D", reply->d, geometry->d);
}

AttentionBits Ask(const AttentionCase& c, const std::string& kernel) {
  const auto geometry = Validate(c.p);
  EXPECT_TRUE(geometry.ok()) << geometry.status();
  client::AttentionArgs args = c.ClientArgs();
  args.kernel.name = kernel;
  const auto reply = SharedDaemon::client().Attention(args);
  EXPECT_TRUE(reply.ok()) << reply.status();
  if (!geometry.ok() || !reply.ok()) return {};
  ExpectKernel(reply->kernel, kernel);
  AttentionBits bits{.o = Received("O", reply->o, geometry->o_spec)};
  if (c.p.want_lse) bits.lse = Received("LSE", reply->lse, *geometry->lse_spec);
  return bits;
}

void ExpectMatches(const MatmulCase& c, const Bits& d, const reference::Values& expected) {
  const auto size = static_cast<std::int64_t>(expected.value.size()) * ElementBytes(c.OutputType());
  ASSERT_EQ(static_cast<std::int64_t>(d.size()), size);
  const auto result =
      reference::Compare(c.OutputType(), d.data(), expected.value, reference::MatmulBounds(c.p, expected));
  EXPECT_TRUE(result.ok()) << "D: " << result.ToString();
}

void ExpectMatches(const AttentionCase& c, const AttentionBits& result, const reference::AttentionResult& expected) {
  const auto o_size = static_cast<std::int64_t>(expected.o.value.size()) * ElementBytes(c.OutputType());
  ASSERT_EQ(static_cast<std::int64_t>(result.o.size()), o_size);
  const auto o =
      reference::Compare(c.OutputType(), result.o.data(), expected.o.value, reference::OutputBounds(c.p, expected));
  EXPECT_TRUE(o.ok()) << "O: " << o.ToString();
  if (!c.p.want_lse) return;
  ASSERT_EQ(result.lse.size(), expected.lse.value.size() * sizeof(float));
  const auto lse =
      reference::Compare(DataType::kF32, result.lse.data(), expected.lse.value, reference::LseBounds(c.p, expected));
  EXPECT_TRUE(lse.ok()) << "LSE: " << lse.ToString();
}

Bits AskAndCheck(const MatmulCase& c, const std::string& kernel) {
  Bits d = Ask(c, kernel);
  const auto expected = reference::MatmulValues(c.p, c.Args());
  EXPECT_TRUE(expected.ok()) << expected.status();
  if (expected.ok()) ExpectMatches(c, d, *expected);
  return d;
}

AttentionBits AskAndCheck(const AttentionCase& c, const std::string& kernel) {
  AttentionBits bits = Ask(c, kernel);
  const auto expected = reference::AttentionValues(c.p, c.Args());
  EXPECT_TRUE(expected.ok()) << expected.status();
  if (expected.ok()) ExpectMatches(c, bits, *expected);
  return bits;
}

Bits Slice(const Bits& bits, std::int64_t begin, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(bits.size());
  EXPECT_TRUE(begin >= 0 && count > 0 && count <= size - begin) << begin << " + " << count << " of " << size;
  if (begin < 0 || count <= 0 || count > size - begin) return {};
  return {bits.begin() + begin, bits.begin() + begin + count};
}

void ExpectPlanKept(const MatmulCase& c) {
  const auto plan = SharedDaemon::client().Plan(c.ClientArgs());
  const auto reply = SharedDaemon::client().Matmul(c.ClientArgs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(reply.ok()) << reply.status();
  const std::int64_t input_bytes =
      c.p.a.bytes() + c.p.b.bytes() + BytesOf(c.p.c) + BytesOf(c.p.bias) + BytesOf(c.p.a_scale) + BytesOf(c.p.b_scale);
  ExpectKept(*plan, reply->kernel, reply->memory, input_bytes, {&reply->d});
  EXPECT_EQ(reply->memory.naive_bytes, input_bytes + std::ssize(reply->d.bytes()));
}

void ExpectPlanKept(const AttentionCase& c) {
  const auto plan = SharedDaemon::client().Plan(c.ClientArgs());
  const auto reply = SharedDaemon::client().Attention(c.ClientArgs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE(reply.ok()) << reply.status();
  const std::int64_t input_bytes =
      c.p.q.bytes() + c.p.k.bytes() + c.p.v.bytes() + BytesOf(c.p.mask) + BytesOf(c.p.bias);
  std::vector<const client::Tensor*> results = {&reply->o};
  if (c.p.want_lse) results.push_back(&reply->lse);
  ExpectKept(*plan, reply->kernel, reply->memory, input_bytes, results);
  const AttentionGeometry g = *Validate(c.p);
  std::int64_t scores = 0;
  for (const AttentionSequence& s : g.sequences) scores += g.q_heads * s.q_rows * s.kv_length;
  std::int64_t output_bytes = 0;
  for (const client::Tensor* result : results) output_bytes += std::ssize(result->bytes());
  EXPECT_EQ(reply->memory.naive_bytes, input_bytes + output_bytes + 4 * scores);
}

}  // namespace kernd::testing
