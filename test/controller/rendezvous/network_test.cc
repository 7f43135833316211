#include "controller/rendezvous/network.h"

#include <gtest/gtest.h>

#include "controller/bus/socket.h"

namespace rueda {
namespace {

TEST(Network, ListsLoopbackAndNothingLinkLocal) {
  const absl::StatusOr<std::vector<Interface>> interfaces = ListInterfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status();
  bool has_loopback = false;
  for (const Interface& each : *interfaces) {
    EXPECT_NE(each.address.substr(0, 5), "fe80:") << each.name;
    EXPECT_EQ(each.address.find('%'), std::string::npos) << each.address;
    if (each.address == "127.0.0.1") {
      has_loopback = true;
      EXPECT_EQ(each.name, "lo");
      EXPECT_TRUE(each.is_loopback);
    }
  }
  EXPECT_TRUE(has_loopback);
}

TEST(Network, ChoosesByName) {
  const absl::StatusOr<Interface> interface = ChooseInterface("lo");
  ASSERT_TRUE(interface.ok()) << interface.status();
  EXPECT_EQ(interface->address, "127.0.0.1");
  const absl::Status unknown = ChooseInterface("tin0").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  const std::string beginning =
      "network_interface=tin0: this host has no such interface with an address; there are lo (127.";
  EXPECT_EQ(unknown.message().substr(0, beginning.size()), beginning);
}

TEST(Network, KnowsTheInterfaceOfAConnection) {
  const absl::StatusOr<UniqueFd> listener = ListenTcp("127.0.0.1");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const absl::StatusOr<UniqueFd> socket = ConnectTcp(*TcpAddressOf(*listener));
  ASSERT_TRUE(socket.ok()) << socket.status();
  const absl::StatusOr<Interface> interface = InterfaceOf(*socket);
  ASSERT_TRUE(interface.ok()) << interface.status();
  EXPECT_EQ(interface->name, "lo");
  EXPECT_EQ(interface->address, "127.0.0.1");
}

TEST(Network, TellsPublicAddresses) {
  for (const char* address :
       {"127.0.0.1", "127.255.255.255", "10.0.0.0", "10.255.255.255", "172.16.0.1",
        "172.31.255.255", "192.168.0.1", "169.254.1.1", "100.64.0.1", "100.127.255.255", "::1",
        "fe80::1", "fe80::1%eth0", "fc00::1", "fdff::1", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsPublicAddress(address)) << address;
  }
  for (const char* address :
       {"126.255.255.255", "128.0.0.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0",
        "192.167.255.255", "192.169.0.0", "169.253.255.255", "100.63.255.255", "100.128.0.0",
        "8.8.8.8", "2001:db8::1", "fe00::1", "::ffff:8.8.8.8", "::2", "", "host"}) {
    EXPECT_TRUE(IsPublicAddress(address)) << address;
  }
}

}  // namespace
}  // namespace rueda
