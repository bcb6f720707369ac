#include "client/cli/top/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "absl/time/clock.h"
#include "client/cli/values.h"

namespace kernd::cli::top {
namespace {

// Alternate screen, cursor hidden, lines cut off at the edge; and back.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", kLeave = "\x1b[?7h\x1b[?25h\x1b[?1049l";
// Terminals that know synchronised updates show the picture when it is whole; others ignore the words.
constexpr std::string_view kBegin = "\x1b[?2026h\x1b[H", kFinish = "\x1b[J\x1b[?2026l";

bool Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

sigset_t Signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP, SIGCONT}) sigaddset(&set, number);
  return set;
}

}  // namespace

std::unique_ptr<Screen> Screen::Open() {
  termios before{};
  const char* const term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  if (dumb || ::isatty(STDOUT_FILENO) != 1 || ::tcgetattr(STDIN_FILENO, &before) != 0) return nullptr;
  const sigset_t set = Signals();
  const int signals = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) return nullptr;
  return std::unique_ptr<Screen>(new Screen(before, signals));
}

Screen::Screen(const termios& before, int signals) : before_(before), signals_(signals) {
  const sigset_t set = Signals();
  ::sigprocmask(SIG_BLOCK, &set, &mask_before_);
  Enter();
}

Screen::~Screen() {
  Leave();
  ::close(signals_);
  ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
}

void Screen::Enter() {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // keys at once, and unseen; Ctrl-C is still a signal
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  Write(kEnter);
}

void Screen::Leave() {
  Write(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

int OutputWidth(int otherwise) {
  constexpr int kLeast = 20, kMost = 1000;  // a picture of less says nothing
  const char* const columns = std::getenv("COLUMNS");
  const std::optional<int> said = columns == nullptr ? std::nullopt : ParseWhole<int>(columns);
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return std::clamp(said ? *said : known ? int{size.ws_col} : otherwise, kLeast, kMost);
}

Screen::Size Screen::size() const {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
  return known ? Size{size.ws_col, size.ws_row} : Size{};
}

bool Screen::Show(const std::vector<std::string>& lines) {
  std::string picture(kBegin);
  for (std::size_t i = 0; i < lines.size(); ++i) picture += (i > 0 ? "\r\n" : "") + lines[i] + "\x1b[K";
  picture += kFinish;
  return Write(picture);
}

std::vector<int> Screen::wakers() const {
  return {STDIN_FILENO, signals_};
}

Screen::Event Screen::Wait(absl::Time until) {
  while (true) {
    const std::int64_t left = absl::ToInt64Milliseconds(absl::Ceil(until - absl::Now(), absl::Milliseconds(1)));
    std::array<pollfd, 2> polled = {{{STDIN_FILENO, POLLIN, 0}, {signals_, POLLIN, 0}}};
    const int timeout = static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000));
    if (::poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) return Event::kEnd;
    if (polled[1].revents != 0) return OnSignal();
    if (polled[0].revents != 0) return OnKey();
    if (left <= 0) return Event::kTime;
  }
}

Screen::Event Screen::OnSignal() {
  signalfd_siginfo info{};
  if (::read(signals_, &info, sizeof(info)) != sizeof(info)) return Event::kRedraw;
  switch (const int number = static_cast<int>(info.ssi_signo)) {
    case SIGWINCH: Write("\x1b[2J"); return Event::kRedraw;
    case SIGTSTP:
      Leave();
      ::raise(SIGSTOP);  // continues here; the SIGCONT that did it comes next
      return Event::kRedraw;
    case SIGCONT: Enter(); return Event::kRedraw;
    default: signal_ = number; return Event::kEnd;
  }
}

Screen::Event Screen::OnKey() {
  std::array<char, 64> keys{};
  const ssize_t got = ::read(STDIN_FILENO, keys.data(), keys.size());
  if (got <= 0) return got < 0 && errno == EINTR ? Event::kRedraw : Event::kEnd;
  key_ = keys[0] == '\x1b' && got > 1 ? '\0' : keys[0];  // arrows and the like begin with an escape
  return Event::kKey;
}

}  // namespace kernd::cli::top
