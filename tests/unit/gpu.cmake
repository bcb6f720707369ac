# The GPU backend without a GPU.
set(support ${CMAKE_CURRENT_LIST_DIR}/../support)
kernd_library(kernd_fake_gpu SRCS ${support}/fake_gpu.cc ${support}/fake_gpu_memory.cc ${support}/fake_kernels.cc
  HDRS ${support}/fake_gpu.h ${support}/fake_kernels.h
  DEPS kernd_gpu_runtime kernd_reference)
# Opened by name, as the real one is; linked as well, so that the loader knows where it is.
add_library(kernd_fake_nvml SHARED ${CMAKE_CURRENT_LIST_DIR}/../support/fake_nvml.cc)
target_include_directories(kernd_fake_nvml PRIVATE ${PROJECT_SOURCE_DIR})
kernd_test(gpu_nvml_test unit SRCS ${CMAKE_CURRENT_LIST_DIR}/gpu_nvml_test.cc DEPS kernd_fake_gpu kernd_fake_nvml)
kernd_test(gpu_backend_test unit
  SRCS ${CMAKE_CURRENT_LIST_DIR}/gpu_backend_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_backend_faults_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/gpu_checks_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_plan_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_pools_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/gpu_slices_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_tuning_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/gpu_resident_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_shared_test.cc
  DEPS kernd_fake_gpu)

# What is decided before there is a GPU; the table's own rows only where they are built.
kernd_test(gpu_choose_test unit SRCS ${CMAKE_CURRENT_LIST_DIR}/gpu_choose_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_lt_recipe_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/gpu_mma_plan_test.cc ${CMAKE_CURRENT_LIST_DIR}/gpu_plan_cache_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/gpu_wgmma_plan_test.cc
  DEPS kernd_gpu_choice)
if(TARGET kernd_gpu_kernels)
  target_sources(gpu_choose_test PRIVATE ${CMAKE_CURRENT_LIST_DIR}/gpu_table_test.cc)
  target_link_libraries(gpu_choose_test PRIVATE kernd_gpu_kernels)
endif()
