// Tables of what Validate refuses: one way to break a good problem a row, with the code and the field of the refusal.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernd/kernels/error.h"

namespace kernd::testing {

inline constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr absl::StatusCode kUnsupported = absl::StatusCode::kUnimplemented;

template <typename Problem>
struct Refusal {
  std::string name;
  absl::StatusCode code;
  std::string field;
  std::function<void(Problem&)> breaks;
  friend void PrintTo(const Refusal& r, std::ostream* os) { *os << r.name; }
};

inline constexpr auto kCaseName = [](const auto& test) { return test.param.name; };

inline void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& field) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(DetailOf(status).field, field) << status;
  EXPECT_EQ(DetailOf(status).reason, code == kInvalid ? reason::kInvalidField : reason::kUnsupported);
  EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(field + " is ")) << "field, value, rule";
}

}  // namespace kernd::testing
