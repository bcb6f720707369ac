// Text for people: aligned columns, sizes, bars.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace kernd::cli {

class Table {
 public:
  enum class Align { kLeft, kRight };

  // One alignment for each column; further columns are left-aligned.
  explicit Table(std::vector<Align> alignments = {}) : alignments_(std::move(alignments)) {}

  // Cells hold foreign text as well: Printable makes it fit for a terminal.
  void Add(std::vector<std::string> cells);
  // Each row on a line, `indent` spaces before it, two between columns, none after the last.
  void Print(std::ostream& out, int indent = 0) const;

 private:
  std::vector<Align> alignments_;
  std::vector<std::vector<std::string>> rows_;
};

// "0 B", "1023 B", "1.5 KiB", ...
std::string FormatBytes(std::int64_t bytes);

// With `digits` after the point.
std::string FormatNumber(double value, int digits);

// A bar of at most `width` characters, as long as `part` is of `whole`; at least one where `part` is not 0.
std::string Bar(double part, double whole, int width);

std::string Join(const std::vector<std::string>& parts, const char* separator);

}  // namespace kernd::cli
