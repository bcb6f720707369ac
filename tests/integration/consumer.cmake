# The installed client library, used by a project that has nothing else of kernd.
find_program(PKG_CONFIG_PROGRAM pkg-config REQUIRED)
set(consumer_flags)
if(KERND_SANITIZE)
  set(consumer_flags -fsanitize=${KERND_SANITIZE})
endif()
add_test(NAME consumer_test
  COMMAND ${CMAKE_COMMAND} -D GENERATOR=${CMAKE_GENERATOR} -D BUILD=${CMAKE_BINARY_DIR} -D SOURCE=${PROJECT_SOURCE_DIR}/tests/consumer
          -D WORK=${CMAKE_BINARY_DIR}/consumer -D LIBDIR=${CMAKE_INSTALL_LIBDIR} -D COMPILER=${CMAKE_CXX_COMPILER}
          -D FLAGS=${consumer_flags} -D PKG_CONFIG=${PKG_CONFIG_PROGRAM} -P ${PROJECT_SOURCE_DIR}/tests/consumer/run.cmake)
set_tests_properties(consumer_test PROPERTIES LABELS integration TIMEOUT 300)
