#include "controller/rendezvous/meeting.h"

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "controller/membership/rank_set.h"
#include "controller/protocol/codec.h"

namespace rueda {
namespace {

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

absl::StatusOr<std::vector<wire::Hello>> UnpackHellos(absl::string_view payload, int size) {
  wire::Hellos all;
  RUEDA_RETURN_IF_ERROR(ParseMessage(payload, &all));
  if (!all.error().empty() && all.code() >= 1 && all.code() <= 16) {
    return absl::Status(static_cast<absl::StatusCode>(all.code()), all.error());
  }
  if (all.hellos_size() != size) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank 0 knows of ", all.hellos_size(), " ranks, and the job has ", size));
  }
  std::vector<wire::Hello> hellos(all.hellos().begin(), all.hellos().end());
  RUEDA_RETURN_IF_ERROR(CheckHellos(hellos));
  return hellos;
}

}  // namespace rueda
