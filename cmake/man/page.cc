#include "cmake/man/page.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace kernd::man {
namespace {

// Inside of a line.
std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";  // a minus: so that options can be copied
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '`') {
      out += "\\(ga";
    } else {
      out += c;
    }
  }
  return out;
}

// Whole lines: one that begins like a request is none.
std::string Lines(const std::string& text) {
  std::string out = Escaped(text);
  for (std::size_t at = 0; at < out.size(); at = out.find('\n', at) + 1) {
    if (out[at] == '.') out.insert(at, "\\&");
    if (out.find('\n', at) == std::string::npos) break;
  }
  return out + "\n";
}

// An argument of a request.
std::string Quoted(const std::string& text) {
  std::string out = Escaped(text);
  for (std::size_t at = 0; (at = out.find('"', at)) != std::string::npos; at += 4) out.replace(at, 1, "\\(dq");
  return "\"" + out + "\"";
}

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string Body(const Section& section) {
  std::string out =
      std::string(section.sub ? ".SS " : ".SH ") + Quoted(section.sub ? section.title : Upper(section.title)) + "\n";
  bool first = true;
  for (const std::string& paragraph : section.paragraphs) {
    out += (first ? "" : ".PP\n") + Lines(paragraph);
    first = false;
  }
  for (const Entry& entry : section.entries) out += ".TP\n.B " + Quoted(entry.term) + "\n" + Lines(entry.text);
  if (!section.lines.empty()) {
    if (!section.entries.empty() || !first) out += ".PP\n";
    out += ".nf\n";
    for (const std::string& line : section.lines) out += Lines(line);
    out += ".fi\n";
  }
  return out;
}

}  // namespace

std::string Roff(const Page& page) {
  const std::string number = std::to_string(page.number);
  std::string out = ".TH " + Quoted(Upper(page.name)) + " " + number + " \"" + page.date + "\" " +
                    Quoted("kernd " + page.version) + " " + Quoted("kernd manual") + "\n";
  out += ".SH \"NAME\"\n" + Escaped(page.name) + " \\- " + Lines(page.summary);
  out += ".SH \"SYNOPSIS\"\n";
  for (std::size_t i = 0; i < page.synopsis.size(); ++i) {
    out += (i > 0 ? ".br\n" : "") + std::string(".B ") + Quoted(page.name) + "\n" + Lines(page.synopsis[i]);
  }
  for (const Section& section : page.sections) out += Body(section);
  out += ".SH \"SEE ALSO\"\n";
  for (std::size_t i = 0; i < page.see_also.size(); ++i) {
    const auto& [name, part] = page.see_also[i];
    out += ".BR " + Quoted(name) + " (" + std::to_string(part) + ")" + (i + 1 < page.see_also.size() ? ",\n" : "\n");
  }
  return out;
}

int Main(int argc, char** argv, Page (*make)()) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DATE VERSION\n", argv[0]);
    return 1;
  }
  Page page = make();
  page.date = argv[1];
  page.version = argv[2];
  std::fputs(Roff(page).c_str(), stdout);
  return 0;
}

}  // namespace kernd::man
