// What libFuzzer calls. TARGET --write-seeds FOLDER writes the seeds and does nothing else.
#include <cstdlib>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::string_view((*argv)[1]) == "--write-seeds") {
    kernd::fuzz::WriteSeeds((*argv)[2]);
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kernd::fuzz::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
