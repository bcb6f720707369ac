kernd_test(session_store_test unit
  SRCS ${CMAKE_CURRENT_LIST_DIR}/byte_ranges_test.cc ${CMAKE_CURRENT_LIST_DIR}/session_model_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/session_cost_test.cc ${CMAKE_CURRENT_LIST_DIR}/session_life_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/session_regions_test.cc ${CMAKE_CURRENT_LIST_DIR}/session_store_test.cc
  DEPS kernd_core)
