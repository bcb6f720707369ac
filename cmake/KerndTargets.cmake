# kernd_library(NAME [SRCS ...] [HDRS ...] [DEPS ...]) and kernd_test(NAME LABEL SRCS ... DEPS ...):
# one recipe for every folder, so that warnings, sanitizers and include rules are the same everywhere.

add_library(kernd_flags INTERFACE)
# Off for GCC 12, which sees overlaps and unset halves that are not there in std::string and absl::InlinedVector
# (bugs 105329, 105562).
target_compile_options(kernd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow=local -Wnon-virtual-dtor -Wno-missing-field-initializers>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict -Wno-maybe-uninitialized -Wno-uninitialized>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${KERND_WERROR}>>:-Werror>)
if(KERND_SANITIZE)
  target_compile_options(kernd_flags INTERFACE -fsanitize=${KERND_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(kernd_flags INTERFACE -fsanitize=${KERND_SANITIZE})
endif()

# A static library. Its sources include by path from the repository root ("server/core/engine.h"), except the public
# headers, which are found as <kernd/...>.
function(kernd_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS} ${ARG_HDRS})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(${name} PUBLIC ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:kernd_flags>)
endfunction()

# A GoogleTest program, one CTest entry. LABEL: unit (quick, no network), integration, bench or fuzz.
function(kernd_test name label)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main kernd_flags)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "^SKIPPED: ")
endfunction()
