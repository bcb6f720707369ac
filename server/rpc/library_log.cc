#include "server/rpc/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstdio>
#include <cstring>
#include <string_view>

namespace kernd::rpc {
namespace {

LibraryLog write_line = nullptr;

// "grpc server.cc:12: message", without the folders of somebody else's build.
void Write(LibrarySeverity severity, bool fatal, const char* library, const char* file, int line,
           const std::string& message) {
  const char* const slash = std::strrchr(file, '/');
  const std::string text =
      std::string(library) + ' ' + (slash == nullptr ? file : slash + 1) + ':' + std::to_string(line) + ": " + message;
  if (fatal) std::fprintf(stderr, "kernd: %s\n", text.c_str());
  write_line(severity, text);
}

void FromGrpc(gpr_log_func_args* args) {
  const auto severity = args->severity == GPR_LOG_SEVERITY_ERROR ? LibrarySeverity::kError : LibrarySeverity::kInfo;
  const bool fatal = std::string_view(args->message).starts_with("assertion failed");
  Write(severity, fatal, "grpc", args->file, args->line, args->message);
}

void FromProtobuf(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  const auto severity = level >= google::protobuf::LOGLEVEL_ERROR ? LibrarySeverity::kError : LibrarySeverity::kInfo;
  Write(severity, level == google::protobuf::LOGLEVEL_FATAL, "protobuf", file, line, message);
}

}  // namespace

void RouteLibraryLogs(LibraryLog write) {
  write_line = write;
  gpr_set_log_function(FromGrpc);
  google::protobuf::SetLogHandler(FromProtobuf);
}

}  // namespace kernd::rpc
