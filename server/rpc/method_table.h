// Every method of the daemon by its path, each with a handler. Methods of the protocol that are not built are here too,
// and say so by name.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/rpc/exchange.h"

namespace kernd::rpc {

// Has one of the three ways of being handled.
struct Method {
  std::string name;                    // "Compute/Matmul"
  bool compute = false;                // needs a warm engine; refused while starting
  std::int64_t max_message_bytes = 0;  // of one message; 0: the gate's limit
  bool bulk = false;                   // the handler may take long: not on an I/O thread
  Handler handler = nullptr;           // one request, one reply
  SinkMaker sink = nullptr;            // many requests, one reply
  SourceMaker source = nullptr;        // one request, many replies
};

class MethodTable {
 public:
  // `path` as on the wire: "/kernd.v1.Compute/Matmul".
  void Add(const std::string& path, Method method) { methods_.insert_or_assign(path, std::move(method)); }

  // Adds every method of kernd.v1 that has no handler yet, answering UNIMPLEMENTED (NOT_BUILT) by name.
  void AddMissingMethods();

  // Null where the path is no method of this daemon.
  const Method* Find(const std::string& path) const {
    const auto it = methods_.find(path);
    return it == methods_.end() ? nullptr : &it->second;
  }

  // Names for the metrics' labels.
  std::vector<std::string> Names() const;

 private:
  std::unordered_map<std::string, Method> methods_;
};

}  // namespace kernd::rpc
