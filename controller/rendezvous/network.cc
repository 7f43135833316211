#include "controller/rendezvous/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controller/bus/socket.h"

namespace rueda {
namespace {

// Addresses for documentation: nobody has them, so the way there is the default route.
constexpr char kNowhere4[] = "192.0.2.1";    // RFC 5737
constexpr char kNowhere6[] = "2001:db8::1";  // RFC 3849
constexpr char kAnyPort[] = "9";             // routes don't depend on it

// The address that packets to `there` would leave from; "" when there is no way. Nothing is sent.
std::string SourceTowards(const sockaddr* there, socklen_t length) {
  const UniqueFd fd(socket(there->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage = {};
  auto* const own = reinterpret_cast<sockaddr*>(&storage);
  socklen_t size = sizeof storage;
  if (!fd.valid() || connect(fd.get(), there, length) != 0 ||
      getsockname(fd.get(), own, &size) != 0) {
    return "";
  }
  return NumericAddress(own);
}

const Interface* FindAddress(const std::vector<Interface>& interfaces, const std::string& address) {
  const auto it = std::find_if(interfaces.begin(), interfaces.end(),
                               [&](const Interface& each) { return each.address == address; });
  return address.empty() || it == interfaces.end() ? nullptr : &*it;
}

bool InRange(uint32_t address, uint32_t network, int bits) {
  return (address ^ network) >> (32 - bits) == 0;
}

bool IsPublic4(const in_addr& in) {
  const uint32_t address = ntohl(in.s_addr);
  return !InRange(address, 0x7f000000, 8) && !InRange(address, 0x0a000000, 8) &&
         !InRange(address, 0xac100000, 12) && !InRange(address, 0xc0a80000, 16) &&
         !InRange(address, 0xa9fe0000, 16) && !InRange(address, 0x64400000, 10);
}

}  // namespace

absl::StatusOr<Interface> ChooseInterface(const std::string& name) {
  if (!name.empty()) return FindInterface(name);
  RUEDA_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, ListInterfaces());
  for (const char* nowhere : {kNowhere4, kNowhere6}) {
    const absl::StatusOr<Interface> found = InterfaceTowards(nowhere);
    if (found.ok()) return found;
  }
  std::vector<Interface> outward;
  for (const Interface& each : interfaces) {
    const bool again = !outward.empty() && outward.back().name == each.name;
    if (!each.is_loopback && !again) outward.push_back(each);
  }
  if (outward.size() == 1) return outward[0];
  return absl::InvalidArgumentError(absl::StrCat(
      "which network interface leads to the other hosts? There is no default route; set "
      "RUEDA_NETWORK_INTERFACE to one of these: ",
      InterfacesText(interfaces)));
}

absl::StatusOr<Interface> InterfaceTowards(const std::string& host) {
  const Addresses addresses = Resolve(host, kAnyPort, SOCK_DGRAM).value_or(nullptr);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    const absl::StatusOr<Interface> found =
        InterfaceWithAddress(SourceTowards(each->ai_addr, each->ai_addrlen));
    if (found.ok() && !found->is_loopback) return found;
  }
  return absl::NotFoundError(absl::StrCat("no route to ", host));
}

absl::StatusOr<Interface> OwnInterfaceOf(const std::string& host) {
  RUEDA_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, "", SOCK_STREAM));
  absl::StatusOr<Interface> own = absl::NotFoundError(absl::StrCat(host, " is not this host"));
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    absl::StatusOr<Interface> found = InterfaceWithAddress(NumericAddress(each->ai_addr));
    if (!found.ok()) continue;
    if (!found->is_loopback) return found;
    own = std::move(found);
  }
  return own;
}

bool LeadsElsewhere(const std::string& host) {
  const Addresses addresses = Resolve(host, "", SOCK_STREAM).value_or(nullptr);
  for (const addrinfo* each = addresses.get(); each != nullptr; each = each->ai_next) {
    // A host may know its own name by an address such as 127.0.1.1, which no interface has.
    const std::string address = NumericAddress(each->ai_addr);
    if (address.empty() || absl::StartsWith(address, "127.")) return false;
    if (InterfaceWithAddress(address).ok()) return false;
  }
  return addresses != nullptr;
}

absl::StatusOr<Interface> InterfaceWithAddress(const std::string& address) {
  RUEDA_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, ListInterfaces());
  if (const Interface* found = FindAddress(interfaces, address); found != nullptr) return *found;
  return absl::NotFoundError(absl::StrCat("no network interface of this host has the address ",
                                          address, "; there are ", InterfacesText(interfaces)));
}

absl::StatusOr<Interface> InterfaceOf(const UniqueFd& socket) {
  sockaddr_storage storage = {};
  socklen_t size = sizeof storage;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    return ErrnoStatus(errno, "asking for a socket's address");
  }
  return InterfaceWithAddress(NumericAddress(reinterpret_cast<const sockaddr*>(&storage)));
}

bool IsPublicAddress(absl::string_view address) {
  const std::string text(address.substr(0, address.find('%')));
  in_addr four;
  in6_addr six;
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) return IsPublic4(four);
  if (inet_pton(AF_INET6, text.c_str(), &six) != 1) return true;  // to be on the safe side
  if (IN6_IS_ADDR_V4MAPPED(&six)) {
    std::copy(six.s6_addr + 12, six.s6_addr + 16, reinterpret_cast<uint8_t*>(&four.s_addr));
    return IsPublic4(four);
  }
  const bool unique_local = (six.s6_addr[0] & 0xfe) == 0xfc;
  return !IN6_IS_ADDR_LOOPBACK(&six) && !IN6_IS_ADDR_LINKLOCAL(&six) && !unique_local;
}

}  // namespace rueda
