// PURE
#include "core/tensor/traits.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace rueda {

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

std::string OperationTraits::ToString() const {
  std::string text(OpKindName(kind));
  if (reduce_op != ReduceOp::kNone) absl::StrAppend(&text, "(", ReduceOpName(reduce_op), ")");
  if (!compression.none()) absl::StrAppend(&text, " ", compression.ToString());
  if (device != DeviceType::kCpu) absl::StrAppend(&text, " on ", DeviceTypeName(device));
  if (priority == Priority::kUrgent) absl::StrAppend(&text, ", urgent");
  if (priority == Priority::kLow) absl::StrAppend(&text, ", low priority");
  if (peer >= 0) {
    absl::StrAppend(&text, "(from ", root, " to ", peer, ")");
  } else if (root >= 0) {
    absl::StrAppend(&text, "(root ", root, ")");
  }
  return text;
}

absl::string_view OperationTraits::Difference(const OperationTraits& a, const OperationTraits& b) {
  const auto& [kind, reduce_op, root, peer, device, priority, compression] = a;
  if (kind != b.kind) return "kind of operation";
  if (reduce_op != b.reduce_op) return "reduce operation";
  if (root != b.root) return "root";
  if (peer != b.peer) return "receiver";
  if (device != b.device) return "device";
  if (priority != b.priority) return "priority";
  if (compression != b.compression) return "compressor";
  return "";
}

bool Scaling::finite() const {
  return std::isfinite(prescale) && std::isfinite(postscale);
}

std::string Scaling::ToString() const {
  return absl::StrCat("prescale ", prescale, " postscale ", postscale);
}

}  // namespace rueda
