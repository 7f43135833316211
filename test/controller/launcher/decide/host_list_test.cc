#include "controller/launcher/decide/host_list.h"

#include <gtest/gtest.h>

namespace rueda {
namespace {

using Hosts = std::vector<HostSlots>;

Hosts Parsed(absl::string_view text) {
  absl::StatusOr<Hosts> hosts = ParseHosts(text);
  EXPECT_TRUE(hosts.ok()) << text << ": " << hosts.status();
  return hosts.ok() ? *hosts : Hosts();
}

TEST(Hosts, AreReadFromAList) {
  EXPECT_EQ(Parsed("a"), (Hosts{{"a", 1}}));
  EXPECT_EQ(Parsed("a:4,node-1.example.org:2,b"),
            (Hosts{{"a", 4}, {"node-1.example.org", 2}, {"b", 1}}));
  EXPECT_EQ(Parsed("10.0.0.1:1024"), (Hosts{{"10.0.0.1", 1024}}));
  EXPECT_EQ(Parsed("[fd00::1]:2,[::1],[fe80::1%eth0]:3"),
            (Hosts{{"fd00::1", 2}, {"::1", 1}, {"fe80::1%eth0", 3}}));
  EXPECT_EQ(Parsed("me@a:2"), (Hosts{{"me@a", 2}}));
  EXPECT_EQ(Parsed("a:2,b:1,a:3"), (Hosts{{"a", 5}, {"b", 1}}));
}

TEST(Hosts, AreReadFromAFile) {
  const absl::StatusOr<Hosts> hosts = ParseHostfile(
      "# the cluster\n\na slots=4\nb:2 # a comment\r\n\t c\n[fd00::1] slots \t = 3\na slots= 1");
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_EQ(*hosts, (Hosts{{"a", 5}, {"b", 2}, {"c", 1}, {"fd00::1", 3}}));
}

TEST(Hosts, AreRefusedWithTheReason) {
  const struct {
    std::string text;
    std::string message;
  } kCases[] = {
      {"", "'': no host is named"},
      {"a:2,", "'': no host is named"},
      {":2", "':2': no host is named"},
      {"[]:2", "'[]:2': no host is named"},
      {"a:0", "'a:0': expected a number of slots from 1 to 1024"},
      {"a:-1", "'a:-1': expected a number of slots from 1 to 1024"},
      {"a:", "'a:': expected a number of slots from 1 to 1024"},
      {"a:1025", "'a:1025': expected a number of slots from 1 to 1024"},
      {"a:99999999999", "'a:99999999999': expected a number of slots from 1 to 1024"},
      {"a:1000,a:1000", "'a:1000': more than 1024 slots of one host"},
      {"fd00::1:2", "'fd00::1:2': an IPv6 address is written in brackets"},
      {"[fd00::1", "'[fd00::1': ']' is missing"},
      {"[::1]2", "'[::1]2': expected ':' and slots after ']'"},
      {"-oProxyCommand=x", "'-oProxyCommand=x': a host's name does not begin with '-'"},
      {"a;rm:2",
       "'a;rm:2': a host's name has letters, digits, '-', '.', '_', and ':' in addresses"},
      {"a b", "'a b': expected commas between hosts"},
      {"a:2 b:2", "'a:2 b:2': expected commas between hosts"},
      {std::string("a\0b", 3), std::string("'a\0b'", 5) +
                                   ": a host's name has letters, digits, '-', "
                                   "'.', '_', and ':' in addresses"},
      {std::string(256, 'a'), "'" + std::string(256, 'a') + "': the host's name is too long"},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<Hosts> hosts = ParseHosts(each.text);
    EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument) << each.text;
    EXPECT_EQ(hosts.status().message(), each.message);
  }
}

TEST(Hosts, OfAFileAreRefusedWithTheLine) {
  const struct {
    const char* text;
    const char* message;
  } kCases[] = {
      {"", "it names no host"},
      {"# nothing\n", "it names no host"},
      {"a slots=2\nb slots=x", "line 2: 'x': expected a number of slots from 1 to 1024"},
      {"a slots", "line 1: 'slots': expected a host and slots=N on a line, and nothing else"},
      {"a:2 slots=2",
       "line 1: 'slots=2': expected a host and slots=N on a line, and nothing "
       "else"},
      {"a slots=2 slots=2",
       "line 1: 'slots=2': expected a host and slots=N on a line, and nothing "
       "else"},
      {"a b", "line 1: 'b': expected a host and slots=N on a line, and nothing else"},
      {"\n-x", "line 2: '-x': a host's name does not begin with '-'"},
  };
  for (const auto& each : kCases) {
    const absl::StatusOr<Hosts> hosts = ParseHostfile(each.text);
    EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument) << each.text;
    EXPECT_EQ(hosts.status().message(), each.message);
  }
}

TEST(Hosts, AreFilledInTurn) {
  const Hosts hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_EQ(*FillHosts(hosts, 1), (Hosts{{"a", 1}}));
  EXPECT_EQ(*FillHosts(hosts, 2), (Hosts{{"a", 2}}));
  EXPECT_EQ(*FillHosts(hosts, 4), (Hosts{{"a", 2}, {"b", 2}}));
  EXPECT_EQ(*FillHosts(hosts, 6), hosts);
  EXPECT_EQ(FillHosts(hosts, 7).status().message(),
            "7 ranks, but the hosts have 6 slots; write host:SLOTS for a host that takes more, or "
            "start fewer (-np)");
  EXPECT_EQ(FillHosts({{{"a", 1}}}, 2).status().message().substr(0, 34),
            "2 ranks, but the hosts have 1 slot");
}

}  // namespace
}  // namespace rueda
