# Tests of client/: the wire, calls against a daemon in the test's own process, tensor files, the command line.
set(here ${CMAKE_CURRENT_LIST_DIR})
kernd_test(client_wire_test unit SRCS ${here}/client_wire_test.cc DEPS kernd_client kernd_proto)
kernd_test(client_retry_test unit SRCS ${here}/client_retry_test.cc DEPS kernd_client kernd_proto)
kernd_test(client_call_test unit SRCS ${here}/client_call_test.cc DEPS kernd_client kernd_proto)
kernd_test(client_session_test unit SRCS ${here}/client_session_test.cc DEPS kernd_client kernd_proto)
kernd_test(client_relay_test unit SRCS ${here}/client_relay_test.cc DEPS kernd_client kernd_proto)
kernd_test(client_files_test unit SRCS ${here}/client_files_test.cc DEPS kernd_cli)
kernd_test(client_cli_test unit
  SRCS ${here}/client_cli_test.cc ${here}/client_cli_call_test.cc ${here}/client_cli_completion_test.cc
       ${here}/client_cli_tensors_test.cc ${here}/client_cli_text_test.cc ${here}/client_cli_tune_test.cc
       ${here}/client_cli_values_test.cc
  DEPS kernd_cli kernd_proto)
kernd_test(client_bench_test unit SRCS ${here}/client_bench_test.cc ${here}/client_bench_load_test.cc
  DEPS kernd_cli kernd_proto)
kernd_test(client_verify_test unit SRCS ${here}/client_verify_test.cc DEPS kernd_cli kernd_proto)
kernd_test(client_doctor_test unit
  SRCS ${here}/client_doctor_test.cc ${here}/client_doctor_daemon_test.cc ${here}/client_doctor_gpu_test.cc
       ${here}/client_doctor_machine_test.cc
  DEPS kernd_cli kernd_proto)
kernd_test(client_top_test unit SRCS ${here}/client_top_test.cc DEPS kernd_cli)
