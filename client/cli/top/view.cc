#include "client/cli/top/view.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/cli/table.h"
#include "client/cli/text.h"

namespace kernd::cli::top {
namespace {

constexpr char kBold[] = "\x1b[1m", kRed[] = "\x1b[1;31m", kYellow[] = "\x1b[33m", kPlain[] = "\x1b[0m";

struct Line {
  std::string text;
  const char* color = "";
};

// A part of the screen with rows of falling importance.
struct Section {
  std::vector<Line> head;  // empty where there are no rows
  std::vector<Line> rows;
  std::size_t least = 0;  // rows that it is given before others get more
};

// The first `columns` of a text that Printable has made; one column a code point.
std::string Clip(const std::string& text, int columns) {
  std::size_t at = 0;
  for (int used = 0; at < text.size(); ++at) {
    const bool first = (static_cast<unsigned char>(text[at]) & 0xc0) != 0x80;
    if (first && used++ == columns) break;
  }
  return text.substr(0, at);
}

int Columns(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// `text` cut off or filled up to `columns`.
std::string Fit(const std::string& text, int columns) {
  const std::string clipped = Clip(text, columns);
  return clipped + std::string(static_cast<std::size_t>(std::max(0, columns - Columns(clipped))), ' ');
}

std::string UptimeText(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds);
  if (s < 60) return absl::StrFormat("%d s", s);
  if (s < 3600) return absl::StrFormat("%d min", s / 60);
  if (s < 86400) return absl::StrFormat("%d h %02d min", s / 3600, s / 60 % 60);
  return absl::StrFormat("%d d %02d h", s / 86400, s / 3600 % 24);
}

std::string ClockText(double seconds) {
  return absl::FormatTime("%H:%M:%S", absl::UnixEpoch() + absl::Seconds(seconds), absl::LocalTimeZone());
}

// The bar takes what name and sizes leave.
Line PoolLine(const PoolRow& pool, int width) {
  constexpr int kName = 9, kSizes = 25;
  const int room = std::clamp(width - kName - kSizes, 4, 20);
  const std::string bar = Bar(static_cast<double>(pool.used), static_cast<double>(pool.limit), room);
  std::string text = absl::StrCat(Fit(Printable(pool.name), kName), "[", bar,
                                  std::string(static_cast<std::size_t>(room) - bar.size(), '.'), "] ",
                                  FormatBytes(pool.used), " of ", FormatBytes(pool.limit));
  if (pool.peak > 0) absl::StrAppend(&text, ", at most ", FormatBytes(pool.peak));
  return {std::move(text)};
}

std::vector<Line> Heading(const Snapshot& s, const Rates& rates, const ViewOptions& options) {
  const bool ready = s.state == "ready";
  const bool well = ready && options.note.empty();
  std::string state = s.state;
  if (!ready && !s.why.empty()) absl::StrAppend(&state, " (", s.why, ")");
  const std::string right = options.note.empty() ? ClockText(s.time) : options.note;
  const int left = std::max(0, options.width - Columns(Printable(right)) - 2);
  const auto first_of = [&](const std::string& where) {
    return Printable(absl::StrCat("kernd ", s.version, ", ", where, state, ", up ", UptimeText(s.uptime)));
  };
  std::string first = first_of(absl::StrCat(s.device.empty() ? s.backend : s.device, ", ", options.address, ", "));
  if (Columns(first) > left) first = first_of("");  // how it is matters more than where
  std::vector<Line> lines = {{Fit(first, left) + "  " + Printable(right), well ? kBold : kYellow}};
  lines.push_back({absl::StrFormat("calls   %.1f a second, %d since the start, %d failed; %d in flight, %d queued",
                                   rates.calls, s.calls, s.failed, s.in_flight, s.queued)});
  lines.push_back({absl::StrFormat("process %.2f CPUs, %s resident, %d threads, %d of %d descriptors", rates.cpu,
                                   FormatBytes(s.resident_bytes), s.threads, s.open_fds, s.max_fds)});
  for (const PoolRow& pool : s.pools) lines.push_back(PoolLine(pool, options.width));
  lines.push_back(PoolLine(s.bodies, options.width));
  return lines;
}

Section LatencySection(const Snapshot& s) {
  Section section{.least = 3};
  for (const LatencyRow& row : s.latency) {
    if (row.recent == 0) continue;
    section.rows.push_back(
        {absl::StrFormat("%-10s%10s%10s%10s%10s%10d", Clip(Printable(row.stage), 10), SecondsText(row.p50),
                         SecondsText(row.p90), SecondsText(row.p99), SecondsText(row.max), row.recent)});
  }
  section.head = {{},
                  {absl::StrFormat("%-10s%10s%10s%10s%10s%10s  (last %.0f s)", "stage", "p50", "p90", "p99", "max",
                                   "calls", s.recent_seconds),
                   kBold}};
  return section;
}

// Columns of the tables that count. The name's takes what the others leave.
struct CountColumns {
  explicit CountColumns(int width)
      : word(width < kNarrow ? 9 : 20),
        number(width < kNarrow ? 8 : 10),
        name(std::clamp(width - word - 2 * number, 12, 44)) {}

  static constexpr int kNarrow = 60;
  int word, number, name;
};

// `columns` wide, the last one empty.
std::string Cell(const std::string& text, int columns) {
  return Fit(Fit(Printable(text), columns - 1), columns);
}

Line MethodLine(const std::string& method, const std::string& code, const std::string& recent, const std::string& total,
                int width, const char* color) {
  const CountColumns c(width);
  return {absl::StrCat(Cell(method, c.name), Cell(code, c.word),
                       absl::StrFormat("%*s%*s", c.number, recent, c.number, total)),
          color};
}

Line KernelLine(const std::string& kernel, const std::string& total, int width, const char* color) {
  const CountColumns c(width);
  return {absl::StrCat(Cell(kernel, c.name + c.word + c.number), absl::StrFormat("%*s", c.number, total)), color};
}

Section MethodSection(const Snapshot& s, int width) {
  std::vector<MethodRow> rows = s.methods;
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.recent != b.recent ? a.recent > b.recent : a.total > b.total;
  });
  Section section{.head = {{}, MethodLine("method", "code", "recent", "calls", width, kBold)}, .least = 2};
  for (const MethodRow& row : rows) {
    section.rows.push_back(MethodLine(row.method, row.code, absl::StrCat(row.recent), absl::StrCat(row.total), width,
                                      row.code == "OK" ? "" : kYellow));
  }
  return section;
}

Section KernelSection(const Snapshot& s, int width) {
  std::vector<KernelRow> rows = s.kernels;
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.total > b.total; });
  Section section{.head = {{}, KernelLine("kernel", "calls", width, kBold)}, .least = 2};
  for (const KernelRow& row : rows) {
    if (row.total > 0) section.rows.push_back(KernelLine(row.name, absl::StrCat(row.total), width, ""));
  }
  return section;
}

Section ErrorSection(const Snapshot& s) {
  Section section{.head = {{}, {"errors, newest first", kBold}}, .least = 2};
  for (const ErrorRow& row : s.errors) {
    section.rows.push_back(
        {Printable(absl::StrCat(ClockText(row.time), " ", row.method, " ", row.code, ": ", row.message)),
         row.fault ? kRed : ""});
  }
  return section;
}

// How many rows of each section are shown in `room` lines: first the least of each, in order, then the rest, in order.
std::vector<std::size_t> Share(const std::vector<Section>& sections, std::size_t room) {
  std::vector<std::size_t> shares(sections.size(), 0);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const std::size_t head = sections[i].head.size(), rows = sections[i].rows.size();
    if (rows == 0 || room <= head) continue;
    shares[i] = std::min({rows, sections[i].least, room - head});
    room -= head + shares[i];
  }
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (shares[i] == 0) continue;
    const std::size_t more = std::min(sections[i].rows.size() - shares[i], room);
    shares[i] += more;
    room -= more;
  }
  return shares;
}

}  // namespace

std::string SecondsText(double seconds) {
  const double us = seconds * 1e6;
  if (us < 999.5) return absl::StrFormat("%.0f us", us);
  if (us < 999.5e3) return absl::StrFormat("%.*f ms", us < 99.5e3 ? 2 : 0, us / 1e3);
  return absl::StrFormat("%.1f s", seconds);
}

std::vector<std::string> View(const Snapshot& now, const Rates& rates, const ViewOptions& options) {
  std::vector<Line> lines = Heading(now, rates, options);
  const std::vector<Section> sections = {LatencySection(now), MethodSection(now, options.width),
                                         KernelSection(now, options.width), ErrorSection(now)};
  const auto height = static_cast<std::size_t>(options.height > 0 ? options.height : 1 << 20);
  const std::vector<std::size_t> shares = Share(sections, height - std::min(height, lines.size()));
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (shares[i] == 0) continue;
    lines.insert(lines.end(), sections[i].head.begin(), sections[i].head.end());
    lines.insert(lines.end(), sections[i].rows.begin(),
                 sections[i].rows.begin() + static_cast<std::ptrdiff_t>(shares[i]));
  }
  if (lines.size() > height) lines.resize(height);
  std::vector<std::string> out;
  for (const Line& line : lines) {
    std::string text = Clip(line.text, options.width);
    text.erase(text.find_last_not_of(' ') + 1);
    const bool colored = options.colors && *line.color != '\0' && !text.empty();
    out.push_back(colored ? line.color + text + kPlain : text);
  }
  return out;
}

}  // namespace kernd::cli::top
