// PURE
#include "controller/launcher/decide/host_list.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", text, "': ", why));
}

absl::StatusOr<int> ReadSlots(absl::string_view number, absl::string_view text) {
  int slots = 0;
  if (!absl::SimpleAtoi(number, &slots) || slots < 1 || slots > kLocalRanksMax) {
    return Refuse(text, absl::StrCat("expected a number of slots from 1 to ", kLocalRanksMax));
  }
  return slots;
}

// "a", "a:4", "[fd00::1]", "[fd00::1]:4". `has_slots`: whether it names them.
absl::StatusOr<HostSlots> ReadHost(absl::string_view text, bool* has_slots) {
  HostSlots host;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t end = rest.find(']');
    if (end == absl::string_view::npos) return Refuse(text, "']' is missing");
    host.name = std::string(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    if (!rest.empty() && rest[0] != ':') return Refuse(text, "expected ':' and slots after ']'");
  } else {
    const size_t colon = rest.find(':');
    if (rest.find(' ') != absl::string_view::npos) {
      return Refuse(text, "expected commas between hosts");
    }
    if (colon != rest.rfind(':')) return Refuse(text, "an IPv6 address is written in brackets");
    host.name = std::string(rest.substr(0, colon));
    rest.remove_prefix(colon == absl::string_view::npos ? rest.size() : colon);
  }
  RUEDA_RETURN_IF_ERROR(CheckHostName(host.name, text));
  *has_slots = absl::ConsumePrefix(&rest, ":");
  if (*has_slots) {
    RUEDA_ASSIGN_OR_RETURN(host.slots, ReadSlots(rest, text));
  }
  return host;
}

absl::Status ReadLine(absl::string_view line, std::vector<HostSlots>* hosts) {
  // "slots = 2" too.
  const std::string text = absl::StrJoin(absl::StrSplit(line.substr(0, line.find('#')), '='), "=",
                                         [](std::string* out, absl::string_view part) {
                                           absl::StrAppend(out, absl::StripAsciiWhitespace(part));
                                         });
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) return absl::OkStatus();
  bool has_slots = false;
  RUEDA_ASSIGN_OR_RETURN(HostSlots host, ReadHost(words[0], &has_slots));
  for (absl::string_view word : absl::MakeConstSpan(words).subspan(1)) {
    if (has_slots || !absl::ConsumePrefix(&word, "slots=")) {
      return Refuse(word, "expected a host and slots=N on a line, and nothing else");
    }
    RUEDA_ASSIGN_OR_RETURN(host.slots, ReadSlots(word, word));
    has_slots = true;
  }
  return AddHost(host, words[0], hosts);
}

}  // namespace

absl::Status CheckHostName(absl::string_view name, absl::string_view text) {
  if (name.empty()) return Refuse(text, "no host is named");
  if (name.size() > kHostNameBytesMax) return Refuse(text, "the host's name is too long");
  if (name[0] == '-') return Refuse(text, "a host's name does not begin with '-'");
  const auto bad = std::find_if(name.begin(), name.end(), [](char c) {
    return !absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
           absl::string_view("-._:%@").find(c) == absl::string_view::npos;
  });
  if (bad != name.end()) {
    return Refuse(text, "a host's name has letters, digits, '-', '.', '_', and ':' in addresses");
  }
  return absl::OkStatus();
}

absl::Status AddHost(const HostSlots& host, absl::string_view text, std::vector<HostSlots>* hosts) {
  const auto it = std::find_if(hosts->begin(), hosts->end(),
                               [&](const HostSlots& each) { return each.name == host.name; });
  if (it == hosts->end()) {
    hosts->push_back(host);
  } else if (it->slots + host.slots > kLocalRanksMax) {
    return Refuse(text, absl::StrCat("more than ", kLocalRanksMax, " slots of one host"));
  } else {
    it->slots += host.slots;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HostSlots>> ParseHosts(absl::string_view text) {
  std::vector<HostSlots> hosts;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    bool has_slots = false;
    RUEDA_ASSIGN_OR_RETURN(const HostSlots host, ReadHost(item, &has_slots));
    RUEDA_RETURN_IF_ERROR(AddHost(host, item, &hosts));
  }
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> ParseHostfile(absl::string_view text) {
  std::vector<HostSlots> hosts;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const absl::Status status = ReadLine(line, &hosts);
    if (!status.ok()) {
      return StatusAt(absl::StrCat("line ", number), status);
    }
  }
  if (hosts.empty()) return absl::InvalidArgumentError("it names no host");
  return hosts;
}

absl::StatusOr<std::vector<HostSlots>> FillHosts(absl::Span<const HostSlots> hosts, int ranks) {
  std::vector<HostSlots> filled;
  int64_t slots = 0;
  for (const HostSlots& host : hosts) {
    if (slots < ranks) {
      filled.push_back(host);
      filled.back().slots = static_cast<int>(std::min<int64_t>(host.slots, ranks - slots));
    }
    slots += host.slots;
  }
  if (slots < ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat(ranks, " ranks, but the hosts have ", slots, slots == 1 ? " slot" : " slots",
                     "; write host:SLOTS for a host that takes more, or start fewer (-np)"));
  }
  return filled;
}

}  // namespace rueda
