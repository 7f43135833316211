// The main function of tests that need a device: exit status 77 when all cases skipped, so that
// nobody takes that for a success.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  const bool nothing_ran = tests.skipped_test_count() > 0 && tests.successful_test_count() == 0;
  return result == 0 && nothing_ran ? 77 : result;
}
