// The whole terminal as a picture that is drawn again and again, and its keyboard.
#pragma once

#include <signal.h>
#include <termios.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace kernd::cli::top {

// Columns of what standard output goes to: what COLUMNS says, else the terminal; `otherwise` where it is none.
int OutputWidth(int otherwise);

// Takes the alternate screen, and gives the old one back, with cursor and keyboard as they were, whatever ends it: the
// destructor, also of an exception, and the signals that Wait reports. For a program of one thread.
class Screen {
 public:
  // Null where standard input and output are no terminals, or the terminal is a dumb one.
  static std::unique_ptr<Screen> Open();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  struct Size {
    int width = 80, height = 24;
  };
  Size size() const;

  // Draws in place of the last picture, at one go, without a flicker. False where the terminal is gone.
  bool Show(const std::vector<std::string>& lines);

  enum class Event { kTime, kKey, kRedraw, kEnd };
  // Until the time, a key, a new size, or a signal to end. Suspends the program where Ctrl-Z asks for it.
  Event Wait(absl::Time until);
  char key() const { return key_; }       // the last one
  int signal() const { return signal_; }  // that asked for the end; 0: the keyboard is gone

  // Become readable when Wait would return.
  std::vector<int> wakers() const;

 private:
  Screen(const termios& before, int signals);
  void Enter();
  void Leave();
  Event OnSignal();
  Event OnKey();

  const termios before_;
  const int signals_;  // a signalfd
  sigset_t mask_before_;
  char key_ = 0;
  int signal_ = 0;
};

}  // namespace kernd::cli::top
