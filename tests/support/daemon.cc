#include "tests/support/daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>
#include <thread>

#include "tests/support/paths.h"

namespace kernd::testing {
namespace {

using Clock = std::chrono::steady_clock;

// Polls until `condition` holds; false after `seconds`.
bool Eventually(double seconds, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// This process's environment without what is for the tests alone: kernd would call it an unknown option.
std::vector<char*> Environment() {
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("KERND_TEST_")) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  return variables;
}

}  // namespace

bool OnGpu() {
  const char* backend = std::getenv("KERND_TEST_BACKEND");
  return backend != nullptr && std::string_view(backend) == "cuda";
}

std::string MemoryLimit(const std::string& bytes) {
  return (OnGpu() ? "--gpu-memory=" : "--memory-limit=") + bytes;
}

std::unique_ptr<Daemon> Daemon::Start(const std::vector<std::string>& flags, bool wait_ready,
                                      const std::vector<std::string>& runner) {
  std::unique_ptr<Daemon> daemon(new Daemon);
  char pattern[] = "/tmp/kernd-test-XXXXXX";
  if (mkdtemp(pattern) == nullptr) {
    ADD_FAILURE() << "mkdtemp: " << std::strerror(errno);
    return nullptr;
  }
  daemon->folder_ = pattern;
  const std::string ports = daemon->folder_ + "/ports", log = daemon->folder_ + "/log";
  const std::string program = ProgramPath("kernd");
  std::vector<std::string> words = {program,       "--listen", "127.0.0.1:0", "--http-listen",         "127.0.0.1:0",
                                    "--port-file", ports,      "--backend",   OnGpu() ? "cuda" : "cpu"};
  words.insert(words.begin(), runner.begin(), runner.end());
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  const int rc = posix_spawnp(&daemon->pid_, argv[0], &actions, nullptr, argv.data(), Environment().data());
  posix_spawn_file_actions_destroy(&actions);
  if (rc != 0) {
    ADD_FAILURE() << "cannot start " << program << ": " << std::strerror(rc);
    daemon->pid_ = -1;
    return nullptr;
  }
  const bool bound = Eventually(30, [&] { return std::filesystem::exists(ports) || daemon->Wait(0) >= 0; });
  std::istringstream lines(ReadFile(ports));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("grpc=")) daemon->grpc_ = line.substr(5);
    if (line.starts_with("http=")) daemon->http_ = line.substr(5);
  }
  if (!bound || daemon->grpc_.empty() ||
      (wait_ready && !Eventually(30, [&] { return HttpGet(daemon->http_, "/readyz").first == 200; }))) {
    ADD_FAILURE() << "kernd did not come up:\n" << daemon->Log();
    return nullptr;
  }
  return daemon;
}

Daemon::~Daemon() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void Daemon::Signal(int number) {
  if (pid_ > 0) kill(pid_, number);
}

int Daemon::Wait(double seconds) {
  int status = 0;
  const bool ended = Eventually(seconds, [&] { return pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_; });
  if (!ended) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int Daemon::Stop(double seconds) {
  Signal(SIGTERM);
  return Wait(seconds);
}

std::int64_t Daemon::StatusField(const char* name) const {
  std::ifstream in("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return -1;
}

std::int64_t Daemon::ResidentBytes() const {
  return StatusField("VmRSS");
}
std::int64_t Daemon::PeakResidentBytes() const {
  return StatusField("VmHWM");
}

double Daemon::CpuSeconds() const {
  const std::string stat = ReadFile("/proc/" + std::to_string(pid_) + "/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string skip;
  for (int i = 0; i < 11; ++i) fields >> skip;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string Daemon::Log() const {
  return ReadFile(folder_ + "/log");
}

std::map<std::string, double> Daemon::Metrics() const {
  std::map<std::string, double> samples;
  std::istringstream lines(HttpGet(http_, "/metrics").second);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.rfind(' ');
    if (!line.starts_with("#") && space != std::string::npos)
      samples[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return samples;
}

bool Daemon::WaitForMetric(const std::string& sample, double value) const {
  return Eventually(20, [&] {
    const auto samples = Metrics();
    const auto it = samples.find(sample);
    return it != samples.end() && it->second == value;
  });
}

std::pair<int, std::string> HttpGet(const std::string& address, const std::string& path) {
  httplib::Client client("http://" + address);
  client.set_connection_timeout(2);
  client.set_read_timeout(5);
  const httplib::Result result = client.Get(path);
  return result ? std::pair{result->status, result->body} : std::pair{0, std::string()};
}

}  // namespace kernd::testing
