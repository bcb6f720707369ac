// The head of a request to the daemon's HTTP port.
#include <algorithm>

#include "server/telemetry/http_message.h"
#include "tests/fuzz/fuzz.h"

namespace kernd::fuzz {

void Target(std::string_view input) {
  using telemetry::RequestHead;
  using State = RequestHead::State;
  const RequestHead head = telemetry::ParseRequestHead(input);
  // Bytes come in pieces: what a beginning is, its continuation stays, unless more was waited for.
  for (std::size_t cut = input.size() / 2; cut > 0; cut /= 2) {
    for (const std::size_t size : {cut, input.size() - cut}) {
      const State part = telemetry::ParseRequestHead(input.substr(0, size)).state;
      Require(part == State::kPartial || part == head.state, "more bytes do not change what is decided");
    }
  }
  if (head.state != State::kWhole)
    return Require(head.method.empty() && head.path.empty(), "views only of a whole head");
  Require(!head.method.empty(), "there is a method");
  for (const std::string_view view : {head.method, head.path}) {
    Require(view.data() >= input.data() && view.data() + view.size() <= input.data() + input.size(),
            "views look into the bytes");
    Require(std::all_of(view.begin(), view.end(), [](char c) { return c > 0x20 && c < 0x7f; }), "and are printable");
  }
  Require(head.path.find('?') == std::string_view::npos, "the path is without the query");
}

std::vector<std::string> Seeds() {
  return {"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nAccept: */*\r\n\r\n",
          "HEAD /healthz?verbose=1 HTTP/1.0\n\n",
          "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
          "GET /readyz HTTP/1.1\r\n",
          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
          "\x16\x03\x01\x02"};
}

}  // namespace kernd::fuzz
