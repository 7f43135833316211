// PURE
#include "core/tensor/signature.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rueda {

absl::string_view OpKindName(OpKind kind) {
  static constexpr const char* kNames[kOpKindCount] = {"allreduce", "broadcast", "allgather",
                                                       "barrier", "add_process_set"};
  return kNames[static_cast<int>(kind)];
}

absl::string_view ReduceOpName(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {"sum",     "average",      "min", "max",
                                                         "product", "band",         "bor", "bxor",
                                                         "adasum",  "average_live", "none"};
  return kNames[static_cast<int>(op)];
}

bool IsAverage(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kAverageLive;
}

std::string Signature::ToString() const {
  std::string text(OpKindName(kind));
  if (reduce_op != ReduceOp::kNone) absl::StrAppend(&text, "(", ReduceOpName(reduce_op), ")");
  if (root >= 0) absl::StrAppend(&text, "(root ", root, ")");
  if (kind == OpKind::kAddProcessSet) {
    absl::StrAppend(&text, " {", absl::StrJoin(ranks, ", "), "}");
  }
  // A group of thousands of tensors is cut short: errors quote this.
  constexpr size_t kPartsShown = 8;
  for (size_t i = 0; i < parts.size() && i < kPartsShown; ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", DTypeName(parts[i].dtype));
    std::string shape = parts[i].shape.ToString();
    if (kind == OpKind::kAllgather) {  // the ragged dimension
      shape = parts[i].shape.rank() == 0 ? "[*]" : absl::StrCat("[*, ", shape.substr(1));
    }
    absl::StrAppend(&text, shape);
    if (is_group()) absl::StrAppend(&text, " '", part_names[i], "'");
  }
  if (parts.size() > kPartsShown) {
    absl::StrAppend(&text, ", and ", parts.size() - kPartsShown, " more");
  }
  return text;
}

absl::string_view Signature::Difference(const Signature& a, const Signature& b) {
  if (a.kind != b.kind) return "kind of operation";
  if (a.reduce_op != b.reduce_op) return "reduce operation";
  if (a.root != b.root) return "root";
  if (a.device != b.device) return "device";
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
