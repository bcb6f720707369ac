#include "client/cli/session.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"

namespace kernd::cli {
namespace {

constexpr std::string_view kResident = "resident:";
constexpr std::size_t kIdBytes = 16;

}  // namespace

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
  std::uint64_t id = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + kResident.size(), end, id);
  if (error != std::errc() || rest != end) return absl::InvalidArgumentError(text + ": must be resident:ID");
  return std::optional(id);
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
  return client::ResultPlace{.resident = *id};
}

}  // namespace kernd::cli
