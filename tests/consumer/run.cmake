# Installs the client into an empty prefix, builds the consumer against it as CMake and as pkg-config find it, and runs
# both: without a daemon, and against $KERND_ENDPOINT where that is set.
# Needs -D BUILD= (of kernd), GENERATOR=, SOURCE= (this folder), WORK=, LIBDIR=, COMPILER=, FLAGS=, PKG_CONFIG=.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first --component client)
# Elsewhere than it was installed: nothing in it may know where that was.
file(RENAME ${WORK}/first ${WORK}/prefix)

run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/build)

set(ENV{PKG_CONFIG_PATH} ${WORK}/prefix/${LIBDIR}/pkgconfig)
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs kernd-client OUTPUT_VARIABLE found COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(found UNIX_COMMAND ${found})
separate_arguments(flags UNIX_COMMAND ${FLAGS})
run(${COMPILER} ${flags} ${SOURCE}/main.cc ${found} -o ${WORK}/consumer-pkg-config)

foreach(consumer IN ITEMS ${WORK}/build/consumer ${WORK}/consumer-pkg-config)
  run(${consumer})
  if(DEFINED ENV{KERND_ENDPOINT})
    run(${consumer} $ENV{KERND_ENDPOINT})
  endif()
endforeach()
