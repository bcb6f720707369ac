#include "kernd/kernels/tuning.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernd/kernels/error.h"
#include "kernd/kernels/gpu.h"

namespace kernd {
namespace {

constexpr char kFirstLine[] = "kernd tuning 2";

absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
}

// What may stand in a line: printable, so that a text can be shown in a log as it is.
bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

std::string Shown(std::string_view text) {
  std::string out(text.substr(0, 200));
  for (char& c : out) c = c >= ' ' && c <= '~' ? c : '?';
  return out;
}

bool IsWord(std::string_view text) {
  return !text.empty() && text.find(' ') == std::string_view::npos;
}

// The lines of a text. The first rule that one breaks is kept; after it there are no more.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  std::optional<std::string_view> Next() {
    if (!status_.ok() || rest_.empty()) return std::nullopt;
    ++number_;
    const std::size_t end = rest_.substr(0, kMaxTuningLine + 1).find('\n');
    if (end == std::string_view::npos) {
      Break(rest_.size() > kMaxTuningLine ? absl::StrCat("must be at most ", kMaxTuningLine, " bytes")
                                          : std::string("must end with a new line"));
      return std::nullopt;
    }
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (!IsPrintable(line)) {
      Break("must hold printable ASCII");
      return std::nullopt;
    }
    return line;
  }

  // The value of the line "NAME VALUE", which must come next.
  std::string_view Value(std::string_view name) {
    const std::optional<std::string_view> line = Next();
    if (line && line->size() > name.size() && line->substr(0, name.size()) == name && (*line)[name.size()] == ' ') {
      return line->substr(name.size() + 1);
    }
    if (status_.ok()) Break(absl::StrCat("must be \"", View(name), " ...\""));
    return "";
  }

  void Break(std::string rule) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("line ", std::max(number_, 1), ": ", rule));
  }
  const absl::Status& status() const { return status_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  int number_ = 0;
  absl::Status status_;
};

// Bytes that every row starts at a multiple of, at most 16.
std::string Alignment(std::int64_t stride, DataType dtype) {
  const std::int64_t bytes = stride * ElementBytes(dtype);
  return absl::StrCat(bytes == 0 ? 16 : std::min<std::int64_t>(bytes & -bytes, 16));
}

std::string TypeText(DataType type) {
  return std::string(Token(type));
}

void AppendIf(bool condition, const char* word, std::string& key) {
  if (condition) absl::StrAppend(&key, "/", word);
}

// The lines of a version, in their order.
std::array<std::pair<const char*, std::string>, 5> Parts(const TuningVersion& version) {
  return {{{"device", version.device},
           {"processors", absl::StrCat(version.processors)},
           {"driver", absl::StrCat(version.driver)},
           {"library", version.kernel_library},
           {"build", version.build}}};
}

std::string TileSuffix(const std::optional<Tile>& tile) {
  return tile ? "@" + TileText(*tile) : std::string();
}

// "KERNEL" or "KERNEL@MxNxK", as TileSuffix has it and no other way.
bool ReadKernel(std::string_view word, TunedChoice& choice) {
  const std::size_t at = word.find('@');
  choice.kernel = std::string(word.substr(0, at));
  if (!IsWord(choice.kernel)) return false;
  if (at == std::string_view::npos) return true;
  const std::vector<absl::string_view> sizes = absl::StrSplit(View(word.substr(at + 1)), 'x');
  Tile tile;
  if (sizes.size() != 3 || !absl::SimpleAtoi(sizes[0], &tile.m) || !absl::SimpleAtoi(sizes[1], &tile.n) ||
      !absl::SimpleAtoi(sizes[2], &tile.k) || tile.m <= 0 || tile.n <= 0 || tile.k <= 0) {
    return false;
  }
  choice.tile = tile;
  return TileSuffix(tile) == View(word.substr(at));
}

template <typename Problem, typename Geometry>
const TunedChoice* Find(const TunedChoices* choices, const Problem& p, const Geometry& g) {
  if (choices == nullptr || choices->empty()) return nullptr;
  const auto found = choices->find(TuningKey(p, g));
  return found == choices->end() ? nullptr : &found->second;
}

}  // namespace

TuningVersion Printable(TuningVersion version) {
  for (std::string* text : {&version.device, &version.kernel_library, &version.build}) {
    *text = text->empty() ? "none" : Shown(*text);
  }
  return version;
}

TuningVersion TuningVersionOf(const DeviceInfo& device, std::string_view build) {
  return Printable({.device = device.name,
                    .processors = device.multiprocessors,
                    .driver = device.driver_version,
                    .kernel_library = absl::StrCat("cublaslt ", device.cublaslt_version),
                    .build = std::string(build)});
}

std::string TuningKey(const MatmulProblem& p, const MatmulGeometry& g) {
  const auto repeats = [&](const Dims& strides) {
    return std::any_of(strides.begin(), strides.end(), [](std::int64_t stride) { return stride == 0; });
  };
  std::string key =
      absl::StrCat("matmul/", TypeText(p.a.dtype), "/", g.m, "x", g.n, "x", g.k, "/b", g.batch, "/",
                   p.transpose_a ? "t" : "n", p.transpose_b ? "t" : "n", "/a", Alignment(g.lda, p.a.dtype), "b",
                   Alignment(g.ldb, p.b.dtype), "/to-", TypeText(g.output_dtype));
  if (p.b.dtype != p.a.dtype) absl::StrAppend(&key, "/by-", TypeText(p.b.dtype));
  AppendIf(g.batch > 1 && repeats(g.a_batch_strides), "same-a", key);
  AppendIf(g.batch > 1 && repeats(g.b_batch_strides), "same-b", key);
  AppendIf(p.beta != 0, "c", key);
  if (p.bias) absl::StrAppend(&key, "/bias-", TypeText(p.bias->dtype));
  AppendIf(p.alpha != 1, "alpha", key);
  if (p.activation != Activation::kNone) absl::StrAppend(&key, "/", View(Name(p.activation)));
  if (p.a_scale) absl::StrAppend(&key, "/scale-a", static_cast<int>(p.a_scale->kind));
  if (p.b_scale) absl::StrAppend(&key, "/scale-b", static_cast<int>(p.b_scale->kind));
  AppendIf(p.numerics == Numerics::kTf32, "tf32", key);
  return key;
}

std::string TuningKey(const AttentionProblem& p, const AttentionGeometry& g) {
  std::int64_t rows = 0, keys = 0;
  for (const AttentionSequence& s : g.sequences) {
    rows += s.q_rows;
    keys += s.kv_length;
  }
  std::string key = absl::StrCat("attention/", TypeText(p.q.dtype), "/", g.batch, "x", g.q_heads, ",", g.kv_heads, "x",
                                 g.max_q_rows, ",", g.max_kv_length, "x", g.head_dim, ",", g.v_head_dim, "/sum", rows,
                                 ",", keys, "/to-", TypeText(g.output_dtype));
  if (p.layout != AttentionLayout::kBHLD) absl::StrAppend(&key, "/layout", static_cast<int>(p.layout));
  if (g.window_left) absl::StrAppend(&key, "/left", *g.window_left);
  if (g.window_right) absl::StrAppend(&key, "/right", *g.window_right);
  AppendIf(p.mask.has_value(), "mask", key);
  if (p.bias) absl::StrAppend(&key, "/bias-", TypeText(p.bias->dtype));
  AppendIf(p.softcap.has_value(), "softcap", key);
  AppendIf(!p.alibi_slopes.empty(), "slopes", key);
  AppendIf(!p.sinks.empty(), "sinks", key);
  AppendIf(!p.q_scale.empty() || !p.k_scale.empty() || !p.v_scale.empty(), "scales", key);
  AppendIf(p.want_lse, "lse", key);
  return key;
}

const TunedChoice* FindTuned(const TunedChoices* choices, const MatmulProblem& p, const MatmulGeometry& g) {
  return p.numerics == Numerics::kBatchInvariant ? nullptr : Find(choices, p, g);
}

const TunedChoice* FindTuned(const TunedChoices* choices, const AttentionProblem& p, const AttentionGeometry& g) {
  return Find(choices, p, g);
}

std::string TuningText(const TuningVersion& version, const TunedChoices& choices) {
  std::string text = absl::StrCat(kFirstLine, "\n");
  for (const auto& [name, value] : Parts(version)) absl::StrAppend(&text, name, " ", value, "\n");
  for (const auto& [key, choice] : choices) {
    absl::StrAppend(&text, "choice ", key, " ", choice.kernel, TileSuffix(choice.tile), " ",
                    absl::StrFormat("%.17g", choice.microseconds), "\n");
  }
  absl::StrAppend(&text, "end ", choices.size(), "\n");
  return text;
}

absl::StatusOr<TunedChoices> ParseTuningText(std::string_view text, const TuningVersion& version) {
  if (text.size() > kMaxTuningBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is ", text.size(), " bytes: must be at most ", kMaxTuningBytes));
  }
  Lines lines(text);
  if (const auto first = lines.Next(); first && *first != kFirstLine) {
    if (first->substr(0, 13) == std::string_view(kFirstLine).substr(0, 13)) {
      return absl::FailedPreconditionError("it is of another version of the format");
    }
    lines.Break(absl::StrCat("must be \"", kFirstLine, "\""));
  } else if (!first) {
    lines.Break("must be there");
  }
  std::string stale;
  for (const auto& [name, wanted] : Parts(version)) {
    const std::string_view got = lines.Value(name);
    KERND_RETURN_IF_ERROR(lines.status());
    if (got != wanted && stale.empty()) {
      stale = absl::StrCat(name, " is ", View(got), ": here it is ", wanted);
    }
  }
  TunedChoices choices;
  while (const std::optional<std::string_view> line = lines.Next()) {
    if (line->substr(0, 4) == "end ") {
      if (line->substr(4) != absl::StrCat(choices.size())) lines.Break("must give the number of choices");
      if (!lines.empty()) lines.Break("must be the last");
      KERND_RETURN_IF_ERROR(lines.status());
      if (!stale.empty()) return absl::FailedPreconditionError(stale);
      return choices;
    }
    // choice KEY KERNEL[@MxNxK] MICROSECONDS
    const std::size_t key_at = 7, key_end = line->substr(0, key_at) == "choice " ? line->find(' ', key_at) : 0;
    const std::size_t kernel_end =
        key_end == 0 || key_end == std::string_view::npos ? std::string_view::npos : line->find(' ', key_end + 1);
    double microseconds = 0;
    if (kernel_end == std::string_view::npos || !absl::SimpleAtod(View(line->substr(kernel_end + 1)), &microseconds) ||
        !IsWord(line->substr(kernel_end + 1)) || !std::isfinite(microseconds) || microseconds <= 0) {
      lines.Break("must be \"choice KEY KERNEL[@MxNxK] MICROSECONDS\" or \"end NUMBER\"");
      break;
    }
    const std::string_view key = line->substr(key_at, key_end - key_at);
    TunedChoice choice{.microseconds = microseconds};
    if (!IsWord(key) || !ReadKernel(line->substr(key_end + 1, kernel_end - key_end - 1), choice)) {
      lines.Break("must be \"choice KEY KERNEL[@MxNxK] MICROSECONDS\" or \"end NUMBER\"");
    } else if (choices.size() == kMaxTunedChoices) {
      lines.Break(absl::StrCat("must be \"end\": at most ", kMaxTunedChoices, " choices"));
    } else if (!choices.try_emplace(std::string(key), std::move(choice)).second) {
      lines.Break("must be for another problem than the lines before");
    }
  }
  lines.Break("must be followed by \"end NUMBER\"");
  return lines.status();
}

}  // namespace kernd
