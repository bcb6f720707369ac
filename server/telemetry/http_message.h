// HTTP/1 as text: the head of a request, and a response. No sockets.
#pragma once

#include <string>
#include <string_view>

namespace kernd::telemetry {

inline constexpr std::size_t kMaxRequestHeadBytes = 16384;

struct RequestHead {
  enum class State {
    kPartial,    // more bytes may make it whole
    kWhole,      // up to the empty line; whatever follows is a body, which nothing here reads
    kMalformed,  // no bytes can make it whole
  };
  State state = State::kPartial;
  // Of a whole one; both point into the bytes.
  std::string_view method;  // capital letters
  std::string_view path;    // without the query
};

// What is no HTTP/1 request is malformed from its first wrong byte on, so that a client that speaks something else
// (TLS, HTTP/2) is told at once. Only the request line is looked at.
RequestHead ParseRequestHead(std::string_view bytes);

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  std::string content_security_policy;  // empty: none
};

// As bytes of a connection that ends behind it. Without the body, but with its length: the answer to HEAD.
std::string Render(const HttpResponse& response, bool with_body = true);

}  // namespace kernd::telemetry
