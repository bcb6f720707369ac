// kernctl(1), from the command line's own options.
#include <sstream>

#include "CLI/CLI.hpp"
#include "client/cli/app.h"
#include "cmake/man/page.h"

namespace {

using kernd::man::Entry;
using kernd::man::Page;
using kernd::man::Section;

// CLI11 writes a closed list of values into the name of their type: "TEXT:{none,relu}" is "none|relu".
std::string ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.rfind('}');
  if (begin != std::string::npos && end != std::string::npos && begin < end) {
    type = type.substr(begin + 1, end - begin - 1);
    for (char& c : type) c = c == ',' ? '|' : c;
  }
  return type;
}

Entry EntryOf(const CLI::Option& option) {
  const bool positional = option.nonpositional() == false;
  Entry entry{option.get_name(positional, !positional), option.get_description()};
  for (std::size_t at = 0; (at = entry.term.find(',', at)) != std::string::npos; at += 2)
    entry.term.insert(at + 1, " ");
  const std::string value = ValueOf(option);
  if (!value.empty()) entry.term += " " + value;
  const auto say = [&entry](const std::string& text) {
    entry.text += (entry.text.empty() || entry.text.back() == '.' ? "" : ".") + std::string("\n") + text;
  };
  if (!option.get_default_str().empty()) say("Default: " + option.get_default_str() + ".");
  if (!option.get_envname().empty()) say("Variable: " + option.get_envname() + ".");
  if (!entry.text.empty() && entry.text.back() != '.') entry.text += ".";
  return entry;
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Section SectionOf(const CLI::App& app, const std::string& title, bool sub) {
  Section section{.title = title, .sub = sub};
  if (sub) section.paragraphs = {app.get_description() + "."};
  for (const CLI::Option* option : app.get_options()) section.entries.push_back(EntryOf(*option));
  if (sub) section.lines = LinesOf(app.get_footer());
  return section;
}

Page Make() {
  Page page{.name = "kernctl",
            .number = 1,
            .summary = "ask a kernd daemon for matrix products and attention, and look after it"};
  page.synopsis = {"[OPTIONS] COMMAND [COMMAND OPTIONS]"};
  page.see_also = {{"kernd", 8}};
  kernd::cli::VisitOptions([&page](const CLI::App& app) {
    page.sections.push_back(
        {.title = "Description",
         .paragraphs = {"Results are on standard output, as text or with --json as JSON; errors are on standard error, "
                        "with --json as one object. Options of the program may follow a command as well."}});
    page.sections.push_back(SectionOf(app, "Options", false));
    page.sections.push_back({.title = "Commands"});
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      page.sections.push_back(SectionOf(*command, command->get_name(), true));
    }
    page.sections.push_back({.title = "Files and exit status", .lines = LinesOf(app.get_footer())});
  });
  return page;
}

}  // namespace

int main(int argc, char** argv) {
  return kernd::man::Main(argc, argv, Make);
}
