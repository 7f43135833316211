#include "core/base/interfaces.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rueda {

absl::StatusOr<std::vector<Interface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return ErrnoStatus(errno, "listing this host's network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<Interface> interfaces;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      std::string address = NumericAddress(each->ifa_addr);
      if (address.empty() || (each->ifa_flags & IFF_UP) == 0) continue;
      interfaces.push_back(
          {each->ifa_name, std::move(address), (each->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return interfaces;
}

absl::StatusOr<Interface> FindInterface(const std::string& names) {
  RUEDA_ASSIGN_OR_RETURN(const std::vector<Interface> interfaces, ListInterfaces());
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    const auto it = std::find_if(interfaces.begin(), interfaces.end(),
                                 [&](const Interface& each) { return each.name == name; });
    if (it != interfaces.end()) return *it;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "network_interface=", names, ": this host has no such interface with an address; there are ",
      InterfacesText(interfaces)));
}

std::string InterfacesText(absl::Span<const Interface> interfaces) {
  std::string text;
  for (const Interface& each : interfaces) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", each.name, " (", each.address, ")");
  }
  return text.empty() ? "none" : text;
}

std::string NumericAddress(const sockaddr* address) {
  if (address == nullptr || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) {
    return "";
  }
  if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&six)) return "";
    if (IN6_IS_ADDR_V4MAPPED(&six)) {  // of a socket for both
      char text[INET_ADDRSTRLEN];
      return inet_ntop(AF_INET, &six.s6_addr[12], text, sizeof text);
    }
  }
  const socklen_t size = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST];
  return getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

}  // namespace rueda
