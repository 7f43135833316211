#include "controller/rendezvous/meeting.h"

#include <map>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "controller/membership/rank_set.h"
#include "controller/protocol/codec.h"

namespace rueda {
namespace {

// Each rank of it has a copy.
constexpr size_t kPlaceBytesMax = 4'096;

// FAILED_PRECONDITION when the ranks' words for one thing differ: "what: a on ranks 0, 1; b on rank
// 2".
absl::Status CheckEqual(absl::string_view what,
                        const std::map<std::string, std::vector<Rank>>& by) {
  if (by.size() <= 1) return absl::OkStatus();
  std::string text = absl::StrCat(what, " differs between the ranks: ");
  bool first = true;
  for (const auto& [value, ranks] : by) {
    absl::StrAppend(&text, first ? "" : "; ", value, " on ", RanksText(ranks));
    first = false;
  }
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::Status CheckHellos(absl::Span<const wire::Hello> hellos) {
  std::map<std::string, std::vector<Rank>> sizes, versions;
  std::map<std::string, std::map<std::string, std::vector<Rank>>> knobs;
  for (size_t i = 0; i < hellos.size(); ++i) {
    const wire::Hello& hello = hellos[i];
    const Rank rank = static_cast<Rank>(i);
    if (hello.rank() != rank) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " says that it is rank ", hello.rank()));
    }
    sizes[absl::StrCat(hello.size())].push_back(rank);
    versions[hello.version()].push_back(rank);
    for (const wire::Knob& knob : hello.agreed()) knobs[knob.name()][knob.value()].push_back(rank);
  }
  RUEDA_RETURN_IF_ERROR(CheckEqual("the number of ranks", sizes));
  RUEDA_RETURN_IF_ERROR(CheckEqual("the version of librueda", versions));
  for (const auto& [name, by] : knobs) {
    RUEDA_RETURN_IF_ERROR(CheckEqual(absl::StrCat("RUEDA_", absl::AsciiStrToUpper(name)), by));
  }
  if (hellos[0].size() != static_cast<int>(hellos.size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job has ", hellos.size(), " ranks, and they say that it has ", hellos[0].size()));
  }
  return absl::OkStatus();
}

wire::Roster MakeRoster(absl::Span<const wire::Hello> hellos) {
  wire::Roster roster;
  roster.set_bus_address(hellos[0].bus_address());
  std::map<std::tuple<std::string, std::string, std::string, uint64_t>, uint32_t> known;
  for (const wire::Hello& hello : hellos) {
    const auto [it, is_new] = known.try_emplace(
        {hello.host_id(), hello.host_name(), hello.data_address(), hello.pid_namespace()},
        static_cast<uint32_t>(known.size()));
    if (is_new) {
      wire::Place* place = roster.add_places();
      place->set_host_id(hello.host_id());
      place->set_host_name(hello.host_name());
      place->set_data_address(hello.data_address());
      place->set_pid_namespace(hello.pid_namespace());
    }
    if (hello.has_room()) {
      wire::Place& place = *roster.mutable_places(static_cast<int>(it->second));
      if (!place.has_room() || hello.room() < place.room()) place.set_room(hello.room());
    }
    roster.add_place(it->second);
    roster.add_pid(hello.pid());
  }
  return roster;
}

absl::StatusOr<std::vector<wire::Hello>> HellosOf(const wire::Roster& roster, int size) {
  RUEDA_RETURN_IF_ERROR(ErrorOf(roster));
  if (roster.place_size() != size || roster.pid_size() != size) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank 0 knows of ", roster.place_size(), " ranks, and the job has ", size));
  }
  std::vector<wire::Hello> hellos(static_cast<size_t>(size));
  for (Rank rank = 0; rank < size; ++rank) {
    if (roster.place(rank) >= static_cast<uint32_t>(roster.places_size())) {
      return absl::DataLossError(absl::StrCat("the roster does not say where rank ", rank, " is"));
    }
    const wire::Place& place = roster.places(static_cast<int>(roster.place(rank)));
    if (place.ByteSizeLong() > kPlaceBytesMax) {
      return absl::DataLossError(absl::StrCat("the names of rank ", rank, "'s host are too long"));
    }
    wire::Hello& hello = hellos[static_cast<size_t>(rank)];
    hello.set_rank(rank);
    hello.set_host_id(place.host_id());
    hello.set_host_name(place.host_name());
    hello.set_data_address(place.data_address());
    hello.set_pid_namespace(place.pid_namespace());
    hello.set_pid(roster.pid(rank));
    if (place.has_room()) hello.set_room(place.room());
  }
  hellos[0].set_bus_address(roster.bus_address());
  return hellos;
}

}  // namespace rueda
