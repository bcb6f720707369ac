#include "server/cpu/onednn.h"

#include <omp.h>

#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dnnl.hpp"

namespace kernd::cpu::onednn {
namespace {

constexpr std::size_t kMaxPrimitives = 256;  // some 100 KiB each, most of it generated code

// Without AMX, unless ONEDNN_MAX_CPU_ISA says otherwise: 2.6.3 dies of an illegal instruction in its code for AMX (seen
// with I8, [257, 127] x [127, 33]). To be said before the first primitive is made.
void LeaveOutAmx() {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr || std::getenv("DNNL_MAX_CPU_ISA") != nullptr) return;
  (void)dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);  // no limit of a machine that has less
}

const dnnl::engine& Engine() {
  static const dnnl::engine engine = [] {
    LeaveOutAmx();
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

dnnl::memory::data_type ToDnnl(DataType type) {
  switch (type) {
    case DataType::kBF16: return dnnl::memory::data_type::bf16;
    case DataType::kI8: return dnnl::memory::data_type::s8;
    case DataType::kI32: return dnnl::memory::data_type::s32;
    default: return dnnl::memory::data_type::f32;
  }
}

// oneDNN takes the size of its team from the calling thread, when it makes a primitive and when it runs one.
class ScopedTeam {
 public:
  explicit ScopedTeam(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ScopedTeam() { omp_set_num_threads(before_); }
  ScopedTeam(const ScopedTeam&) = delete;
  ScopedTeam& operator=(const ScopedTeam&) = delete;

 private:
  int before_;
};

// [batch, rows, cols] of which each matrix is stored transposed or not.
dnnl::memory::desc Describe(DataType type, std::int64_t batch, std::int64_t batch_stride, std::int64_t rows,
                            std::int64_t cols, std::int64_t ld, bool transposed) {
  const std::int64_t row_stride = transposed ? 1 : ld, col_stride = transposed ? ld : 1;
  if (batch == 1) return {{rows, cols}, ToDnnl(type), dnnl::memory::dims{row_stride, col_stride}};
  const bool repeats = batch_stride == 0;
  const dnnl::memory::dim stride = repeats ? rows * cols : batch_stride;  // never used for a single matrix
  return {{repeats ? 1 : batch, rows, cols}, ToDnnl(type), dnnl::memory::dims{stride, row_stride, col_stride}};
}

class DnnlGemm final : public Gemm {
 public:
  explicit DnnlGemm(const GemmShape& s) : threads_(s.threads) {
    const DataType result = s.dtype == DataType::kI8 ? DataType::kI32 : DataType::kF32;
    const auto a = Describe(s.dtype, s.batch, s.a_batch_stride, s.m, s.k, s.lda, s.transpose_a);
    const auto b = Describe(s.dtype, s.batch, s.b_batch_stride, s.k, s.n, s.ldb, s.transpose_b);
    const auto d = Describe(result, s.batch, s.m * s.n, s.m, s.n, s.n, false);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // the library's own is not safe across threads
    const ScopedTeam team(threads_);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc desc(Engine(), a, b, d, attr);
#else
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(a, b, d), attr, Engine());
#endif
    matmul_ = dnnl::matmul(desc);
    a_ = desc.src_desc();
    b_ = desc.weights_desc();
    d_ = desc.dst_desc();
    scratch_ = desc.scratchpad_desc();
  }

  std::int64_t scratch_bytes() const override {
    return static_cast<std::int64_t>(scratch_.get_size());
  }

  absl::Status Run(const void* a, const void* b, void* d, void* scratch) const override {
    try {
      const ScopedTeam team(threads_);
      dnnl::stream stream(Engine());
      matmul_.execute(stream, {{DNNL_ARG_SRC, {a_, Engine(), const_cast<void*>(a)}},
                               {DNNL_ARG_WEIGHTS, {b_, Engine(), const_cast<void*>(b)}},
                               {DNNL_ARG_DST, {d_, Engine(), d}},
                               {DNNL_ARG_SCRATCHPAD, {scratch_, Engine(), scratch}}});
      stream.wait();
      return absl::OkStatus();
    } catch (const dnnl::error& e) {
      return absl::InternalError(absl::StrCat("oneDNN matmul failed: ", e.what()));
    }
  }

 private:
  int threads_;
  dnnl::matmul matmul_;
  dnnl::memory::desc a_, b_, d_, scratch_;
};

// Least recently used out first. A primitive in use outlives its place here.
class Cache {
 public:
  std::shared_ptr<const Gemm> Find(const GemmShape& shape) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = index_.find(shape);
    if (it == index_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->second;
  }

  void Insert(const GemmShape& shape, std::shared_ptr<const Gemm> gemm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index_.contains(shape)) return;  // two threads made it at once: either will do
    entries_.emplace_front(shape, std::move(gemm));
    index_[shape] = entries_.begin();
    if (entries_.size() > kMaxPrimitives) {
      index_.erase(entries_.back().first);
      entries_.pop_back();
    }
  }

 private:
  using Entry = std::pair<GemmShape, std::shared_ptr<const Gemm>>;
  std::mutex mutex_;
  std::list<Entry> entries_;                               // guarded by mutex_
  std::map<GemmShape, std::list<Entry>::iterator> index_;  // guarded by mutex_
};

}  // namespace

std::string Version() {
  const dnnl_version_t& version = *dnnl_version();
  return absl::StrCat("onednn ", version.major, ".", version.minor, ".", version.patch, " (",
                      std::string(version.hash).substr(0, 12), ")");
}

bool IsNative(DataType dtype) {
  if (dtype == DataType::kF32) return true;
#ifdef KERND_CPU_X86
  const auto at_least = [](dnnl::cpu_isa wanted) {  // sets of features, and larger than those they contain
    const unsigned have = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), need = static_cast<unsigned>(wanted);
    return (have & need) == need;
  };
  if (dtype == DataType::kBF16) return at_least(dnnl::cpu_isa::avx512_core_bf16);
  if (dtype == DataType::kI8) return at_least(dnnl::cpu_isa::avx512_core_vnni);
#endif
  return false;
}

absl::StatusOr<std::shared_ptr<const Gemm>> GetGemm(const GemmShape& shape) {
  static Cache* const cache = new Cache;  // never destroyed: threads may still run at exit
  if (auto found = cache->Find(shape)) return found;
  try {
    std::shared_ptr<const Gemm> made = std::make_shared<DnnlGemm>(shape);
    cache->Insert(shape, made);
    return made;
  } catch (const dnnl::error& e) {
    return absl::UnimplementedError(absl::StrCat("oneDNN has no such matmul: ", e.what()));
  }
}

}  // namespace kernd::cpu::onednn
