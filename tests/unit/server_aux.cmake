# Tests of server/config, server/telemetry and server/tune.
kernd_test(config_test unit
  SRCS ${CMAKE_CURRENT_LIST_DIR}/config_machine_test.cc ${CMAKE_CURRENT_LIST_DIR}/config_options_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/config_rules_test.cc ${CMAKE_CURRENT_LIST_DIR}/config_units_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/config_unused_test.cc
  DEPS kernd_config)
kernd_test(telemetry_test unit
  SRCS ${CMAKE_CURRENT_LIST_DIR}/telemetry_http_test.cc ${CMAKE_CURRENT_LIST_DIR}/telemetry_log_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/telemetry_metrics_test.cc ${CMAKE_CURRENT_LIST_DIR}/telemetry_status_errors_test.cc
       ${CMAKE_CURRENT_LIST_DIR}/telemetry_status_json_test.cc ${CMAKE_CURRENT_LIST_DIR}/telemetry_status_window_test.cc
  DEPS kernd_telemetry PkgConfig::HTTPLIB nlohmann_json::nlohmann_json)

# promtool lints the metrics page; ./dev unpacks it under .cache/tools where it is not installed.
find_program(PROMTOOL promtool HINTS ${PROJECT_SOURCE_DIR}/.cache/tools/usr/bin)
if(PROMTOOL)
  set_tests_properties(telemetry_test PROPERTIES ENVIRONMENT "PROMTOOL=${PROMTOOL}")
endif()
kernd_test(tuning_test unit
  SRCS ${CMAKE_CURRENT_LIST_DIR}/tune_measure_test.cc ${CMAKE_CURRENT_LIST_DIR}/tuner_test.cc ${CMAKE_CURRENT_LIST_DIR}/tuning_test.cc DEPS kernd_tune)
