// Opening modules: what is refused, and in which words.
#include "ops/backend/module.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace rueda {
namespace {

ModuleName Named(const char* name) {
  return {name};
}

absl::Status Load(const std::string& name) {
  return LoadModule(Named(name.c_str()), RUEDA_TEST_MODULES).status();
}

TEST(Module, OneThatIsRightIsOpenedAndTwiceIsTheSame) {
  const absl::StatusOr<const rueda_module*> module = LoadModule(Named("whole"), RUEDA_TEST_MODULES);
  ASSERT_TRUE(module.ok()) << module.status();
  EXPECT_STREQ((*module)->name, "whole");
  EXPECT_EQ(*LoadModule(Named("whole"), RUEDA_TEST_MODULES), *module);
}

TEST(Module, ItsSymbolsStayItsOwn) {
  ASSERT_TRUE(Load("whole").ok());
  EXPECT_EQ(dlsym(RTLD_DEFAULT, RUEDA_MODULE_ENTRY), nullptr);
}

TEST(Module, AMissingFileIsNotFoundAndNamed) {
  const absl::Status status = Load("nowhere");
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "/librueda_nowhere.so")) << status;
}

TEST(Module, OneThatIsMissingHereIsNotLookedForElsewhere) {
  ASSERT_EQ(setenv("LD_LIBRARY_PATH", RUEDA_TEST_MODULES, 1), 0);
  EXPECT_TRUE(absl::IsNotFound(LoadModule(Named("whole"), testing::TempDir()).status()));
}

TEST(Module, AFileThatIsNoLibraryIsRefused) {
  const std::string directory = testing::TempDir();
  std::ofstream(directory + "/librueda_text.so") << "not a library\n";
  const absl::Status status = LoadModule(Named("text"), directory).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "librueda_text.so")) << status;
}

struct Case {
  const char* name;
  const char* words;
};

class Broken : public testing::TestWithParam<Case> {};

TEST_P(Broken, IsRefusedWithTheReason) {
  const absl::Status status = Load(GetParam().name);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), GetParam().words)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "librueda_")) << status;
}

INSTANTIATE_TEST_SUITE_P(
    Module, Broken,
    testing::Values(Case{"no_entry", "no module of Rueda's"}, Case{"no_table", "no table"},
                    Case{"other_abi", "version 6 of the module interface, and this library 5"},
                    Case{"short", "16 bytes"}, Case{"misnamed", "the module another"},
                    Case{"holes", "holes"}, Case{"undefined", "nobody_defines_this"},
                    Case{"lost_dependency", "librueda_test_lost.so"}),
    [](const testing::TestParamInfo<Case>& broken) { return std::string(broken.param.name); });

TEST(Module, DirectoryIsBesideThisProgram) {
  const absl::StatusOr<std::string> directory = ModuleDirectory();
  ASSERT_TRUE(directory.ok()) << directory.status();
  ASSERT_TRUE(absl::EndsWith(*directory, "/rueda")) << *directory;
  const std::string beside = directory->substr(0, directory->rfind('/'));
  EXPECT_TRUE(std::ifstream(beside + "/module_test").good()) << beside;
}

}  // namespace
}  // namespace rueda
