#include "controller/protocol/lost.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// Of the payload of an error.
constexpr char kLost[] = "rueda/lost";

}  // namespace

absl::Status ErrorOfRank(Rank rank, absl::Status error) {
  error.SetPayload(kLost, absl::Cord(absl::StrCat(rank)));
  return error;
}

absl::Status LostError(Rank rank, absl::string_view text) {
  return ErrorOfRank(rank, absl::UnavailableError(text));
}

std::optional<Rank> LostRank(const absl::Status& error) {
  const absl::optional<absl::Cord> payload = error.GetPayload(kLost);
  Rank rank = -1;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return rank;
}

wire::Roster RosterOfError(const absl::Status& error) {
  wire::Roster roster;
  roster.set_error(std::string(error.message()));
  roster.set_code(static_cast<uint32_t>(error.code()));
  if (const std::optional<Rank> lost = LostRank(error)) roster.set_lost(*lost);
  return roster;
}

absl::Status ErrorOf(const wire::Roster& roster) {
  if (roster.error().empty() || roster.code() < 1 || roster.code() > 16) return absl::OkStatus();
  absl::Status error(static_cast<absl::StatusCode>(roster.code()), roster.error());
  return roster.has_lost() ? ErrorOfRank(roster.lost(), std::move(error)) : error;
}

}  // namespace rueda
