#include "client/cli/files/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "client/cli/files/file.h"
#include "nlohmann/json.hpp"

namespace kernd::cli {
namespace {

using client::DataType;
using nlohmann::json;

constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
constexpr std::int64_t kLengthBytes = 8;

constexpr std::array<std::pair<std::string_view, DataType>, 11> kTypes = {{
    {"BOOL", DataType::kBool},
    {"U8", DataType::kU8},
    {"I8", DataType::kI8},
    {"I32", DataType::kI32},
    {"I64", DataType::kI64},
    {"F16", DataType::kF16},
    {"BF16", DataType::kBF16},
    {"F32", DataType::kF32},
    {"F64", DataType::kF64},
    {"F8_E4M3", DataType::kF8E4M3},
    {"F8_E5M2", DataType::kF8E5M2},
}};

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  // from the start of the data
};

DataType TypeOf(std::string_view dtype) {
  for (const auto& [name, type] : kTypes) {
    if (name == dtype) return type;
  }
  return DataType::kUnspecified;
}

// A JSON number as a size; empty where it is none, or past int64.
std::optional<std::int64_t> Size(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto size = value.get<std::uint64_t>();
  if (size > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(size);
}

// False where `value` is not {"dtype": text, "shape": [sizes], "data_offsets": [begin, end]}.
bool ParseEntry(const json& value, Entry* entry) {
  if (!value.is_object() || value.size() != 3) return false;
  const auto dtype = value.find("dtype"), shape = value.find("shape"), offsets = value.find("data_offsets");
  if (dtype == value.end() || !dtype->is_string() || shape == value.end() || !shape->is_array() ||
      offsets == value.end() || !offsets->is_array() || offsets->size() != 2) {
    return false;
  }
  entry->dtype = dtype->get<std::string>();
  for (const json& dim : *shape) {
    const std::optional<std::int64_t> size = Size(dim);
    if (!size) return false;
    entry->shape.push_back(*size);
  }
  const std::optional<std::int64_t> begin = Size((*offsets)[0]), end = Size((*offsets)[1]);
  if (!begin || !end || *begin > *end) return false;
  entry->begin = *begin;
  entry->end = *end;
  return true;
}

// JSON without a key twice in one object; a discarded value where the text is no such JSON.
json ParseUniqueKeys(const std::string& text) {
  std::vector<std::set<std::string>> open;
  bool unique = true;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key) unique = open.back().insert(parsed.get<std::string>()).second && unique;
    return true;
  };
  json value = json::parse(text, watch, /*allow_exceptions=*/false);
  return unique ? value : json(json::value_t::discarded);
}

// All tensors of the file, in the order of their data, which they cover exactly.
absl::StatusOr<std::vector<Entry>> ReadEntries(InputFile& file, std::int64_t* data_start) {
  std::array<std::byte, kLengthBytes> length{};
  if (file.size() < kLengthBytes) return file.Malformed("not a .safetensors file");
  if (absl::Status read = file.Read(0, length); !read.ok()) return read;
  std::uint64_t header_bytes = 0;
  for (std::size_t i = length.size(); i-- > 0;)
    header_bytes = header_bytes << 8 | std::to_integer<std::uint64_t>(length[i]);
  if (header_bytes > kMaxHeaderBytes || static_cast<std::int64_t>(header_bytes) > file.size() - kLengthBytes) {
    return file.Malformed("a header of " + std::to_string(header_bytes) + " bytes cannot be right");
  }
  std::string text(header_bytes, '\0');
  if (absl::Status read = file.Read(kLengthBytes, std::as_writable_bytes(std::span(text))); !read.ok()) return read;
  *data_start = kLengthBytes + static_cast<std::int64_t>(header_bytes);

  const json header = ParseUniqueKeys(text);
  if (!header.is_object()) return file.Malformed("the header is not a JSON object, or has a key twice");
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    Entry entry;
    entry.name = name;
    if (!ParseEntry(value, &entry)) return file.Malformed("tensor '" + name + "': not dtype, shape and data_offsets");
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      return file.Malformed("tensor '" + entry.name + "' begins at byte " + std::to_string(entry.begin) + ", not " +
                            std::to_string(covered) + ": overlap or gap");
    }
    covered = entry.end;
    const DataType type = TypeOf(entry.dtype);
    if (type != DataType::kUnspecified && client::TensorBytes(type, entry.shape) != entry.end - entry.begin) {
      return file.Malformed("tensor '" + entry.name + "': " + client::ToString(type, entry.shape) + " has not " +
                            std::to_string(entry.end - entry.begin) + " bytes");
    }
  }
  if (covered != file.size() - *data_start) {
    return file.Malformed("the tensors have " + std::to_string(covered) + " bytes, the file " +
                          std::to_string(file.size() - *data_start));
  }
  return entries;
}

// The first few names, for messages.
std::string Names(const std::vector<Entry>& entries) {
  constexpr std::size_t kMost = 10;
  std::string names;
  for (std::size_t i = 0; i < std::min(entries.size(), kMost); ++i) names += (i > 0 ? ", " : "") + entries[i].name;
  return entries.size() > kMost ? names + ", ..." : names;
}

}  // namespace

absl::StatusOr<client::Tensor> ReadSafetensors(const std::string& path, const std::string& name) {
  absl::StatusOr<InputFile> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  std::int64_t data_start = 0;
  const absl::StatusOr<std::vector<Entry>> entries = ReadEntries(*file, &data_start);
  if (!entries.ok()) return entries.status();
  if (name.empty() && entries->size() != 1) {
    return file->Malformed("holds " + std::to_string(entries->size()) +
                           " tensors; name one as FILE:TENSOR: " + Names(*entries));
  }
  const auto found = std::find_if(entries->begin(), entries->end(),
                                  [&name](const Entry& entry) { return name.empty() || entry.name == name; });
  if (found == entries->end()) {
    return absl::NotFoundError(path + ": no tensor '" + name + "'; there are: " + Names(*entries));
  }
  const DataType type = TypeOf(found->dtype);
  if (type == DataType::kUnspecified) {
    return file->Malformed("tensor '" + found->name + "': element type " + found->dtype + " is not supported");
  }
  absl::StatusOr<client::Tensor> tensor = client::Tensor::Allocate(type, found->shape);
  if (!tensor.ok()) return tensor.status();
  if (absl::Status read = file->Read(data_start + found->begin, tensor->mutable_bytes()); !read.ok()) return read;
  return tensor;
}

absl::Status WriteSafetensors(const std::string& path, const std::string& name, const client::TensorView& tensor) {
  json entry;
  for (const auto& [type_name, type] : kTypes) {
    if (type == tensor.dtype) entry["dtype"] = type_name;
  }
  entry["shape"] = tensor.shape;
  entry["data_offsets"] = {0, tensor.data.size()};
  json tensors;
  tensors[name] = entry;
  std::string header = tensors.dump(-1, ' ', false, json::error_handler_t::replace);
  header.append((kLengthBytes - header.size() % kLengthBytes) % kLengthBytes, ' ');  // aligns the data
  std::string head;
  for (int i = 0; i < kLengthBytes; ++i) head.push_back(static_cast<char>(header.size() >> (8 * i)));
  return WriteFile(path, head + header, tensor.data);
}

}  // namespace kernd::cli
