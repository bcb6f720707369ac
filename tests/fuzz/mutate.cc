#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <fstream>
#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {
namespace {

// Where lengths and signs turn.
constexpr std::string_view kEdges[] = {{"\0", 1},
                                       "\x01",
                                       "\x7f",
                                       "\x80",
                                       "\xff",
                                       "\xff\xff\xff\xff\x0f",
                                       "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                                       "\x80\x80\x80\x80\x80\x80\x80\x80\x40",
                                       "-1",
                                       "0",
                                       "4294967296",
                                       "9223372036854775807",
                                       "18446744073709551616",
                                       "nan",
                                       "1e999"};

std::size_t Below(std::mt19937_64& random, std::size_t end) {
  return end == 0 ? 0 : static_cast<std::size_t>(random() % end);
}

void MutateOnce(std::mt19937_64& random, const std::vector<std::string>& corpus,
                const std::vector<std::string>& dictionary, std::string& text) {
  const std::size_t at = Below(random, text.size() + 1);
  const std::size_t length = std::min(text.size() - at, Below(random, 16) + 1);
  switch (Below(random, dictionary.empty() ? 7 : 9)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << Below(random, 8));
      break;
    case 1:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 2: text.erase(at, length); break;
    case 3: text.insert(at, text.substr(Below(random, text.size()), length)); break;
    case 4: text.insert(at, kEdges[Below(random, std::size(kEdges))]); break;
    case 5: text.replace(at, length, kEdges[Below(random, std::size(kEdges))]); break;
    case 6: {  // the start of this one and the end of another
      const std::string& other = corpus[Below(random, corpus.size())];
      text.replace(at, std::string::npos, other, Below(random, other.size()));
      break;
    }
    case 7: text.insert(at, dictionary[Below(random, dictionary.size())]); break;
    case 8: text.replace(at, length, dictionary[Below(random, dictionary.size())]); break;
  }
}

std::string Unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else if (text[i + 1] == 'x' && i + 3 < text.size()) {
      out += static_cast<char>(std::stoi(std::string(text.substr(i + 2, 2)), nullptr, 16));
      i += 3;
    } else {
      out += text[++i];
    }
  }
  return out;
}

}  // namespace

std::string Mutate(std::mt19937_64& random, const std::vector<std::string>& corpus,
                   const std::vector<std::string>& dictionary) {
  std::string text = corpus[Below(random, corpus.size())];
  for (std::size_t left = Below(random, 4) + 1; left > 0; --left) MutateOnce(random, corpus, dictionary, text);
  text.resize(std::min(text.size(), kMaxInput));
  return text;
}

std::vector<std::string> ReadDictionary(const std::string& path) {
  std::ifstream file(path);
  Require(file.good(), "the dictionary " + path + " can be read");
  std::vector<std::string> words;
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find('"'), last = line.rfind('"');
    if (line.empty() || line.front() == '#') continue;
    Require(first != last, "a line of " + path + " is a word in quotes: " + line);
    words.push_back(Unescape(std::string_view(line).substr(first + 1, last - first - 1)));
  }
  return words;
}

}  // namespace kernd::fuzz
