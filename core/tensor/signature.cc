// PURE
#include "core/tensor/signature.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rueda {

std::string Signature::ToString(size_t from) const {
  std::string text = traits().ToString();
  if (!ranks.empty()) {
    absl::StrAppend(&text, " {", absl::StrJoin(ranks, ", "), "}");
  }
  // A group of thousands of tensors is cut short: errors quote this.
  constexpr size_t kPartsShown = 8;
  const size_t begin = from < kPartsShown ? 0 : from;
  const size_t end = std::min(parts.size(), begin + kPartsShown);
  if (begin > 0) absl::StrAppend(&text, " ", begin, " tensors");
  for (size_t i = begin; i < end; ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", DTypeName(parts[i].dtype));
    std::string shape = parts[i].shape.ToString();
    if (TraitsOf(kind).ragged) {
      shape = parts[i].shape.rank() == 0 ? "[*]" : absl::StrCat("[*, ", shape.substr(1));
    }
    absl::StrAppend(&text, shape);
    if (is_group()) absl::StrAppend(&text, " '", part_names[i], "'");
  }
  if (parts.size() > end) absl::StrAppend(&text, ", and ", parts.size() - end, " more");
  return text;
}

size_t Signature::FirstDifference(const Signature& a, const Signature& b) {
  const size_t both = std::min(a.parts.size(), b.parts.size());
  for (size_t i = 0; i < both; ++i) {
    if (a.parts[i] != b.parts[i]) return i;
    if (a.is_group() && b.is_group() && a.part_names[i] != b.part_names[i]) return i;
  }
  return both;
}

absl::string_view Signature::Difference(const Signature& a, const Signature& b) {
  const absl::string_view of_traits = OperationTraits::Difference(a, b);
  if (!of_traits.empty()) return of_traits;
  if (a.parts.size() != b.parts.size()) return "number of tensors in the group";
  if (a.part_names != b.part_names) return "names of the tensors in the group";
  for (size_t i = 0; i < a.parts.size(); ++i) {
    if (a.parts[i].dtype != b.parts[i].dtype) return "dtype";
  }
  for (size_t i = 0; i < a.parts.size(); ++i) {
    if (a.parts[i].shape != b.parts[i].shape) return "shape";
  }
  if (a.ranks != b.ranks) return "list of ranks";
  return "";
}

}  // namespace rueda
