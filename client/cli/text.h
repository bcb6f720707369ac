// Foreign text - of a daemon, of a file, of the command line - made fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace kernd::cli {

// `text` without anything that a terminal acts upon: control characters, bytes that are no UTF-8, and the characters
// that turn the direction of writing stand as \n, \t, \x1b and so on. Longer than 2,000 bytes: cut off, with "..."
// behind.
std::string Printable(std::string_view text);

// Whether it is all well-formed: nothing cut off, overlong, of surrogates, or beyond U+10FFFF.
bool IsUtf8(std::string_view text);

}  // namespace kernd::cli
