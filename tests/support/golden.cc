#include "tests/support/golden.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>

#include "kernels/reference/convert.h"
#include "tests/support/paths.h"

namespace kernd::testing {
namespace {

const std::filesystem::path kData = DataFolder();

void Require(bool condition, const std::string& what) {
  if (condition) return;
  std::cerr << "test data: " << what << '\n';
  std::exit(1);
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  Require(in.good(), "cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

DataType TypeNamed(std::string name) {
  std::erase(name, '_');  // safetensors writes F8_E4M3
  for (int i = 1; i <= static_cast<int>(DataType::kF8E5M2); ++i) {
    if (Name(static_cast<DataType>(i)) == name) return static_cast<DataType>(i);
  }
  Require(false, "unknown dtype " + name);
  return DataType::kInvalid;
}

Dims ToDims(const nlohmann::json& json) {
  const auto values = json.get<std::vector<std::int64_t>>();
  return Dims(values.begin(), values.end());
}

std::vector<std::byte> ToBytes(std::string_view text) {
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

template <typename T>
void Read(const nlohmann::json& problem, const char* key, T& out) {
  if (problem.contains(key)) out = problem[key].get<T>();
}

template <typename T>
void Read(const nlohmann::json& problem, const char* key, std::optional<T>& out) {
  if (problem.contains(key)) out = problem[key].get<T>();
}

DataType OutputType(const nlohmann::json& problem) {
  return problem.contains("output_dtype") ? TypeNamed(problem["output_dtype"]) : DataType::kInvalid;
}

}  // namespace

const GoldenTensor& Golden::At(const std::string& tensor) const {
  const auto it = tensors.find(tensor);
  Require(it != tensors.end(), name + " has no tensor " + tensor);
  return it->second;
}

std::vector<double> Golden::Doubles(const std::string& tensor) const {
  const GoldenTensor& t = At(tensor);
  return reference::LoadAll(t.spec.dtype, t.bytes.data(), t.spec.elements());
}

std::vector<float> Golden::Floats(const std::string& tensor) const {
  if (!Has(tensor)) return {};
  const std::vector<double> values = Doubles(tensor);
  return {values.begin(), values.end()};
}

TensorSpec Golden::Operand(const std::string& tensor, const void** data) const {
  const nlohmann::json views = problem.value("views", nlohmann::json::object());
  if (!views.contains(tensor)) {
    *data = At(tensor).bytes.data();
    return At(tensor).spec;
  }
  const nlohmann::json& view = views[tensor];
  const GoldenTensor& buffer = At(view["of"]);
  *data = buffer.bytes.data() + view["offset"].get<std::int64_t>() * ElementBytes(buffer.spec.dtype);
  return {.dtype = buffer.spec.dtype, .shape = ToDims(view["shape"]), .strides = ToDims(view["strides"])};
}

MatmulProblem Golden::Matmul(MatmulArgs* args) const {
  MatmulProblem p;
  p.a = Operand("a", &args->a);
  p.b = Operand("b", &args->b);
  if (Has("c")) p.c = Operand("c", &args->c);
  if (Has("bias")) p.bias = Operand("bias", &args->bias);
  const auto scale = [&](const std::string& key, const float** data) -> std::optional<ScaleSpec> {
    if (!Has(key)) return std::nullopt;
    const nlohmann::json& json = problem[key];
    const void* bytes = nullptr;
    ScaleSpec s{.spec = Operand(key, &bytes)};
    *data = static_cast<const float*>(bytes);
    if (json["kind"] == "row") s.kind = ScaleSpec::Kind::kRow;
    if (json["kind"] == "block") {
      s.kind = ScaleSpec::Kind::kBlock;
      s.block_rows = json["block"][0];
      s.block_k = json["block"][1];
    }
    return s;
  };
  p.a_scale = scale("a_scale", &args->a_scale);
  p.b_scale = scale("b_scale", &args->b_scale);
  Read(problem, "transpose_a", p.transpose_a);
  Read(problem, "transpose_b", p.transpose_b);
  Read(problem, "alpha", p.alpha);
  Read(problem, "beta", p.beta);
  const std::string activation = problem.value("activation", "none");
  for (const Activation a : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
    if (Name(a) == activation) p.activation = a;
  }
  p.output_dtype = OutputType(problem);
  return p;
}

AttentionProblem Golden::Attention(AttentionArgs* args) const {
  AttentionProblem p;
  p.q = Operand("q", &args->q);
  p.k = Operand("k", &args->k);
  p.v = Operand("v", &args->v);
  if (Has("mask")) p.mask = Operand("mask", &args->mask);
  if (Has("bias")) p.bias = Operand("bias", &args->bias);
  for (const AttentionLayout l : {AttentionLayout::kBHLD, AttentionLayout::kBLHD, AttentionLayout::kPacked}) {
    if (Name(l) == problem["layout"].get<std::string>()) p.layout = l;
  }
  const std::string alignment = problem.value("alignment", "unset");
  for (const MaskAlignment m : {MaskAlignment::kTopLeft, MaskAlignment::kBottomRight}) {
    if (Name(m) == alignment) p.alignment = m;
  }
  Read(problem, "scale", p.scale);
  Read(problem, "softcap", p.softcap);
  Read(problem, "causal", p.causal);
  Read(problem, "window_left", p.window_left);
  Read(problem, "window_right", p.window_right);
  Read(problem, "q_lengths", p.q_lengths);
  Read(problem, "kv_lengths", p.kv_lengths);
  Read(problem, "q_offsets", p.q_offsets);
  Read(problem, "kv_offsets", p.kv_offsets);
  p.alibi_slopes = Floats("alibi_slopes");
  p.sinks = Floats("sinks");
  p.q_scale = Floats("q_scale");
  p.k_scale = Floats("k_scale");
  p.v_scale = Floats("v_scale");
  p.want_lse = true;
  p.output_dtype = OutputType(problem);
  return p;
}

std::vector<std::string> GoldenNames(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kData / "goldens")) {
    if (entry.path().extension() != ".safetensors") continue;
    if (const std::string stem = entry.path().stem(); stem.starts_with(prefix)) names.push_back(stem);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Golden ReadGolden(const std::string& name) {
  const std::string file = ReadFile(kData / "goldens" / (name + ".safetensors"));
  std::uint64_t header_bytes = 0;
  Require(file.size() >= sizeof(header_bytes), name + " is cut short");
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  Require(header_bytes <= file.size() - sizeof(header_bytes), name + " is cut short");
  const std::string_view data = std::string_view(file).substr(sizeof(header_bytes) + header_bytes);
  const nlohmann::json header = nlohmann::json::parse(file.substr(sizeof(header_bytes), header_bytes));

  Golden golden{.name = name};
  for (const auto& [key, entry] : header.items()) {
    if (key == "__metadata__") {
      golden.problem = nlohmann::json::parse(entry["problem"].get<std::string>());
      continue;
    }
    const auto range = entry["data_offsets"].get<std::vector<std::size_t>>();
    Require(range[0] <= range[1] && range[1] <= data.size(), name + "." + key + " is cut short");
    GoldenTensor tensor{.spec = {.dtype = TypeNamed(entry["dtype"]), .shape = ToDims(entry["shape"])},
                        .bytes = ToBytes(data.substr(range[0], range[1] - range[0]))};
    Require(tensor.spec.bytes() == static_cast<std::int64_t>(tensor.bytes.size()),
            name + "." + key + " has a wrong size");
    golden.tensors.emplace(key, std::move(tensor));
  }
  return golden;
}

GoldenTensor ReadNpy(const std::filesystem::path& path) {
  constexpr std::string_view kMagic("\x93NUMPY\x01\x00", 8);
  const std::string file = ReadFile(kData / path);
  Require(file.size() >= 10 && file.starts_with(kMagic), path.string() + " is not a .npy file of version 1");
  const std::size_t header_bytes = static_cast<unsigned char>(file[8]) + 256u * static_cast<unsigned char>(file[9]);
  const std::string header = file.substr(10, header_bytes);
  Require(header.find("'<f4'") != header.npos && header.find("'fortran_order': False") != header.npos,
          path.string() + " is not a C-ordered F32 array");
  GoldenTensor tensor{.spec = {.dtype = DataType::kF32}};
  const std::size_t open = header.find('('), close = header.find(')');
  Require(open != header.npos && close != header.npos, path.string() + " has no shape");
  for (std::size_t at = open + 1; at < close;) {
    std::size_t digits = 0;
    tensor.spec.shape.push_back(std::stoll(header.substr(at, close - at), &digits));
    at = std::min(header.find_first_of("0123456789", at + digits), close);
  }
  tensor.bytes = ToBytes(std::string_view(file).substr(10 + header_bytes));
  Require(tensor.spec.bytes() == static_cast<std::int64_t>(tensor.bytes.size()), path.string() + " has a wrong size");
  return tensor;
}

}  // namespace kernd::testing
