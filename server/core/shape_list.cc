#include "server/core/shape_list.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernd/kernels/error.h"

namespace kernd::core {
namespace {

constexpr DataType kOperands[] = {DataType::kF16, DataType::kBF16,   DataType::kF32,   DataType::kF64,
                                  DataType::kI8,  DataType::kF8E4M3, DataType::kF8E5M2};
constexpr std::int64_t kMaxDimension = std::int64_t{1} << 40;

// Reads one text; the first rule that is broken stays.
class Reader {
 public:
  explicit Reader(const std::string& text) {
    if (text.size() > kMaxShapeText) {
      Break(absl::StrCat("must be at most ", kMaxShapeText, " bytes"));
      return;
    }
    parts_ = absl::StrSplit(text, ':');
    if (parts_.size() < 3) Break("must be OPERATION:DTYPE:SIZES[:WORD...]");
  }

  absl::StatusOr<Step> Read() {
    Step step;
    if (rule_.empty() && parts_[0] == "matmul") {
      step = Matmul();
    } else if (rule_.empty() && parts_[0] == "attention") {
      step = Attention();
    } else {
      Break("must begin with matmul: or attention:");
    }
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (!words_[i].used) Break(absl::StrCat("\"", Shown(words_[i].name), "\" is no word of ", parts_[0]));
    }
    if (!rule_.empty()) return absl::InvalidArgumentError(rule_);
    return step;
  }

 private:
  struct Word {
    std::string name;
    std::optional<std::string> value;
    bool used = false;
  };

  void Break(std::string rule) {
    if (rule_.empty()) rule_ = std::move(rule);
  }

  // Text of somebody's, in a message of ours.
  static std::string Shown(const std::string& text) { return text.size() <= 32 ? text : text.substr(0, 29) + "..."; }

  DataType ReadDtype() {
    for (const DataType type : kOperands) {
      if (parts_[1] == std::string(Token(type))) return type;
    }
    Break("the second part must be f16, bf16, f32, f64, i8, f8e4m3 or f8e5m2");
    return DataType::kF32;
  }

  std::int64_t ReadNumber(const std::string& text) {
    std::int64_t number = 0;
    const bool digits =
        !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || !absl::SimpleAtoi(text, &number) || number > kMaxDimension) {
      Break(absl::StrCat("\"", Shown(text), "\" must be a whole number from 0 to 2^40"));
    }
    return number;
  }

  // One size, or two with a slash between.
  std::pair<std::int64_t, std::int64_t> ReadSizes(const std::string& text) {
    const std::vector<std::string> both = absl::StrSplit(text, absl::MaxSplits('/', 1));
    const std::int64_t first = ReadNumber(both[0]);
    return {first, both.size() == 2 ? ReadNumber(both[1]) : first};
  }

  void ReadWords() {
    for (std::size_t i = 3; i < parts_.size(); ++i) {
      const std::vector<std::string> halves = absl::StrSplit(parts_[i], absl::MaxSplits('=', 1));
      for (const Word& word : words_) {
        if (word.name == halves[0]) Break(absl::StrCat("\"", Shown(halves[0]), "\" must not be given twice"));
      }
      words_.push_back({halves[0], halves.size() == 2 ? std::optional(halves[1]) : std::nullopt});
    }
  }

  bool Has(const char* name) {
    for (Word& word : words_) {
      if (word.name != name) continue;
      word.used = true;
      if (word.value) Break(absl::StrCat("\"", name, "\" must stand alone"));
      return true;
    }
    return false;
  }

  std::optional<std::string> ValueOf(const char* name) {
    for (Word& word : words_) {
      if (word.name != name) continue;
      word.used = true;
      if (!word.value || word.value->empty()) Break(absl::StrCat("\"", name, "\" must have a value: ", name, "=..."));
      return word.value.value_or("");
    }
    return std::nullopt;
  }

  Step Matmul() {
    MatmulStep step;
    MatmulProblem& p = step.problem;
    const DataType type = ReadDtype();
    const std::vector<std::string> sizes = absl::StrSplit(parts_[2], 'x');
    if (sizes.size() != 3 && sizes.size() != 4) {
      Break("the sizes of a matmul must be MxNxK or BATCHxMxNxK");
      return step;
    }
    Dims batch;
    if (sizes.size() == 4) batch.push_back(ReadNumber(sizes[0]));
    const std::int64_t m = ReadNumber(sizes[sizes.size() - 3]), n = ReadNumber(sizes[sizes.size() - 2]),
                       k = ReadNumber(sizes.back());
    ReadWords();
    const auto spec = [&](std::int64_t rows, std::int64_t cols) {
      TensorSpec out{.dtype = type, .shape = batch};
      out.shape.push_back(rows);
      out.shape.push_back(cols);
      return out;
    };
    p.transpose_a = Has("ta");
    p.transpose_b = Has("tb");
    p.a = p.transpose_a ? spec(k, m) : spec(m, k);
    p.b = p.transpose_b ? spec(n, k) : spec(k, n);
    if (Has("bias")) p.bias = TensorSpec{.dtype = DefaultMatmulOutput(type), .shape = {n}};
    int activations = 0;
    for (const Activation activation : {Activation::kRelu, Activation::kGelu, Activation::kSilu}) {
      if (!Has(std::string(Name(activation)).c_str())) continue;
      p.activation = activation;
      if (++activations > 1) Break("must have one activation at most");
    }
    const bool tf32 = Has("tf32"), invariant = Has("invariant");
    if (tf32 && invariant) Break("must not be both tf32 and invariant");
    p.numerics = tf32 ? Numerics::kTf32 : invariant ? Numerics::kBatchInvariant : Numerics::kDefault;
    step.kernel.name = ValueOf("kernel").value_or("");
    return step;
  }

  Step Attention() {
    AttentionStep step;
    AttentionProblem& p = step.problem;
    const DataType type = ReadDtype();
    const std::vector<std::string> sizes = absl::StrSplit(parts_[2], 'x');
    if (sizes.size() != 4) {
      Break("the sizes of an attention must be BxH[/HKV]xL[/LKV]xD[/DV]");
      return step;
    }
    const std::int64_t b = ReadNumber(sizes[0]);
    const auto [heads, kv_heads] = ReadSizes(sizes[1]);
    const auto [rows, keys] = ReadSizes(sizes[2]);
    const auto [d, dv] = ReadSizes(sizes[3]);
    ReadWords();
    if (Has("blhd")) p.layout = AttentionLayout::kBLHD;
    const auto spec = [&](std::int64_t h, std::int64_t l, std::int64_t width) {
      const bool rows_first = p.layout == AttentionLayout::kBLHD;
      return TensorSpec{.dtype = type, .shape = {b, rows_first ? l : h, rows_first ? h : l, width}};
    };
    p.q = spec(heads, rows, d);
    p.k = spec(kv_heads, keys, d);
    p.v = spec(kv_heads, keys, dv);
    p.causal = Has("causal");
    p.alignment = MaskAlignment::kBottomRight;
    p.want_lse = Has("lse");
    if (const std::optional<std::string> window = ValueOf("window")) p.window_left = ReadNumber(*window);
    step.kernel.name = ValueOf("kernel").value_or("");
    return step;
  }

  std::vector<std::string> parts_;
  std::vector<Word> words_;
  std::string rule_;
};

}  // namespace

absl::StatusOr<DeclaredShape> ParseShape(const std::string& text, std::string_view field) {
  const std::string shown = text.size() <= kMaxShapeText ? text : absl::StrCat(text.substr(0, kMaxShapeText), "...");
  absl::StatusOr<Step> step = Reader(text).Read();
  if (!step.ok()) return InvalidField(field, shown, {step.status().message().data(), step.status().message().size()});
  const absl::Status valid = std::visit([](const auto& s) { return Validate(s.problem).status(); }, *step);
  if (!valid.ok()) return InvalidField(field, shown, {valid.message().data(), valid.message().size()});
  return DeclaredShape{text, *std::move(step)};
}

absl::StatusOr<std::vector<DeclaredShape>> ParseShapes(absl::Span<const std::string> texts, std::string_view field) {
  if (texts.size() > kMaxDeclaredShapes) {
    return InvalidField(field, absl::StrCat(texts.size(), " shapes"),
                        absl::StrCat("must be at most ", kMaxDeclaredShapes));
  }
  std::vector<DeclaredShape> shapes;
  for (const std::string& text : texts) {
    KERND_ASSIGN_OR_RETURN(DeclaredShape shape, ParseShape(text, field));
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

absl::StatusOr<Step> WithZeros(Step step) {
  const std::vector<NamedSpec> specs = std::visit([](const auto& s) { return OperandSpecs(s); }, step);
  std::int64_t largest = 0;
  for (const NamedSpec& named : specs) largest = std::max(largest, named.spec ? named.spec->bytes() : 0);
  // Not written to: where the heap is new, all of it is the system's one page of zeros.
  const std::shared_ptr<std::byte> zeros(static_cast<std::byte*>(std::calloc(static_cast<std::size_t>(largest) + 1, 1)),
                                         [](std::byte* memory) { std::free(memory); });
  if (zeros == nullptr) return absl::ResourceExhaustedError(absl::StrCat("the system has no ", largest, " bytes"));
  std::visit(
      [&](auto& s) {
        std::size_t i = 0;
        for (Operand* operand : s.operands()) {
          const std::optional<TensorSpec>& spec = specs[i++].spec;
          if (!spec) continue;
          operand->runs = {{zeros.get(), static_cast<std::size_t>(spec->bytes())}};
          operand->owner = zeros;
        }
      },
      step);
  return step;
}

}  // namespace kernd::core
