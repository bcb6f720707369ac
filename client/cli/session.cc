#include "client/cli/session.h"

#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/files/tensor_file.h"
#include "kernd/kernels/error.h"

namespace kernd::cli {
namespace {

constexpr std::string_view kResident = "resident:";
constexpr std::size_t kIdBytes = 16;

}  // namespace

CLI::Validator TensorId() {
  return WholeNumber<std::uint64_t>(0, kMaxTensorId);
}

CLI::Validator IsSessionId() {
  return CLI::Validator(
      [](const std::string& text) {
        const bool hex = text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
        return hex && text.size() == 2 * kIdBytes ? std::string() : "'" + text + "' is not 32 hexadecimal digits";
      },
      "SESSION");
}

std::string SessionIdText(const std::string& id) {
  return absl::BytesToHexString(id);
}

client::Session AttachSession(const client::Client& client, const std::string& text) {
  client::Session session = client.AttachSession(absl::HexStringToBytes(text));
  session.Release();
  return session;
}

absl::StatusOr<std::optional<std::uint64_t>> ParseResident(const std::string& text) {
  if (!text.starts_with(kResident)) return std::optional<std::uint64_t>();
  const std::optional<std::uint64_t> id = ParseWhole<std::uint64_t>(std::string_view(text).substr(kResident.size()));
  if (!id || *id > kMaxTensorId) {
    return absl::InvalidArgumentError(absl::StrCat(text, ": must be resident:ID, with an ID from 0 to ", kMaxTensorId));
  }
  return id;
}

absl::StatusOr<std::optional<client::Session>> SessionFor(const Context& context, const client::Client& client,
                                                          const std::string& text, Operands& operands) {
  if (text.empty()) return std::optional<client::Session>();
  client::Session session = AttachSession(client, text);
  absl::StatusOr<client::SessionContents> contents = session.List(context.CallOptions());
  if (!contents.ok()) return contents.status();
  operands.SetResident(std::move(contents->tensors));
  return std::optional(std::move(session));
}

absl::StatusOr<client::ResultPlace> ResultPlaceOf(const std::string& out) {
  absl::StatusOr<std::optional<std::uint64_t>> id = ParseResident(out);
  if (!id.ok()) return id.status();
  if (!*id && !out.empty()) KERND_RETURN_IF_ERROR(CheckOutput(out));
  return client::ResultPlace{.resident = *id};
}

}  // namespace kernd::cli
