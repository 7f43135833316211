// PURE
#include "core/tensor/signature.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rueda {

const KindTraits& TraitsOf(OpKind kind) {
  // By the enum's number.
  static constexpr KindTraits kRows[kOpKindCount] = {
      //                       tensors reduces rooted ragged groups  fuses  ranks
      {"allreduce", true, true, false, false, true, true, false},
      {"broadcast", true, false, true, false, false, true, false},
      {"allgather", true, false, false, true, true, true, false},
      {"barrier", false, false, false, false, false, false, false},
      {"alltoall", true, false, false, true, false, true, false},
      {"reducescatter", true, true, false, false, true, true, false},
      {"reduce", true, true, true, false, false, true, false},
      {"gather", true, false, true, true, false, true, false},
      {"scatter", true, false, true, true, false, true, false},
      {"send/recv", true, false, true, false, false, false, false},
      {"join", false, false, false, false, false, false, false},
      {"add_process_set", false, false, false, false, false, false, true},
      {"remove_process_set", false, false, false, false, false, false, true},
  };
  return kRows[static_cast<int>(kind)];
}

absl::string_view OpKindName(OpKind kind) {
  return TraitsOf(kind).name;
}

absl::string_view ReduceOpName(ReduceOp op) {
  static constexpr const char* kNames[kReduceOpCount] = {"sum",     "average",      "min", "max",
                                                         "product", "band",         "bor", "bxor",
                                                         "adasum",  "average_live", "none"};
  return kNames[static_cast<int>(op)];
}

absl::string_view DeviceTypeName(DeviceType device) {
  return device == DeviceType::kCuda ? "CUDA" : "CPU";
}

bool IsAverage(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kAverageLive;
}

std::string Signature::ToString(size_t from) const {
  std::string text(OpKindName(kind));
  if (reduce_op != ReduceOp::kNone) absl::StrAppend(&text, "(", ReduceOpName(reduce_op), ")");
  if (!compression.none()) absl::StrAppend(&text, " ", compression.ToString());
  if (device != DeviceType::kCpu) absl::StrAppend(&text, " on ", DeviceTypeName(device));
  if (urgent) absl::StrAppend(&text, ", urgent");
  if (peer >= 0) {
    absl::StrAppend(&text, "(from ", root, " to ", peer, ")");
  } else if (root >= 0) {
    absl::StrAppend(&text, "(root ", root, ")");
  }
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
  if (a.kind != b.kind) return "kind of operation";
  if (a.reduce_op != b.reduce_op) return "reduce operation";
  if (a.root != b.root) return "root";
  if (a.peer != b.peer) return "receiver";
  if (a.device != b.device) return "device";
  if (a.urgent != b.urgent) return "priority";
  if (a.compression != b.compression) return "compressor";
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
