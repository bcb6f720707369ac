// Times the CPU kernels without the service.
//
//   kernels_cpu_bench matmul [threads]              against a oneDNN primitive that was made once, alone, in turns
//   kernels_cpu_bench attention [threads] [rounds]  own times only: run_cpu_kernels.py sets numpy's beside them
//
// Prints a JSON array of rows {"name", "value", "unit", "peer", "peer_value", "ratio"}; medians; random data.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "server/cpu/attention.h"
#include "server/cpu/matmul.h"
#include "server/cpu/onednn.h"

namespace {

using kernd::DataType;

// Memory as the daemon has it: aligned to a cache line.
struct Buffer {
  explicit Buffer(std::int64_t bytes)
      : data(::operator new (static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), std::align_val_t{64})) {}
  ~Buffer() { ::operator delete (data, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* const data;
};

std::unique_ptr<Buffer> RandomTensor(DataType type, std::int64_t elements, unsigned seed) {
  auto buffer = std::make_unique<Buffer>(elements * ElementBytes(type));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < elements; ++i) {
    if (type == DataType::kF32) static_cast<float*>(buffer->data)[i] = normal(random);
    if (type == DataType::kF64) static_cast<double*>(buffer->data)[i] = normal(random);
    if (type == DataType::kI8)
      static_cast<std::int8_t*>(buffer->data)[i] = static_cast<std::int8_t>(random() % 255 - 127);
    if (type == DataType::kF8E4M3)
      static_cast<std::uint8_t*>(buffer->data)[i] = static_cast<std::uint8_t>(random() % 0x70);
    if (type == DataType::kBF16 || type == DataType::kF16) {  // between 1 and 2, of either sign
      const unsigned mantissa = type == DataType::kBF16 ? 0x3f80 + random() % 0x80 : 0x3c00 + random() % 0x400;
      static_cast<std::uint16_t*>(buffer->data)[i] = static_cast<std::uint16_t>(mantissa | (random() % 2) << 15);
    }
  }
  return buffer;
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Rounds that take about a second in all.
int RoundsFor(double seconds) {
  return static_cast<int>(std::clamp(1.0 / std::max(seconds, 1e-7), 15.0, 2000.0));
}

bool first_row = true;
void PrintRow(const std::string& name, double value, const char* unit, const char* peer, double peer_value,
              double ratio) {
  std::printf(
      "%s\n  {\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"peer\": \"%s\", \"peer_value\": %.6g, \"ratio\": "
      "%.4f}",
      first_row ? "[" : ",", name.c_str(), value, unit, peer, peer_value, ratio);
  std::fflush(stdout);
  first_row = false;
}

void MatmulRow(DataType type, std::int64_t m, std::int64_t n, std::int64_t k, const std::string& kernel, int threads) {
  kernd::MatmulProblem p{.a = {.dtype = type, .shape = {m, k}}, .b = {.dtype = type, .shape = {k, n}}};
  if (type == DataType::kBF16) p.output_dtype = DataType::kF32;  // as the peer's
  const kernd::MatmulGeometry g = *kernd::Validate(p);
  const auto a = RandomTensor(type, m * k, 1), b = RandomTensor(type, k * n, 2);
  Buffer d(g.d.bytes()), peer_d(m * n * 4);
  const kernd::MatmulArgs args{.a = a->data, .b = b->data, .d = d.data};
  const auto choice = kernd::cpu::ChooseMatmul(p, g, {.name = kernel}, threads);
  if (!choice.ok()) return;
  Buffer workspace(choice->workspace_bytes);
  const auto ours = [&] {
    const auto chosen = kernd::cpu::ChooseMatmul(p, g, {.name = kernel}, threads);
    if (!RunMatmul(*chosen, p, g, args, workspace.data).ok()) std::abort();
  };
  const kernd::cpu::onednn::GemmShape shape{
      .dtype = type, .m = m, .n = n, .k = k, .lda = k, .ldb = n, .threads = threads};
  const auto gemm = kernd::cpu::onednn::GetGemm(shape);
  if (!gemm.ok()) return;
  Buffer scratch((*gemm)->scratch_bytes());
  const auto peer = [&] {
    if (!(*gemm)->Run(a->data, b->data, peer_d.data, scratch.data).ok()) std::abort();
  };
  Seconds(ours), Seconds(peer);
  std::vector<double> own_times, peer_times;
  for (int i = RoundsFor(Seconds(ours)); i > 0; --i) {
    own_times.push_back(Seconds(ours));
    peer_times.push_back(Seconds(peer));
  }
  const double work = 2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const double own = work / Median(own_times), other = work / Median(peer_times);
  const std::string shape_name = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  std::string name = "matmul/" + std::string(Token(type)) + "/" + shape_name;
  if (!kernel.empty()) name += "/packed";
  PrintRow(name, own, "GFLOP/s", "onednn-primitive", other, own / other);
}

struct AttentionCase {
  DataType type;
  std::int64_t batch, heads, length, head_dim;
  bool causal;
};

void AttentionRow(const AttentionCase& c, int threads, int rounds) {
  const kernd::TensorSpec spec{.dtype = c.type, .shape = {c.batch, c.heads, c.length, c.head_dim}};
  kernd::AttentionProblem p{.q = spec, .k = spec, .v = spec, .causal = c.causal};
  const kernd::AttentionGeometry g = *kernd::Validate(p);
  const auto q = RandomTensor(c.type, spec.elements(), 1), k = RandomTensor(c.type, spec.elements(), 2),
             v = RandomTensor(c.type, spec.elements(), 3);
  Buffer o(g.o_spec.bytes());
  const kernd::AttentionArgs args{.q = q->data, .k = k->data, .v = v->data, .o = o.data};
  const kernd::cpu::AttentionChoice choice = *kernd::cpu::ChooseAttention(p, g, {}, threads);
  Buffer workspace(choice.workspace_bytes);
  const auto run = [&] { RunAttention(choice, p, g, args, workspace.data); };
  run(), run();
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(Seconds(run));
  const std::string name = "attention/" + std::string(Token(c.type)) + "/b" + std::to_string(c.batch) + "h" +
                           std::to_string(c.heads) + "/d" + std::to_string(c.head_dim) + "/L" +
                           std::to_string(c.length) + (c.causal ? "/causal" : "/full");
  PrintRow(name, Median(times) * 1e3, "ms", "", 0, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "matmul";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
  if (what == "matmul") {
    for (const std::int64_t size : {64, 128, 256, 512, 768, 1024, 2048})
      MatmulRow(DataType::kF32, size, size, size, "", threads);
    for (const std::int64_t size : {512, 1024, 2048}) MatmulRow(DataType::kBF16, size, size, size, "", threads);
    for (const std::int64_t size : {512, 1024, 2048}) MatmulRow(DataType::kI8, size, size, size, "", threads);
    for (const std::int64_t size : {64, 128, 512, 1024, 2048}) {
      MatmulRow(DataType::kF32, size, size, size, "matmul_f32_cpu_packed", threads);
    }
    MatmulRow(DataType::kF32, 1, 4096, 4096, "", threads);
    MatmulRow(DataType::kF32, 1, 4096, 4096, "matmul_f32_cpu_packed", threads);
  } else {
    for (const AttentionCase& c : {AttentionCase{DataType::kF32, 1, 8, 1024, 64, false},
                                   {DataType::kF32, 1, 8, 1024, 64, true},
                                   {DataType::kF32, 1, 8, 128, 64, false},
                                   {DataType::kF32, 1, 8, 2048, 128, false},
                                   {DataType::kBF16, 1, 8, 1024, 64, false},
                                   {DataType::kF16, 1, 8, 1024, 64, false},
                                   {DataType::kF8E4M3, 1, 8, 1024, 64, false}}) {
      AttentionRow(c, threads, rounds);
    }
  }
  std::printf("%s\n", first_row ? "[]" : "\n]");
  return 0;
}
