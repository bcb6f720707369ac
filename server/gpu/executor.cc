#include "server/gpu/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernd/kernels/error.h"

namespace kernd::gpu {
namespace {

// For a pinned buffer to come free: results leave within milliseconds of one another or not at all.
constexpr absl::Duration kPinnedPatience = absl::Milliseconds(20);

template <typename T>
T* At(std::byte* block, std::int64_t at) {
  return at == DeviceLayout::kAbsent ? nullptr : reinterpret_cast<T*>(block + at);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const ExecutorEnvironment& environment) {
  std::unique_ptr<Executor> executor(new Executor(environment));
  Driver& driver = environment.driver;
  KERND_RETURN_IF_ERROR(driver.Bind());
  KERND_ASSIGN_OR_RETURN(executor->stream_, driver.CreateStream());
  KERND_ASSIGN_OR_RETURN(executor->staging_, driver.AllocatePinned(kChunks * environment.chunk_bytes));
  KERND_ASSIGN_OR_RETURN(executor->begin_, driver.CreateEvent());
  KERND_ASSIGN_OR_RETURN(executor->copied_in_, driver.CreateEvent());
  KERND_ASSIGN_OR_RETURN(executor->computed_, driver.CreateEvent());
  KERND_ASSIGN_OR_RETURN(executor->ended_, driver.CreateEvent());
  for (Event& event : executor->chunk_free_) {
    KERND_ASSIGN_OR_RETURN(event, driver.CreateEvent());
  }
  return executor;
}

Executor::~Executor() {
  Driver& driver = env_.driver;
  if (stream_ != nullptr) driver.Synchronize(stream_).IgnoreError();
  for (const Event event : {begin_, copied_in_, computed_, ended_}) {
    if (event != nullptr) driver.DestroyEvent(event);
  }
  for (const Event event : chunk_free_) {
    if (event != nullptr) driver.DestroyEvent(event);
  }
  if (staging_ != nullptr) driver.FreePinned(staging_);
  if (stream_ != nullptr) driver.Destroy(stream_);
}

absl::Status Executor::Run(core::Call& call) {
  KERND_RETURN_IF_ERROR(env_.driver.Bind());
  absl::Status status;
  for (std::size_t i = 0; status.ok() && i < call.program.steps.size(); ++i) {
    const core::StepPlan& plan = call.plan.steps[i];
    status = call.CheckWanted();
    if (!status.ok()) break;
    status = std::visit([&](auto& step) { return RunStep(step, plan, call); }, call.program.steps[i]);
  }
  // What was enqueued before the failure still reads the staging chunks and writes the results.
  if (!status.ok()) env_.driver.Synchronize(stream_).IgnoreError();
  return status;
}

absl::Status Executor::RunStep(core::MatmulStep& step, const core::StepPlan& plan, core::Call& call) {
  const auto& prepared = static_cast<const PreparedMatmul&>(*plan.prepared);
  const DeviceLayout& layout = prepared.layout;
  return Around(layout, step.operands(), {}, plan, call, [&](std::byte* block) {
    const MatmulArgs args = {.a = At<void>(block, layout.operand_at[0]),
                             .b = At<void>(block, layout.operand_at[1]),
                             .c = At<void>(block, layout.operand_at[2]),
                             .bias = At<void>(block, layout.operand_at[3]),
                             .a_scale = At<float>(block, layout.operand_at[4]),
                             .b_scale = At<float>(block, layout.operand_at[5]),
                             .d = At<void>(block, layout.result_at[0])};
    return prepared.variant->launch(step.problem, prepared.geometry, env_.driver.device(), args,
                                    block + layout.workspace_at, stream_);
  });
}

absl::Status Executor::RunStep(core::AttentionStep& step, const core::StepPlan& plan, core::Call& call) {
  const auto& prepared = static_cast<const PreparedAttention&>(*plan.prepared);
  const DeviceLayout& layout = prepared.layout;
  std::vector<std::byte> tables(static_cast<std::size_t>(prepared.tables.bytes()));
  if (layout.tables_at >= 0) prepared.tables.Write(step.problem, prepared.geometry, tables.data());
  return Around(layout, step.operands(), tables, plan, call, [&](std::byte* block) {
    const AttentionArgs args = {.q = At<void>(block, layout.operand_at[0]),
                                .k = At<void>(block, layout.operand_at[1]),
                                .v = At<void>(block, layout.operand_at[2]),
                                .mask = At<void>(block, layout.operand_at[3]),
                                .bias = At<void>(block, layout.operand_at[4]),
                                .o = At<void>(block, layout.result_at[0]),
                                .lse = step.problem.want_lse ? At<float>(block, layout.result_at[1]) : nullptr};
    return prepared.variant->launch(step.problem, prepared.geometry, env_.driver.device(), args,
                                    prepared.tables.At(block + layout.tables_at), block + layout.workspace_at, stream_);
  });
}

std::vector<Executor::Piece> Executor::PiecesOf(const DeviceLayout& layout, absl::Span<core::Operand* const> operands,
                                                absl::Span<const std::byte> tables) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    std::int64_t at = layout.operand_at[i];
    for (const absl::Span<const std::byte> run : operands[i]->runs) {
      pieces.push_back({at, run});
      at += static_cast<std::int64_t>(run.size());
    }
  }
  if (layout.tables_at != DeviceLayout::kAbsent) pieces.push_back({layout.tables_at, tables});
  return pieces;
}

template <typename Launch>
absl::Status Executor::Around(const DeviceLayout& layout, absl::Span<core::Operand* const> operands,
                              absl::Span<const std::byte> tables, const core::StepPlan& plan, core::Call& call,
                              Launch launch) {
  if (layout.output_bytes == 0) {  // nothing to compute; the results are there, and empty
    for (std::size_t i = 0; i < plan.results.size(); ++i) call.results.emplace_back();
    return absl::OkStatus();
  }
  Driver& driver = env_.driver;
  core::StageTimer staging(call.stages, core::Stage::kStageIn);
  KERND_ASSIGN_OR_RETURN(const DeviceBlock block, env_.memory.Allocate(layout.bytes(), stream_));
  KERND_RETURN_IF_ERROR(driver.Record(begin_, stream_));
  KERND_RETURN_IF_ERROR(StageIn(block.data(), PiecesOf(layout, operands, tables), call));
  KERND_RETURN_IF_ERROR(driver.Record(copied_in_, stream_));
  for (core::Operand* operand : operands) {
    call.copied_bytes += operand->bytes();
    operand->Release();
  }
  staging.Stop();
  KERND_RETURN_IF_ERROR(launch(block.data()));
  KERND_RETURN_IF_ERROR(driver.Record(computed_, stream_));
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    KERND_ASSIGN_OR_RETURN(core::HostBuffer buffer, env_.pinned.Allocate(plan.results[i].bytes(), kPinnedPatience));
    // Before the copy, which must not outlive its target whatever happens next.
    call.results.push_back(std::move(buffer));
    const core::HostBuffer& result = call.results.back();
    if (result.size() == 0) continue;
    KERND_RETURN_IF_ERROR(driver.CopyOut(result.data(), block.data() + layout.result_at[i], result.size(), stream_));
  }
  KERND_RETURN_IF_ERROR(driver.Record(ended_, stream_));
  KERND_RETURN_IF_ERROR(AwaitEnd());
  KERND_ASSIGN_OR_RETURN(const absl::Duration h2d, driver.Between(begin_, copied_in_));
  KERND_ASSIGN_OR_RETURN(const absl::Duration kernel, driver.Between(copied_in_, computed_));
  KERND_ASSIGN_OR_RETURN(const absl::Duration d2h, driver.Between(computed_, ended_));
  call.stages.Add(core::Stage::kH2d, h2d);
  call.stages.Add(core::Stage::kKernel, kernel);
  call.stages.Add(core::Stage::kD2h, d2h);
  return absl::OkStatus();
}

absl::Status Executor::StageIn(std::byte* block, absl::Span<const Piece> pieces, core::Call& call) {
  Driver& driver = env_.driver;
  std::int64_t chunk_number = 0;
  std::size_t next = 0;   // piece
  std::int64_t into = 0;  // bytes of it that are staged
  while (next < pieces.size()) {
    if (call.abandoned()) return call.CheckWanted();
    const int index = static_cast<int>(chunk_number % kChunks);
    std::byte* const chunk = staging_ + index * env_.chunk_bytes;
    if (chunk_number >= kChunks) KERND_RETURN_IF_ERROR(driver.Wait(chunk_free_[static_cast<std::size_t>(index)]));
    // Pieces lie in the chunk as in the block, gaps included, so that a chunk is one copy.
    const std::int64_t start = pieces[next].at + into;
    std::int64_t end = start;
    while (next < pieces.size()) {
      const Piece& piece = pieces[next];
      const std::int64_t at = piece.at + into - start;
      if (at >= env_.chunk_bytes) break;
      const std::int64_t left = static_cast<std::int64_t>(piece.bytes.size()) - into;
      const std::int64_t count = std::min(left, env_.chunk_bytes - at);
      if (count > 0) {
        std::memcpy(chunk + at, piece.bytes.data() + into, static_cast<std::size_t>(count));
        end = start + at + count;
      }
      into += count;
      if (count < left) break;
      ++next;
      into = 0;
    }
    if (end > start) {
      KERND_RETURN_IF_ERROR(driver.CopyIn(block + start, chunk, end - start, stream_));
      KERND_RETURN_IF_ERROR(driver.Record(chunk_free_[static_cast<std::size_t>(index)], stream_));
      ++chunk_number;
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::AwaitEnd() {
  const core::SteadyTime start = core::SteadyNow();
  do {
    KERND_ASSIGN_OR_RETURN(const bool passed, env_.driver.Passed(ended_));
    if (passed) return absl::OkStatus();
  } while (core::Since(start) < env_.spin);
  return env_.driver.Wait(ended_);
}

}  // namespace kernd::gpu
