// Manual pages in the language of man(7), made when the programs are built, from the tables that their --help is made
// from: a page cannot lack an option.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kernd::man {

// A term and what is to be said of it. Text is plain: what roff would act upon is escaped.
struct Entry {
  std::string term, text;
};

struct Section {
  std::string title;
  bool sub = false;  // below the section before
  std::vector<std::string> paragraphs;
  std::vector<Entry> entries;
  std::vector<std::string> lines;  // kept as they are, one below the other
};

struct Page {
  std::string name;
  int number = 1;  // of the manual's part
  std::string summary;
  std::string date, version;
  std::vector<std::string> synopsis;  // what follows the name
  std::vector<Section> sections;
  std::vector<std::pair<std::string, int>> see_also;
};

std::string Roff(const Page& page);

// The generators' main: `make` gets date and version from the command line; the page goes to standard output.
int Main(int argc, char** argv, Page (*make)());

}  // namespace kernd::man
