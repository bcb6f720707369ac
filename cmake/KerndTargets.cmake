# kernd_library(NAME [SHARED] [SRCS ...] [HDRS ...] [DEPS ...]) and kernd_test(NAME LABEL SRCS ... DEPS ...):
# one recipe for every folder, so that warnings, sanitizers and include rules are the same everywhere.

add_library(kernd_flags INTERFACE)
# Off for GCC 12, which sees overlaps and unset halves that are not there in std::string and absl::InlinedVector
# (bugs 105329, 105562).
target_compile_options(kernd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wshadow=local>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Wno-missing-field-initializers>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict -Wno-maybe-uninitialized -Wno-uninitialized>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KERND_WERROR}>>:-Werror>)
if(KERND_SANITIZE)
  target_compile_options(kernd_flags INTERFACE -fsanitize=${KERND_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(kernd_flags INTERFACE -fsanitize=${KERND_SANITIZE})
endif()

# Programs look into ../lib first: in a build folder the project's shared libraries are there, in a bundle
# (deploy/bundle) all that they need. As RPATH, not RUNPATH, it also holds for what those libraries need themselves.
# Installed programs look where the shared libraries are installed: a folder of the project's own, no one else's business.
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_BUILD_RPATH "$ORIGIN/../lib")
set(KERND_PRIVATE_LIBDIR ${CMAKE_INSTALL_LIBDIR}/kernd)
add_link_options(LINKER:--disable-new-dtags)

# A static library, or a shared one where SHARED is said. Its sources include by path from the repository root ("server/core/engine.h"), except the public
# headers, which are found as <kernd/...>.
function(kernd_library name)
  cmake_parse_arguments(ARG "SHARED" "" "SRCS;HDRS;DEPS" ${ARGN})
  set(kind STATIC)
  if(ARG_SHARED)
    set(kind SHARED)
  endif()
  add_library(${name} ${kind} ${ARG_SRCS} ${ARG_HDRS})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:kernd_flags>)
endfunction()

# A GoogleTest program, one CTest entry. LABEL: unit (quick, no network), integration, bench or fuzz.
function(kernd_test name label)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main kernd_flags)
  if(KERND_SANITIZE MATCHES "thread")
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/sanitizers/absl_mutex.cc)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)  # ends what hangs, and nothing else, also where much else runs
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "^SKIPPED: ")
endfunction()

# The fuzz target NAME (tests/fuzz/README.md): the program NAME_fuzz, over corpus/NAME, with the words of dict/DICT.dict.
# With libFuzzer where KERND_SANITIZE asks for it (the preset fuzz). Elsewhere with a driver of our own, and a CTest entry:
# the corpus, and inputs mutated from it for two seconds.
function(kernd_fuzz name)
  cmake_parse_arguments(ARG "" "DICT" "DEPS" ${ARGN})
  add_executable(${name}_fuzz ${name}.cc)
  target_include_directories(${name}_fuzz PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name}_fuzz PRIVATE kernd_fuzz_driver ${ARG_DEPS} kernd_flags)
  if(KERND_SANITIZE MATCHES "fuzzer")
    target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  set(arguments --seconds 2 ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${name})
  if(ARG_DICT)
    list(PREPEND arguments --dict ${CMAKE_CURRENT_SOURCE_DIR}/dict/${ARG_DICT}.dict)
  endif()
  add_test(NAME ${name}_fuzz COMMAND ${name}_fuzz ${arguments})
  set_tests_properties(${name}_fuzz PROPERTIES LABELS fuzz TIMEOUT 300)
endfunction()
