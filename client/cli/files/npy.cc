#include "client/cli/files/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/files/file.h"

namespace kernd::cli {
namespace {

using client::DataType;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::int64_t kMaxHeaderBytes = 1 << 20;

// Names without the byte order.
constexpr std::array<std::pair<std::string_view, DataType>, 8> kTypes = {{
    {"b1", DataType::kBool},
    {"u1", DataType::kU8},
    {"i1", DataType::kI8},
    {"i4", DataType::kI32},
    {"i8", DataType::kI64},
    {"f2", DataType::kF16},
    {"f4", DataType::kF32},
    {"f8", DataType::kF64},
}};

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::int64_t>> shape;
};

// The dictionary of the header: the part of Python's syntax that numpy writes.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  // False where `text` is not such a dictionary, has another key, or one of them twice.
  bool Parse(Header* header) {
    if (!Take('{')) return false;
    while (!Take('}')) {
      std::string key;
      if (!String(&key) || !Take(':') || !Value(key, header)) return false;
      if (!Take(',') && !Peek('}')) return false;
    }
    Space();
    return rest_.empty();
  }

 private:
  bool Value(const std::string& key, Header* header) {
    if (key == "descr") return !header->descr && String(&header->descr.emplace());
    if (key == "fortran_order") return !header->fortran_order && Bool(&header->fortran_order.emplace());
    if (key == "shape") return !header->shape && Tuple(&header->shape.emplace());
    return false;
  }

  void Space() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
  }

  bool Peek(char c) {
    Space();
    return !rest_.empty() && rest_.front() == c;
  }

  bool Take(char c) {
    if (!Peek(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool Word(std::string_view word) {
    Space();
    if (rest_.substr(0, word.size()) != word) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  bool String(std::string* out) {
    if (!Peek('\'') && !Peek('"')) return false;
    const char quote = rest_.front();
    const std::size_t end = rest_.find(quote, 1);
    if (end == std::string_view::npos) return false;
    out->assign(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return true;
  }

  bool Bool(bool* out) {
    *out = Word("True");
    return *out || Word("False");
  }

  bool Tuple(std::vector<std::int64_t>* out) {
    if (!Take('(')) return false;
    while (!Take(')')) {
      Space();
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc()) return false;
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      out->push_back(value);
      if (!Take(',') && !Peek(')')) return false;
    }
    return true;
  }

  std::string_view rest_;
};

// The element type of "<f4" and the like. INVALID_ARGUMENT without the file's name otherwise.
absl::StatusOr<DataType> ParseDescr(const std::string& descr) {
  for (const auto& [name, type] : kTypes) {
    if (descr.size() != name.size() + 1 || descr.substr(1) != name) continue;
    const bool one_byte = client::ElementBytes(type) == 1;
    if (descr[0] == '>' && !one_byte) return absl::InvalidArgumentError("big-endian (" + descr + ") is not supported");
    if (descr[0] == '<' || descr[0] == '=' || one_byte) return type;
  }
  return absl::InvalidArgumentError("element type '" + descr +
                                    "' is not supported: b1, u1, i1, i4, i8, f2, f4, f8 are");
}

std::uint32_t LittleEndian(std::span<const std::byte> bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

}  // namespace

absl::StatusOr<client::Tensor> ReadNpy(const std::string& path) {
  absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  std::array<std::byte, 12> start{};
  const std::int64_t available = std::min<std::int64_t>(file->size(), start.size());
  if (absl::Status read = file->Read(0, std::span(start).first(available)); !read.ok()) return read;
  if (std::string_view(reinterpret_cast<const char*>(start.data()), kMagic.size()) != kMagic) {
    return file->Malformed("not a .npy file");
  }
  const int version = std::to_integer<int>(start[6]);
  if (version < 1 || version > 3) return file->Malformed("format version " + std::to_string(version) + " is not known");
  const std::int64_t length_bytes = version == 1 ? 2 : 4;
  const std::int64_t header_start = 8 + length_bytes;
  const std::int64_t header_bytes = LittleEndian(std::span(start).subspan(8, length_bytes));
  if (header_bytes > kMaxHeaderBytes || header_start + header_bytes > file->size()) {
    return file->Malformed("a header of " + std::to_string(header_bytes) + " bytes cannot be right");
  }

  std::string text(static_cast<std::size_t>(header_bytes), '\0');
  if (absl::Status read = file->Read(header_start, std::as_writable_bytes(std::span(text))); !read.ok()) return read;
  Header header;
  if (!HeaderParser(text).Parse(&header) || !header.descr || !header.fortran_order || !header.shape) {
    return file->Malformed("the header is damaged, or of a structured array");
  }
  const absl::StatusOr<DataType> dtype = ParseDescr(*header.descr);
  if (!dtype.ok()) return file->Malformed(std::string(dtype.status().message()));
  if (*header.fortran_order) return file->Malformed("Fortran order is not supported: save np.ascontiguousarray(x)");

  const std::optional<std::int64_t> bytes = client::TensorBytes(*dtype, *header.shape);
  const std::int64_t data_start = header_start + header_bytes;
  if (!bytes || *bytes != file->size() - data_start) {
    return file->Malformed("the header says " + client::ToString(*dtype, *header.shape) + ", but " +
                           std::to_string(file->size() - data_start) + " bytes follow");
  }
  absl::StatusOr<client::Tensor> tensor = client::Tensor::Allocate(*dtype, *std::move(header.shape));
  if (!tensor.ok()) return tensor.status();
  if (absl::Status read = file->Read(data_start, tensor->mutable_bytes()); !read.ok()) return read;
  return tensor;
}

absl::Status WriteNpy(const std::string& path, const client::TensorView& tensor) {
  std::string descr;
  for (const auto& [name, type] : kTypes) {
    if (type == tensor.dtype) descr.append(client::ElementBytes(type) == 1 ? "|" : "<").append(name);
  }
  if (descr.empty()) {
    return absl::InvalidArgumentError(path + ": .npy has no element type " + std::string(client::Name(tensor.dtype)) +
                                      ": write a .safetensors file");
  }
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t dim : tensor.shape) header += std::to_string(dim) + ", ";
  header += "), }";
  // Spaces and a newline, so that the data start at a multiple of 64 bytes.
  const std::size_t start = kMagic.size() + 4;
  header.append(63 - (start + header.size()) % 64, ' ').push_back('\n');
  std::string head(kMagic);
  head += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return WriteFile(path, head + header, tensor.data);
}

}  // namespace kernd::cli
