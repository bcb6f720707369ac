# Tests of server/cpu. Included from tests/CMakeLists.txt.
foreach(test cpu_attention_test cpu_attention_contract_test cpu_matmul_test cpu_matmul_contract_test)
  kernd_test(${test} unit TIMEOUT 600 SRCS ${CMAKE_CURRENT_LIST_DIR}/${test}.cc DEPS kernd_cpu_kernels kernd_reference)
  # GCC 12 takes the move of a fresh absl::InlinedVector (a shape) for a read of its unset half.
  target_compile_options(${test} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized -Wno-maybe-uninitialized>)
endforeach()
kernd_test(cpu_checks_test unit SRCS ${CMAKE_CURRENT_LIST_DIR}/cpu_checks_test.cc DEPS kernd_cpu)
kernd_test(cpu_plan_test unit SRCS ${CMAKE_CURRENT_LIST_DIR}/cpu_plan_test.cc DEPS kernd_cpu)
kernd_test(cpu_tuning_test unit SRCS ${CMAKE_CURRENT_LIST_DIR}/cpu_tuning_test.cc DEPS kernd_cpu)
