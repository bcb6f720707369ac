#include "client/cli/verify/report.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_format.h"
#include "client/cli/report.h"
#include "client/cli/text.h"

namespace kernd::cli {
namespace {

using nlohmann::json;

constexpr char kGreen[] = "\x1b[32m", kRed[] = "\x1b[1;31m", kYellow[] = "\x1b[33m", kBold[] = "\x1b[1m",
               kPlain[] = "\x1b[0m";
// op, dtype, case, shape, kernel, max error, part of the tolerance
constexpr std::size_t kColumns = 7, kFirstNumber = 5;
constexpr std::array<const char*, kColumns> kHeads = {"op", "dtype", "case", "shape", "kernel", "max err", "err/tol"};

struct Look {
  const char *word, *color, *json;
};

Look LookOf(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed: return {"ok", kGreen, "passed"};
    case Verdict::kFailed: return {"FAILED", kRed, "failed"};
    case Verdict::kNotSupported: return {"not supported", kYellow, "not_supported"};
  }
  return {"", "", ""};
}

json ResultJson(const Case& c, const Result& r) {
  json row = {{"op", std::string(Name(c.op))},
              {"dtype", std::string(Name(c.dtype))},
              {"case", c.name},
              {"shape", c.shape},
              {"kernel", r.kernel},
              {"verdict", LookOf(r.verdict).json}};
  if (!r.why.empty()) row["why"] = r.why;
  if (!r.compared) return row;
  row["max_abs_error"] = r.max_abs;
  row["mean_abs_error"] = r.mean_abs;
  row["error_over_tolerance"] = r.of_tolerance;
  row["elements"] = r.elements;
  row["mismatches"] = r.mismatches;
  row["repeatable"] = r.repeated;
  if (r.causal) row["causal"] = *r.causal;
  if (r.first_wrong) {
    const WrongElement& w = *r.first_wrong;
    row["first_mismatch"] = {
        {"tensor", w.tensor}, {"index", w.index}, {"actual", w.actual}, {"expected", w.expected}, {"bound", w.bound}};
  }
  return row;
}

// What brings back the failure alone.
std::string Reproduce(const Case& c, const Result& r, std::uint64_t seed) {
  std::string command = absl::StrFormat("kernctl verify --op %s --dtype %s --filter '%s %s' --seed %d",
                                        std::string(Name(c.op)), std::string(Name(c.dtype)), c.name, c.shape, seed);
  return r.kernel.empty() ? command : command + " --kernel " + r.kernel;
}

}  // namespace

VerifyReport::VerifyReport(const Context& context, const std::vector<Case>& cases,
                           const std::vector<std::string>& kernels, std::uint64_t seed)
    : context_(context), seed_(seed), widths_(kColumns) {
  for (std::size_t i = 0; i < kColumns; ++i) widths_[i] = std::string(kHeads[i]).size();
  const auto widen = [&](std::size_t column, std::size_t width) { widths_[column] = std::max(widths_[column], width); };
  for (const Case& c : cases) {
    widen(0, Name(c.op).size());
    widen(1, Name(c.dtype).size());
    widen(2, c.name.size());
    widen(3, c.shape.size());
  }
  for (const std::string& kernel : kernels) widen(4, Printable(kernel).size());
  widen(5, 8);  // "1.23e-05"
  if (!context.json) PrintRow({kHeads.begin(), kHeads.end()}, "", kBold);
}

void VerifyReport::PrintRow(const std::vector<std::string>& cells, const std::string& verdict, const char* color) {
  std::string line;
  for (std::size_t i = 0; i < kColumns; ++i) {
    const std::string cell = Printable(cells[i]);
    const std::string fill(widths_[i] - std::min(widths_[i], cell.size()), ' ');
    line += i >= kFirstNumber ? fill + cell : cell + fill;
    line += "  ";
  }
  const bool colored = context_.terminal.colors;
  if (verdict.empty()) {  // the heads
    line.erase(line.find_last_not_of(' ') + 1);
    context_.out << (colored ? color + line + kPlain : line) << '\n';
  } else {
    context_.out << line << (colored ? color + verdict + kPlain : verdict) << '\n';
  }
}

void VerifyReport::Add(const Case& c, const Result& r) {
  switch (r.verdict) {
    case Verdict::kPassed: ++tally_.passed; break;
    case Verdict::kFailed: ++tally_.failed; break;
    case Verdict::kNotSupported: ++tally_.not_supported; break;
  }
  tally_.repeated += r.verdict == Verdict::kPassed && r.repeated;
  tally_.causal += r.verdict == Verdict::kPassed && r.causal.value_or(false);
  if (context_.json) {
    rows_.push_back(ResultJson(c, r));
    return;
  }
  const Look look = LookOf(r.verdict);
  PrintRow({std::string(Name(c.op)), std::string(Name(c.dtype)), c.name, c.shape, r.kernel.empty() ? "-" : r.kernel,
            r.compared ? absl::StrFormat("%.2e", r.max_abs) : "-",
            r.compared ? absl::StrFormat("%.3f", r.of_tolerance) : "-"},
           look.word, look.color);
  if (!r.why.empty()) context_.out << "    " << Printable(r.why) << '\n';
  if (r.verdict == Verdict::kFailed) context_.out << "    again: " << Printable(Reproduce(c, r, seed_)) << '\n';
  context_.out.flush();
}

void VerifyReport::Finish(absl::Duration spent) {
  const Tally& t = tally_;
  if (context_.json) {
    PrintJson(context_, {{"seed", seed_},
                         {"cases", rows_},
                         {"summary",
                          {{"passed", t.passed},
                           {"failed", t.failed},
                           {"not_supported", t.not_supported},
                           {"seconds", absl::ToDoubleSeconds(spent)}}}});
    return;
  }
  const std::string sum =
      absl::StrFormat("%d passed, %d failed, %d not supported", t.passed, t.failed, t.not_supported);
  const char* const color = t.failed > 0 ? kRed : t.passed > 0 ? kGreen : kYellow;
  context_.out << '\n';
  if (t.repeated > 0) {
    context_.out << absl::StrFormat("%d calls were made again: the same bits.", t.repeated);
    if (t.causal > 0) {
      context_.out << absl::StrFormat(" %d with another future: no earlier row noticed.", t.causal);
    }
    context_.out << '\n';
  }
  context_.out << (context_.terminal.colors ? color + sum + kPlain : sum)
               << absl::StrFormat(" in %.1f s (seed %d)\n", absl::ToDoubleSeconds(spent), seed_);
}

}  // namespace kernd::cli
