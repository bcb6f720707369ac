#include "server/cpu/staging.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/cpu/checks.h"

namespace kernd::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

// Memory for `bytes`, aligned. Null data where there is none to be had, or none needed.
core::HostBuffer Allocate(std::int64_t bytes) {
  if (bytes == 0) return {};
  const std::size_t rounded = (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (data == nullptr) return {};
  return core::HostBuffer(
      data, bytes, [](std::byte* p, void*) { std::free(p); }, nullptr);
}

absl::Status NoMemory(std::string_view what, std::int64_t bytes) {
  return WithDetail(
      absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes, " bytes for the ", std::string(what))),
      {.reason = std::string(reason::kMemoryFull), .retry_after = absl::Milliseconds(50)});
}

bool IsAligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % sizeof(double) == 0;
}

// An operand in one run at an address that any element may have is used where it is. Others are put together, and what
// they came in is let go.
absl::StatusOr<const void*> Data(core::Operand& operand, core::Call& call, std::vector<core::HostBuffer>& gathered) {
  if (operand.device != nullptr) return operand.device;
  if (operand.runs.empty()) return nullptr;
  if (operand.runs.size() == 1 && IsAligned(operand.runs.front().data())) return operand.runs.front().data();
  const std::int64_t bytes = operand.bytes();
  core::HostBuffer buffer = Allocate(bytes);
  if (buffer.size() != bytes) return NoMemory("operands", bytes);
  std::byte* to = buffer.data();
  for (const absl::Span<const std::byte> run : operand.runs) to = std::copy(run.begin(), run.end(), to);
  call.copied_bytes += bytes;
  operand.Release();
  gathered.push_back(std::move(buffer));
  return gathered.back().data();
}

}  // namespace

template <typename Step>
absl::StatusOr<Staged> StageIn(Step& step, const core::StepPlan& plan, bool guarded, core::Call& call) {
  const core::StageTimer timer(call.stages, core::Stage::kStageIn);
  Staged staged;
  std::size_t i = 0;
  for (core::Operand* operand : step.operands()) {
    KERND_ASSIGN_OR_RETURN(staged.operands[i++], Data(*operand, call, staged.gathered));
  }
  for (const TensorSpec& result : plan.results) {
    if (core::TensorMemory* kept = call.KeptAt(call.results.size())) {
      call.results.emplace_back(kept->data(), result.bytes(), nullptr, nullptr);
      continue;
    }
    if (std::byte* const shared = call.SharedAt(call.results.size())) {
      call.results.emplace_back(shared, result.bytes(), nullptr, nullptr);
      continue;
    }
    core::HostBuffer buffer = guarded ? AllocateGuarded(result.bytes()) : Allocate(result.bytes());
    if (buffer.size() != result.bytes()) return NoMemory("results", result.bytes());
    call.results.push_back(std::move(buffer));
  }
  staged.workspace = Allocate(plan.memory.workspace);
  if (staged.workspace.size() != plan.memory.workspace) return NoMemory("workspace", plan.memory.workspace);
  return staged;
}

template absl::StatusOr<Staged> StageIn(core::MatmulStep&, const core::StepPlan&, bool, core::Call&);
template absl::StatusOr<Staged> StageIn(core::AttentionStep&, const core::StepPlan&, bool, core::Call&);

}  // namespace kernd::cpu
