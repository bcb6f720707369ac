// TARGET [--write-seeds FOLDER] [--seconds S] [--seed N] [--dict FILE] [CORPUS FOLDER OR FILE]...
//
// The driver without libFuzzer: runs the seeds and the corpus, then inputs mutated from them for S seconds. An input
// that ends the program is left in the working folder as crash-TARGET, to be looked at and kept in the corpus.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"

namespace kernd::fuzz {
namespace {

namespace fs = std::filesystem;

// What the handler of signals writes, and where to.
std::string_view current;
std::string crash_file;

extern "C" void Keep(int signal) {
  const int fd = open(crash_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
  if (fd >= 0 && write(fd, current.data(), current.size()) >= 0) {
    constexpr char kKept[] = "the input is kept as ";
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, kKept, sizeof(kKept) - 1);
    written = write(STDERR_FILENO, crash_file.data(), crash_file.size());
    written = write(STDERR_FILENO, "\n", 1);
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void RunOne(std::string_view input) {
  current = input;
  Run(input);
}

std::vector<std::string> ReadCorpus(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const std::string& path : paths) {
    Require(fs::exists(path), path + " exists");
    if (!fs::is_directory(path))
      files.emplace_back(path);
    else
      files.insert(files.end(), fs::directory_iterator(path), fs::directory_iterator());
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

int Main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t seed = 1;
  std::vector<std::string> paths, dictionary;
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (!arg.starts_with("--")) {
      paths.emplace_back(arg);
      continue;
    }
    Require(i + 1 < argc, std::string(arg) + " has a value");
    const char* const value = argv[++i];
    if (arg == "--write-seeds") return WriteSeeds(value), 0;
    if (arg == "--seconds")
      seconds = std::strtod(value, nullptr);
    else if (arg == "--seed")
      seed = std::strtoull(value, nullptr, 10);
    else if (arg == "--dict")
      dictionary = ReadDictionary(value);
    else
      Require(false, "options are known: " + std::string(arg));
  }
  crash_file = "crash-" + fs::path(argv[0]).filename().string();
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, Keep);

  std::vector<std::string> corpus = ReadCorpus(paths);
  const std::size_t kept = corpus.size();
  for (std::string& input : Seeds()) corpus.push_back(std::move(input));
  for (const std::string& input : corpus) RunOne(input);

  std::mt19937_64 random(seed);
  std::int64_t runs = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; ++runs) RunOne(Mutate(random, corpus, dictionary));
  std::printf("%zu inputs of the corpus, %zu seeds, %lld mutated inputs from seed %llu: no rule broken\n", kept,
              corpus.size() - kept, static_cast<long long>(runs), static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace
}  // namespace kernd::fuzz

int main(int argc, char** argv) {
  return kernd::fuzz::Main(argc, argv);
}
