#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli/app.h"
#include "client/cli/context.h"

int main(int argc, char** argv) try {
  return kernd::cli::Run({argv + 1, argv + argc}, std::cout, std::cerr);
} catch (const std::exception& error) {
  std::cerr << "kernctl: " << error.what() << '\n';
  return kernd::cli::kBadArguments;
}
