// Addresses as users write them: HOST:PORT, unix:/path, and gRPC's other targets.
#pragma once

#include <string>

namespace kernd::cli {

struct Target {
  enum class Kind {
    kTcp,
    kUnix,
    kOther,  // only gRPC knows what to do with it: "xds:...", "ipv4:1.2.3.4:5,6.7.8.9:10", ...
  };
  Kind kind = Kind::kOther;
  std::string host, port;  // kTcp; the host without brackets; the port may be empty
  std::string path;        // kUnix; an abstract one begins with a zero byte
};

Target ParseTarget(const std::string& text);

// Whether it can only be on this machine.
bool IsLocal(const Target& target);

// Where the HTTP port of the daemon at `endpoint` is unless told otherwise: 9464 of the same host.
std::string HttpAddressOf(const std::string& endpoint);

}  // namespace kernd::cli
