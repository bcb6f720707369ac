# Kernels without a device: kernels/emulator.
kernd_test(emulator_test unit
  SRCS ${CMAKE_CURRENT_LIST_DIR}/emulator_test.cc ${CMAKE_CURRENT_LIST_DIR}/emulator_barriers_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/emulator_copy_test.cc ${CMAKE_CURRENT_LIST_DIR}/emulator_wgmma_test.cc
  DEPS kernd_emulated_kernels kernd_reference)

# The tests of the GPU's kernels (tests/gpu) on the emulator, and what only the emulator can tell.
kernd_library(kernd_test_emulated_device SRCS ${CMAKE_CURRENT_LIST_DIR}/../support/emulated_device_memory.cc
  HDRS ${CMAKE_CURRENT_LIST_DIR}/../support/device_memory.h DEPS kernd_gpu_choice kernd_emulator kernd_reference GTest::gtest)
kernd_test(attention_emulated_test unit TIMEOUT 900
  SRCS ${CMAKE_CURRENT_LIST_DIR}/../gpu/attention_gpu_test.cc ${CMAKE_CURRENT_LIST_DIR}/../gpu/attention_gpu_contract_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/attention_emulated_test.cc
  DEPS kernd_emulated_kernels kernd_test_emulated_device)
# Those in which a 16-bit type has a part, and of the random ones and of the repetitions as many as a minute allows.
set_tests_properties(attention_emulated_test PROPERTIES ENVIRONMENT "GTEST_FILTER=AttentionEmulated.*:\
Blocks/AttentionGpuRandom.TensorCoreProblems/0:Blocks/AttentionGpuRandom.PositionalProblems/0:\
AttentionGpu.LargeStrides:AttentionGpu.RaggedPacked:AttentionGpu.ManyHeads*:AttentionGpuContract.Bias*:\
AttentionGpuContract.Invisible*:AttentionGpuContract.Keys*:AttentionGpuContract.Sequences*:\
AttentionGpuContract.Multiprocessors*")
kernd_test(matmul_emulated_test unit TIMEOUT 900
  SRCS ${CMAKE_CURRENT_LIST_DIR}/../gpu/matmul_gpu_test.cc ${CMAKE_CURRENT_LIST_DIR}/../gpu/matmul_gpu_contract_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/matmul_emulated_test.cc
  DEPS kernd_emulated_kernels kernd_test_emulated_device)
# Of the random ones and of the large ones as many as half a minute allows.
set_tests_properties(matmul_emulated_test PROPERTIES ENVIRONMENT "GTEST_FILTER=MatmulEmulated.*:MatmulGpuInvariance.*:\
All/MatmulGpuLayouts.*:Blocks/MatmulGpuRandom.*/0:Blocks/MatmulGpuRandom.*/1:MatmulGpu.*-MatmulGpuInvariance.RowsDo*:\
MatmulGpu.I8Wraps*:MatmulGpu.LargerThan*:MatmulGpu.MoreItems*")

# Shapes that no variant has, instantiated in the tests themselves.
foreach(name IN ITEMS attention_wgmma_shapes_test matmul_wgmma_shapes_test)
  kernd_test(${name} unit SRCS ${CMAKE_CURRENT_LIST_DIR}/${name}.cc DEPS kernd_emulated_kernels kernd_test_emulated_device)
  target_include_directories(${name} BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/kernels/emulator/cuda)
  target_compile_options(${name} PRIVATE -include ${PROJECT_SOURCE_DIR}/kernels/emulator/cuda/cuda_runtime.h
    -Wno-unknown-pragmas -Wno-psabi)
endforeach()
