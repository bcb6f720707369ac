// One call's work as values: steps, their operands, the plan, and the results. No wire format, no device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernd/kernels/attention.h"
#include "kernd/kernels/matmul.h"
#include "kernd/kernels/variant.h"
#include "server/core/operand.h"

namespace kernd::core {

class SharedRegion;

// Where a result goes: into the reply, a tensor of the session under this id, or memory that the client shares.
struct ResultPlace {
  std::optional<std::uint64_t> resident;
  std::shared_ptr<SharedRegion> region;  // from byte `offset` on; whether it fits is known with the plan
  std::int64_t offset = 0;
  std::int64_t room = 0;  // bytes that the client has for it; 0: as many as it needs

  bool in_reply() const { return !resident && region == nullptr; }
};

struct MatmulStep {
  MatmulProblem problem;
  KernelRequest kernel;
  Operand a, b, c, bias, a_scale, b_scale;
  std::array<ResultPlace, 1> places;  // d

  std::array<Operand*, 6> operands() { return {&a, &b, &c, &bias, &a_scale, &b_scale}; }
  std::array<const Operand*, 6> operands() const { return {&a, &b, &c, &bias, &a_scale, &b_scale}; }
};

struct AttentionStep {
  AttentionProblem problem;
  KernelRequest kernel;
  Numerics numerics = Numerics::kDefault;
  Operand q, k, v, mask, bias;
  std::array<ResultPlace, 2> places;  // o, lse

  std::array<Operand*, 5> operands() { return {&q, &k, &v, &mask, &bias}; }
  std::array<const Operand*, 5> operands() const { return {&q, &k, &v, &mask, &bias}; }
};

using Step = std::variant<MatmulStep, AttentionStep>;

// Of result i, in the order of its plan.
inline const ResultPlace& PlaceOf(const Step& step, std::size_t i) {
  return std::visit([i](const auto& s) -> const ResultPlace& { return s.places[i]; }, step);
}

struct Program {
  std::vector<Step> steps;
};

// Bytes on the device. Exact: what a call is charged, and what it reports. Operands and results that are used where
// they are, in a session or in shared memory, are not the call's; `naive` has them all.
struct MemoryUse {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t workspace = 0;
  std::int64_t pinned = 0;
  std::int64_t naive = 0;  // of the textbook algorithm

  std::int64_t peak() const { return inputs + outputs + workspace; }
};

// A backend's own view of a planned step: its validated geometry and chosen variant.
class PreparedStep {
 public:
  virtual ~PreparedStep() = default;
};

struct StepPlan {
  std::string kernel;
  std::optional<Tile> tile;
  ChoiceReason reason = ChoiceReason::kRule;
  Numerics numerics = Numerics::kDefault;
  absl::InlinedVector<TensorSpec, 2> results;  // matmul: d; attention: o, then lse if wanted
  MemoryUse memory;
  std::unique_ptr<const PreparedStep> prepared;
};

struct Plan {
  std::string device;
  std::vector<StepPlan> steps;
  MemoryUse memory;  // of the whole program
};

// Host memory that holds a result until the reply has been sent. Move-only; `release` runs once, on any thread.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(std::byte* data, std::int64_t size, void (*release)(std::byte*, void*), void* context)
      : data_(data), size_(size), release_(release), context_(context) {}
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(release_, other.release_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~HostBuffer() {
    if (release_ != nullptr) release_(data_, context_);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
  void (*release_)(std::byte*, void*) = nullptr;
  void* context_ = nullptr;
};

struct NamedSpec {
  const char* name;
  std::optional<TensorSpec> spec;
};

// What a step's operands are called and look like, in the order of operands(); without a spec where there is none.
std::vector<NamedSpec> OperandSpecs(const MatmulStep& step);
std::vector<NamedSpec> OperandSpecs(const AttentionStep& step);

// And its results, in the order of the plan's, of which LSE may be left out.
inline constexpr std::array<const char*, 1> kMatmulResults = {"d"};
inline constexpr std::array<const char*, 2> kAttentionResults = {"o", "lse"};

// "a=F32[16,16] b=F32[16,16]": the operands' types and shapes for a log line.
std::string DescribeShapes(const Program& program);

}  // namespace kernd::core
