// Passing errors on. Each test's own thread.
#include "core/base/status.h"

#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace rueda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Status, OfErrnoSaysWhatFailedAndWhy) {
  const absl::Status status = ErrnoStatus(ENOENT, "opening a thing");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), StartsWith("opening a thing: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("No such file"));
}

TEST(Status, ADeepCopySharesNothing) {
  const absl::Status original = absl::NotFoundError("a message of some length, not inlined");
  const absl::Status copy = DeepCopy(original);
  EXPECT_EQ(copy, original);
  EXPECT_NE(copy.message().data(), original.message().data());
  EXPECT_TRUE(DeepCopy(absl::OkStatus()).ok());
}

absl::Status PassOn(const absl::Status& status, int* reached) {
  RUEDA_RETURN_IF_ERROR(status);
  ++*reached;
  return absl::OkStatus();
}

absl::StatusOr<int> Assign(absl::StatusOr<std::unique_ptr<int>> from) {
  RUEDA_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, std::move(from));
  return *value + 1;
}

TEST(Status, TheMacrosReturnErrorsAndNothingElse) {
  int reached = 0;
  EXPECT_TRUE(PassOn(absl::OkStatus(), &reached).ok());
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(PassOn(absl::AbortedError("x"), &reached), absl::AbortedError("x"));
  EXPECT_EQ(reached, 1);
  EXPECT_EQ(*Assign(std::make_unique<int>(4)), 5);
  EXPECT_EQ(Assign(absl::AbortedError("y")).status(), absl::AbortedError("y"));
}

}  // namespace
}  // namespace rueda
