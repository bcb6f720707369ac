#include "server/gpu/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernd/kernels/error.h"
#include "server/gpu/gather.h"

namespace kernd::gpu {
namespace {

// For a pinned buffer to come free: results leave within milliseconds of one another or not at all.
constexpr absl::Duration kPinnedPatience = absl::Milliseconds(20);

const float* Floats(const std::byte* data) {
  return reinterpret_cast<const float*>(data);
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
  for (Event& event : executor->slice_done_) {
    KERND_ASSIGN_OR_RETURN(event, driver.CreateEvent());
  }
  if (environment.scan != nullptr) {
    KERND_ASSIGN_OR_RETURN(executor->checks_, Checks::Create(driver, environment.scan));
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
  for (const Event event : slice_done_) {
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
  return Around(prepared, step.operands(), {}, plan, call, [&](const Pointers& at) {
    const MatmulArgs args = {.a = at.operands[0],
                             .b = at.operands[1],
                             .c = at.operands[2],
                             .bias = at.operands[3],
                             .a_scale = Floats(at.operands[4]),
                             .b_scale = Floats(at.operands[5]),
                             .d = at.results[0]};
    const auto launch = [&](const MatmulProblem& problem, const MatmulGeometry& geometry, const MatmulArgs& its) {
      return prepared.variant->launch(problem, geometry, env_.driver.device(), its, at.block + layout.workspace_at,
                                      stream_);
    };
    if (prepared.slices.empty()) return launch(step.problem, prepared.geometry, args);
    return InSlices(prepared.slices.size(), call, [&](std::size_t i) {
      const MatmulSlice& slice = prepared.slices[i];
      return launch(slice.problem, slice.geometry, slice.Of(args));
    });
  });
}

absl::Status Executor::RunStep(core::AttentionStep& step, const core::StepPlan& plan, core::Call& call) {
  const auto& prepared = static_cast<const PreparedAttention&>(*plan.prepared);
  const DeviceLayout& layout = prepared.layout;
  std::vector<std::byte> tables(static_cast<std::size_t>(prepared.tables.bytes()));
  if (layout.tables_at >= 0) prepared.tables.Write(step.problem, prepared.geometry, tables.data());
  return Around(prepared, step.operands(), tables, plan, call, [&](const Pointers& at) {
    const AttentionArgs args = {.q = at.operands[0],
                                .k = at.operands[1],
                                .v = at.operands[2],
                                .mask = at.operands[3],
                                .bias = at.operands[4],
                                .o = at.results[0],
                                .lse = reinterpret_cast<float*>(at.results[1])};
    const AttentionTables tables_at = prepared.tables.At(at.block + layout.tables_at);
    const auto launch = [&](const AttentionGeometry& geometry, const AttentionArgs& args_at,
                            const AttentionTables& its) {
      return prepared.variant->launch(step.problem, geometry, env_.driver.device(), args_at, its,
                                      at.block + layout.workspace_at, stream_);
    };
    if (prepared.slices.empty()) return launch(prepared.geometry, args, tables_at);
    return InSlices(prepared.slices.size(), call, [&](std::size_t i) {
      const AttentionSlice& slice = prepared.slices[i];
      return launch(slice.geometry, slice.Of(args), slice.Of(tables_at));
    });
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
  for (const DeviceLayout::Guard& guard : layout.guards) pieces.push_back({guard.at, Checks::Guard(guard)});
  if (layout.counts_at != DeviceLayout::kAbsent) pieces.push_back({layout.counts_at, Checks::Zeros()});
  return pieces;
}

Executor::Pointers Executor::PointersOf(const DeviceLayout& layout, absl::Span<core::Operand* const> operands,
                                        const core::StepPlan& plan, const core::Call& call, std::byte* block) {
  Pointers at = {.block = block};
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i]->in_place()) {
      at.operands[i] = operands[i]->device;
    } else if (layout.operand_at[i] != DeviceLayout::kAbsent) {
      at.operands[i] = block + layout.operand_at[i];
    }
  }
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    const core::TensorMemory* const kept = call.KeptAt(call.results.size() + i);
    at.results[i] = kept != nullptr ? kept->data() : block + layout.result_at[i];
  }
  return at;
}

// A wait for the slice before the last leaves the device one to run. The deadline counts as well as the client.
template <typename Launch>
absl::Status Executor::InSlices(std::size_t count, const core::Call& call, Launch launch) {
  for (std::size_t i = 0; i < count; ++i) {
    const Event done = slice_done_[i % slice_done_.size()];
    if (i >= slice_done_.size()) KERND_RETURN_IF_ERROR(env_.driver.Wait(done));
    if (i > 0) KERND_RETURN_IF_ERROR(call.CheckWanted());
    KERND_RETURN_IF_ERROR(launch(i));
    KERND_RETURN_IF_ERROR(env_.driver.Record(done, stream_));
  }
  return absl::OkStatus();
}

template <typename Launch>
absl::Status Executor::Around(const Prepared& prepared, absl::Span<core::Operand* const> operands,
                              absl::Span<const std::byte> tables, const core::StepPlan& plan, core::Call& call,
                              Launch launch) {
  const DeviceLayout& layout = prepared.layout;
  const bool empty = std::all_of(plan.results.begin(), plan.results.end(),
                                 [](const TensorSpec& result) { return result.bytes() == 0; });
  if (empty) {  // nothing to compute; the results are there
    for (std::size_t i = 0; i < plan.results.size(); ++i) call.results.emplace_back();
    return absl::OkStatus();
  }
  Driver& driver = env_.driver;
  core::StageTimer staging(call.stages, core::Stage::kStageIn);
  KERND_ASSIGN_OR_RETURN(const DeviceBlock block, env_.memory.Allocate(layout.bytes(), stream_));
  KERND_RETURN_IF_ERROR(driver.Record(begin_, stream_));
  KERND_RETURN_IF_ERROR(StageIn(block.data(), PiecesOf(layout, operands, tables), call));
  KERND_RETURN_IF_ERROR(driver.Record(copied_in_, stream_));
  const Pointers at = PointersOf(layout, operands, plan, call, block.data());
  for (std::size_t i = 0; i < operands.size(); ++i) {
    core::Operand& operand = *operands[i];
    if (operand.copy_of) {
      KERND_RETURN_IF_ERROR(
          Gather(driver, block.data() + layout.operand_at[i], operand.device, *operand.copy_of, stream_));
    }
    if (operand.device != nullptr) continue;  // the kernel reads it, or a copy that is under way does
    call.copied_bytes += operand.bytes();
    operand.Release();
  }
  staging.Stop();
  if (checks_) KERND_RETURN_IF_ERROR(checks_->ScanOperands(prepared.checked, layout, block.data(), stream_));
  KERND_RETURN_IF_ERROR(launch(at));
  KERND_RETURN_IF_ERROR(driver.Record(computed_, stream_));
  if (checks_) KERND_RETURN_IF_ERROR(checks_->ScanResults(prepared.checked, layout, block.data(), stream_));
  for (std::size_t i = 0; i < plan.results.size(); ++i) {
    if (call.KeptAt(call.results.size()) != nullptr) {
      call.results.emplace_back();
      continue;
    }
    // Before the copy, which must not outlive its target whatever happens next.
    if (std::byte* const shared = call.SharedAt(call.results.size())) {
      call.results.emplace_back(shared, plan.results[i].bytes(), nullptr, nullptr);
    } else {
      KERND_ASSIGN_OR_RETURN(core::HostBuffer buffer, env_.pinned.Allocate(plan.results[i].bytes(), kPinnedPatience));
      call.results.push_back(std::move(buffer));
    }
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
  if (!checks_) return absl::OkStatus();
  const auto index = &plan - call.plan.steps.data();
  return checks_->Judge(prepared.checked, layout,
                        call.plan.steps.size() > 1 ? absl::StrCat("steps[", index, "].") : std::string(), call);
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
