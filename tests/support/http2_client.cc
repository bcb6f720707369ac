#include "tests/support/http2_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace kernd::testing {
namespace {

constexpr std::size_t kFrameHeader = 9, kMaxPayload = 16384;
constexpr std::uint16_t kInitialWindowSize = 4;  // the SETTINGS parameter

void AppendBigEndian(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

std::uint32_t ReadBigEndian(const std::string& in, std::size_t at, int bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | static_cast<std::uint8_t>(in[at + static_cast<std::size_t>(i)]);
  return value;
}

// A string literal: its length as an integer with a prefix of seven bits (RFC 7541, 5.1 and 5.2), no Huffman code.
void AppendLiteral(std::string& out, const std::string& text) {
  std::size_t length = text.size();
  if (length < 127) {
    out += static_cast<char>(length);
  } else {
    out += static_cast<char>(127);
    for (length -= 127; length >= 128; length /= 128) out += static_cast<char>(length % 128 + 128);
    out += static_cast<char>(length);
  }
  out += text;
}

}  // namespace

std::string Encode(const Frame& frame) {
  std::string out;
  out.reserve(kFrameHeader + frame.payload.size());
  AppendBigEndian(out, frame.payload.size(), 3);
  AppendBigEndian(out, static_cast<std::uint8_t>(frame.type), 1);
  AppendBigEndian(out, frame.flags, 1);
  AppendBigEndian(out, frame.stream, 4);
  return out + frame.payload;
}

std::string HeaderField(const std::string& name, const std::string& value) {
  std::string out(1, '\0');  // not indexed, with a name of its own
  AppendLiteral(out, name);
  AppendLiteral(out, value);
  return out;
}

std::string CallHeaderBlock(const std::string& path, const std::map<std::string, std::string>& metadata) {
  std::string block = HeaderField(":method", "POST") + HeaderField(":scheme", "http") + HeaderField(":path", path) +
                      HeaderField(":authority", "localhost") + HeaderField("te", "trailers") +
                      HeaderField("content-type", "application/grpc");
  for (const auto& [name, value] : metadata) block += HeaderField(name, value);
  return block;
}

std::string CallHeaders(std::uint32_t stream, const std::string& path,
                        const std::map<std::string, std::string>& metadata) {
  return Encode({FrameType::kHeaders, kEndHeaders, stream, CallHeaderBlock(path, metadata)});
}

std::string MessagePrefix(std::size_t bytes) {
  std::string prefix(1, '\0');  // not compressed
  AppendBigEndian(prefix, bytes, 4);
  return prefix;
}

std::string CallBody(std::uint32_t stream, const std::string& message) {
  const std::string body = MessagePrefix(message.size()) + message;
  std::string out;
  for (std::size_t at = 0; at < body.size(); at += kMaxPayload) {
    const bool last = body.size() - at <= kMaxPayload;
    out += Encode({FrameType::kData, last ? kEndStream : std::uint8_t{0}, stream, body.substr(at, kMaxPayload)});
  }
  return out;
}

std::string ResetStream(std::uint32_t stream) {
  std::string cancel;
  AppendBigEndian(cancel, 8, 4);
  return Encode({FrameType::kResetStream, 0, stream, cancel});
}

std::unique_ptr<Http2Client> Http2Client::Connect(const std::string& endpoint, const Options& options) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return nullptr;
  std::unique_ptr<Http2Client> client(new Http2Client(fd, options.acknowledge_settings));
  if (options.receive_buffer > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer, sizeof(options.receive_buffer));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return nullptr;

  std::string stream_window, connection_window;
  AppendBigEndian(stream_window, kInitialWindowSize, 2);
  AppendBigEndian(stream_window, options.stream_window, 4);
  AppendBigEndian(connection_window, 1 << 30, 4);
  if (!client->Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Encode({FrameType::kSettings, 0, 0, stream_window}) +
                    Encode({FrameType::kWindowUpdate, 0, 0, connection_window}))) {
    return nullptr;
  }
  // The server's own SETTINGS come first and end with its acknowledgement of ours, or a window update.
  return client->Read().has_value() ? std::move(client) : nullptr;
}

Http2Client::~Http2Client() {
  close(fd_);
}

bool Http2Client::Send(const std::string& bytes, int stall_ms) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      at += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      pollfd writable = {.fd = fd_, .events = POLLOUT, .revents = 0};
      if (poll(&writable, 1, stall_ms) <= 0) return false;
    } else if (errno != EINTR) {
      closed_ = true;
      return false;
    }
  }
  return true;
}

bool Http2Client::Fill(std::size_t bytes, int wait_ms) {
  while (received_.size() < bytes) {
    pollfd readable = {.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, wait_ms) <= 0) return false;
    char buffer[65536];
    const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
    if (got <= 0) {
      closed_ = true;
      return false;
    }
    received_.append(buffer, static_cast<std::size_t>(got));
  }
  return true;
}

std::optional<Frame> Http2Client::Read(int wait_ms) {
  while (Fill(kFrameHeader, wait_ms)) {
    const std::size_t length = ReadBigEndian(received_, 0, 3);
    if (!Fill(kFrameHeader + length, wait_ms)) break;
    Frame frame = {static_cast<FrameType>(received_[3]), static_cast<std::uint8_t>(received_[4]),
                   ReadBigEndian(received_, 5, 4), received_.substr(kFrameHeader, length)};
    received_.erase(0, kFrameHeader + length);
    const bool ack = (frame.flags & kAck) != 0;
    if (frame.type == FrameType::kSettings) {
      if (ack) continue;
      if (acknowledge_settings_) Send(Encode({FrameType::kSettings, kAck, 0, ""}));
    } else if (frame.type == FrameType::kPing && !ack) {
      Send(Encode({FrameType::kPing, kAck, 0, frame.payload}), 0);
    } else {
      return frame;
    }
  }
  return std::nullopt;
}

std::optional<std::size_t> Http2Client::AwaitEnd(std::uint32_t stream, int wait_ms) {
  std::size_t bytes = 0;
  while (const std::optional<Frame> frame = Read(wait_ms)) {
    if (frame->stream != stream) continue;
    if (frame->type == FrameType::kResetStream) return bytes;
    if (frame->type == FrameType::kData) bytes += frame->payload.size();
    if (frame->type != FrameType::kWindowUpdate && (frame->flags & kEndStream) != 0) return bytes;
  }
  return std::nullopt;
}

}  // namespace kernd::testing
