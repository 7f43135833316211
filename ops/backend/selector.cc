#include "ops/backend/selector.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace rueda {

std::string Selection::Table() const {
  std::string table;
  for (const Candidate& candidate : candidates) {
    absl::StrAppendFormat(
        &table, "%s  %-12s %s", table.empty() ? "" : "\n", candidate.backend,
        candidate.verdict.ok() ? "yes" : absl::StrCat("no: ", candidate.verdict.message()));
  }
  return table;
}

absl::StatusOr<Selection> SelectBackend(absl::string_view requested, const Members& members,
                                        absl::Span<const std::unique_ptr<Backend>> backends) {
  Selection selection;
  for (const std::unique_ptr<Backend>& backend : backends) {
    if (backend->on_device() != nullptr) continue;
    // Asking one that nobody needs may cost something: Gloo's loads its library.
    absl::Status verdict;
    if (selection.backend != nullptr) {
      verdict = absl::FailedPreconditionError("not needed");
    } else if (members.ranks.size() > 1 && requested != "auto" && requested != backend->name()) {
      verdict =
          absl::FailedPreconditionError(absl::StrCat("backend=", requested, " was asked for"));
    } else {
      verdict = backend->Viable(members);
    }
    if (verdict.ok()) selection.backend = backend.get();
    selection.candidates.push_back({std::string(backend->name()), std::move(verdict)});
  }
  if (selection.backend == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("no backend can serve process set ",
                                                      members.set, " of ", members.ranks.size(),
                                                      " ranks:\n", selection.Table()));
  }
  return selection;
}

}  // namespace rueda
