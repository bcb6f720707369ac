// A client that speaks HTTP/2 in single frames, so that it can do what no gRPC library would: stop in the middle of a
// message, open no window, reset streams by the thousand, never end its headers. RFC 9113; header blocks use literals
// alone (RFC 7541, 6.2.2), which need no state.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace kernd::testing {

// Numbers of RFC 9113, section 6.
enum class FrameType : std::uint8_t {
  kData = 0,
  kHeaders = 1,
  kResetStream = 3,
  kSettings = 4,
  kPing = 6,
  kGoaway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr std::uint8_t kEndStream = 1, kAck = 1, kEndHeaders = 4;

struct Frame {
  FrameType type = FrameType::kData;
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;
  std::string payload;
};

std::string Encode(const Frame& frame);

// A header block entry.
std::string HeaderField(const std::string& name, const std::string& value);
// The header block of a gRPC call of `path`, "/kernd.v1.Compute/Matmul".
std::string CallHeaderBlock(const std::string& path, const std::map<std::string, std::string>& metadata = {});
// HEADERS that end, and leave the stream open.
std::string CallHeaders(std::uint32_t stream, const std::string& path,
                        const std::map<std::string, std::string>& metadata = {});
// The five bytes before a gRPC message of `bytes`.
std::string MessagePrefix(std::size_t bytes);
// DATA frames of at most 16 KiB with a whole gRPC message; ends the stream.
std::string CallBody(std::uint32_t stream, const std::string& message);
std::string ResetStream(std::uint32_t stream);  // CANCEL

// One connection, whose own window is wide open. Not thread-safe, but that one thread may Send while another Reads.
class Http2Client {
 public:
  struct Options {
    std::uint32_t stream_window = 65535;  // what the server may send on a stream before it is given more
    bool acknowledge_settings = true;     // false: the server never learns that its limits have been seen
    int receive_buffer = 0;               // of the socket, in bytes; 0: the system's choice
  };

  // Connects to "127.0.0.1:port", sends preface and SETTINGS and waits for the server's. Null where that fails.
  static std::unique_ptr<Http2Client> Connect(const std::string& endpoint, const Options& options);
  static std::unique_ptr<Http2Client> Connect(const std::string& endpoint) { return Connect(endpoint, Options()); }
  // Without a farewell, as a process that dies.
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  // Sends all of it; false where the server has closed, or has taken nothing for `stall_ms`. A part may be sent then.
  bool Send(const std::string& bytes, int stall_ms = 10'000);
  // The next frame; none where the server has closed, or has sent nothing for `wait_ms`. SETTINGS and PING are answered
  // by themselves and not shown, the server's window updates are shown.
  std::optional<Frame> Read(int wait_ms = 10'000);
  // Reads until the server ends or resets `stream`; gives the bytes of DATA that came on it before, or none where it
  // did not end. Frames of other streams are dropped.
  std::optional<std::size_t> AwaitEnd(std::uint32_t stream, int wait_ms = 10'000);

  // The server has ended the connection.
  bool closed() const { return closed_; }

 private:
  Http2Client(int fd, bool acknowledge) : fd_(fd), acknowledge_settings_(acknowledge) {}
  bool Fill(std::size_t bytes, int wait_ms);

  const int fd_;
  const bool acknowledge_settings_;
  bool closed_ = false;
  std::string received_;
};

}  // namespace kernd::testing
