#include "controller/rendezvous/detect/slurm_lists.h"

#include <gtest/gtest.h>

#include "core/base/limits.h"

namespace rueda {
namespace {

using Names = std::vector<std::string>;
using Counts = std::vector<int>;

TEST(SlurmLists, NodesAreExpanded) {
  const struct {
    const char* list;
    Names names;
  } kCases[] = {
      {"n1", {"n1"}},
      {"node-1.example.org", {"node-1.example.org"}},
      {"a,b,c", {"a", "b", "c"}},
      {"n[01-03,7],m5", {"n01", "n02", "n03", "n7", "m5"}},
      {"n[8-11]", {"n8", "n9", "n10", "n11"}},
      {"n[08-11]", {"n08", "n09", "n10", "n11"}},
      {"n[099-101]", {"n099", "n100", "n101"}},
      {"n[9-0011]", {"n9", "n10", "n11"}},
      {"n[5]", {"n5"}},
      {"n[5-5]", {"n5"}},
      {"n[000]", {"n000"}},
      {"r[1-2]n[01-02]", {"r1n01", "r1n02", "r2n01", "r2n02"}},
      {"r[1-2][3-4]", {"r13", "r14", "r23", "r24"}},
      {"x[1-2]-ib", {"x1-ib", "x2-ib"}},
      {"r[1,3]n[1-2]-ib.lab,z", {"r1n1-ib.lab", "r1n2-ib.lab", "r3n1-ib.lab", "r3n2-ib.lab", "z"}},
      {"n[999999999999999998-999999999999999999]", {"n999999999999999998", "n999999999999999999"}},
  };
  for (const auto& each : kCases) {
    const auto names = ExpandSlurmNodes(each.list);
    ASSERT_TRUE(names.ok()) << each.list << ": " << names.status();
    EXPECT_EQ(*names, each.names) << each.list;
  }
}

TEST(SlurmLists, CountsAreExpanded) {
  EXPECT_EQ(*ExpandSlurmCounts("4"), (Counts{4}));
  EXPECT_EQ(*ExpandSlurmCounts("2(x3),1"), (Counts{2, 2, 2, 1}));
  EXPECT_EQ(*ExpandSlurmCounts("3,1(x1),2(x2)"), (Counts{3, 1, 2, 2}));
  EXPECT_EQ(ExpandSlurmCounts("1(x65536)")->size(), kRanksMax);
}

TEST(SlurmLists, AsManyNodesAsAJobCanHaveAreExpanded) {
  EXPECT_EQ(ExpandSlurmNodes("n[1-65536]")->size(), kRanksMax);
  EXPECT_EQ(ExpandSlurmNodes("r[1-256]n[1-256]")->back(), "r256n256");
  EXPECT_EQ(ExpandSlurmNodes("n[1-65535],m")->back(), "m");
}

TEST(SlurmLists, NodesAreRefusedWithThePlace) {
  const struct {
    std::string list;
    const char* message;
  } kCases[] = {
      {"", "at character 1: expected a node's name, found the end"},
      {"a,", "at character 3: expected a node's name, found the end"},
      {",a", "at character 1: expected a node's name, found ','"},
      {"a,,b", "at character 3: expected a node's name, found ','"},
      {"n[", "at character 3: expected a number, found the end"},
      {"n[]", "at character 3: expected a number, found ']'"},
      {"n[1-", "at character 5: expected a number, found the end"},
      {"n[1-]", "at character 5: expected a number, found ']'"},
      {"n[-1]", "at character 3: expected a number, found '-'"},
      {"n[1", "at character 4: expected ',', '-' or ']', found the end"},
      {"n[1-2-3]", "at character 6: expected ',', '-' or ']', found '-'"},
      {"n[1,]", "at character 5: expected a number, found ']'"},
      {"n[1 ,2]", "at character 4: expected ',', '-' or ']', found ' '"},
      {"n[a-b]", "at character 3: expected a number, found 'a'"},
      {"n[1[2]]", "at character 4: expected ',', '-' or ']', found '['"},
      {"n]", "at character 2: expected ',' or '[', found ']'"},
      {"n[1]]", "at character 5: expected ',' or '[', found ']'"},
      {"n[3-1]", "at character 3: a range ends before it begins"},
      {"n[1-1000000000]", "at character 3: more than 65536 nodes"},
      {"n[0-65536]", "at character 3: more than 65536 nodes"},
      {"n[1-65536,1]", "at character 11: more than 65536 nodes"},
      {"r[1-1000]n[1-1000]", "at character 1: more than 65536 nodes"},
      {"a,r[1-9][1-9999][1-9999]", "at character 3: more than 65536 nodes"},
      {"n[1-65536],m", "at character 12: more than 65536 nodes"},
      {"n[1-1000000000000000000]", "at character 5: the number is too large"},
      {"n[9223372036854775807]", "at character 3: the number is too large"},
      {"n[99999999999999999999999]", "at character 3: the number is too large"},
      {"n[" + std::string(300, '0') + "-9]", "at character 3: the number is too large"},
      {std::string(255, 'n') + "[1-9]", "at character 1: the name is too long"},
      {"n[1-9]" + std::string(255, 'n'), "at character 1: the name is too long"},
  };
  for (const auto& each : kCases) {
    const auto names = ExpandSlurmNodes(each.list);
    EXPECT_EQ(names.status().code(), absl::StatusCode::kInvalidArgument) << each.list;
    EXPECT_EQ(names.status().message(), each.message) << each.list;
  }
}

TEST(SlurmLists, CountsAreRefusedWithThePlace) {
  const struct {
    const char* list;
    const char* message;
  } kCases[] = {
      {"", "at character 1: expected a number, found the end"},
      {"2,", "at character 3: expected a number, found the end"},
      {"2(3)", "at character 3: expected 'x' and a number, found '3'"},
      {"2(x)", "at character 4: expected a number, found ')'"},
      {"2(x3", "at character 5: expected ')', found the end"},
      {"2(x3)1", "at character 6: expected ',' or '(x', found '1'"},
      {"0", "at character 1: expected numbers from 1 to 65536"},
      {"1,2(x0)", "at character 3: expected numbers from 1 to 65536"},
      {"65537", "at character 1: expected numbers from 1 to 65536"},
      {"1(x65537)", "at character 1: more than 65536 nodes"},
      {"1(x65536),1", "at character 11: more than 65536 nodes"},
      {"1(x999999999999999999)", "at character 1: more than 65536 nodes"},
  };
  for (const auto& each : kCases) {
    const auto counts = ExpandSlurmCounts(each.list);
    EXPECT_EQ(counts.status().code(), absl::StatusCode::kInvalidArgument) << each.list;
    EXPECT_EQ(counts.status().message(), each.message) << each.list;
  }
}

}  // namespace
}  // namespace rueda
