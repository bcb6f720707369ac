// Whether the parser that leaves tensors where they arrived agrees with protobuf's own about a body.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

namespace kernd::testing {

// Parses `body`, cut before each of `cuts` (ascending, within it), as a message of the type of `prototype`, both ways.
// Empty, or in what the two differ.
std::string CompareParsers(const google::protobuf::Message& prototype, std::string_view body,
                           const std::vector<std::size_t>& cuts);

}  // namespace kernd::testing
