// PURE
#include "ops/hierarchical/inline_operation.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "ops/backend/range.h"
#include "ops/hierarchical/cross_wire.h"

namespace rueda {
namespace {

class Inline {
 public:
  Inline(const BucketOperation& operation, int self, bool narrow,
         absl::Span<const std::string> brought)
      : operation_(operation), self_(self), narrow_(narrow), brought_(brought) {}

  absl::Status Check() const {
    const size_t members = brought_.size();
    const size_t counts = operation_.counts.size();
    if (operation_.pieces.size() > 1 || (PerMember() && counts != members) ||
        (operation_.kind == OpKind::kAlltoall && counts != members * members)) {
      return absl::InternalError("the plan has the data of an operation that needs none");
    }
    for (size_t member = 0; member < members; ++member) {
      if (brought_[member].size() == BytesOf(static_cast<int>(member))) continue;
      return absl::InternalError(absl::StrCat("the plan has ", brought_[member].size(),
                                              " bytes of member ", member, " where it brings ",
                                              BytesOf(static_cast<int>(member))));
    }
    return absl::OkStatus();
  }

  void Execute(const std::vector<std::vector<int>>& hosts) {
    if (operation_.pieces.empty()) return;
    char* const output = static_cast<char*>(operation_.pieces[0].output);
    if (output == nullptr) return;
    switch (operation_.kind) {
      case OpKind::kAllreduce:
      case OpKind::kReduce:
        if (operation_.WantsResult(self_)) Reduce(hosts, {0, operation_.elements}, output);
        return;
      case OpKind::kReducescatter:
        Reduce(hosts, ShareOf(self_), output);
        return;
      case OpKind::kAllgather:
      case OpKind::kGather:
        if (operation_.Gets(self_)) TakeAll(output);
        return;
      case OpKind::kScatter:
        Take(operation_.root, OffsetIn(0, self_), Size(Count(self_)), output);
        return;
      case OpKind::kAlltoall:
        TakeShares(output);
        return;
      default:  // a broadcast
        Take(operation_.root, 0, Size(operation_.elements), output);
    }
  }

 private:
  // Counts are by member.
  bool PerMember() const {
    return operation_.kind == OpKind::kAllgather || operation_.kind == OpKind::kGather ||
           operation_.kind == OpKind::kScatter || operation_.kind == OpKind::kReducescatter;
  }
  int members() const { return static_cast<int>(brought_.size()); }
  size_t Size(int64_t elements) const {
    return static_cast<size_t>(elements) * DTypeSize(operation_.dtype);
  }
  int64_t Count(int i) const { return operation_.counts[static_cast<size_t>(i)]; }
  // Of the counts from `first` on, the sum of those before the `i`-th; in bytes.
  int64_t Before(int first, int i) const {
    int64_t elements = 0;
    for (int k = 0; k < i; ++k) elements += Count(first + k);
    return elements;
  }
  size_t OffsetIn(int first, int i) const { return Size(Before(first, i)); }
  // What a member gets of a reducescatter.
  Range ShareOf(int member) const { return {Before(0, member), Before(0, member + 1)}; }
  size_t BytesOf(int member) const {
    switch (operation_.kind) {
      case OpKind::kBroadcast:
        return member == operation_.root ? Size(operation_.elements) : 0;
      case OpKind::kAllgather:
      case OpKind::kGather:
        return Size(Count(member));
      case OpKind::kScatter:
        return member == operation_.root ? OffsetIn(0, members()) : 0;
      case OpKind::kAlltoall:
        return OffsetIn(member * members(), members());
      case OpKind::kReducescatter:
        return OffsetIn(0, members());
      default:
        return Size(operation_.elements);  // of a barrier: 0
    }
  }

  void Take(int member, size_t offset, size_t bytes, char* to) const {
    if (bytes > 0) memmove(to, brought_[static_cast<size_t>(member)].data() + offset, bytes);
  }
  void TakeAll(char* to) const {
    for (const std::string& data : brought_) {
      if (!data.empty()) memcpy(to, data.data(), data.size());
      to += data.size();
    }
  }
  void TakeShares(char* to) const {
    for (int giver = 0; giver < members(); ++giver) {
      const int first = giver * members();
      const size_t bytes = Size(Count(first + self_));
      Take(giver, OffsetIn(first, self_), bytes, to);
      to += bytes;
    }
  }

  // Over each host's members in rank order, then over the hosts, as elements travel between them.
  void Reduce(const std::vector<std::vector<int>>& hosts, Range range, char* output) {
    const int64_t count = range.size();
    const kernels::Wire wire = CrossWire(operation_, operation_.reduce_op, hosts, narrow_);
    const size_t bytes = static_cast<size_t>(count) * DTypeSize(wire.type);
    std::vector<const char*> operands;
    std::vector<std::string> widened;
    for (const std::string& data : brought_) {
      operands.push_back(data.data() + Size(range.begin));
      if (!wire.widens()) continue;
      widened.emplace_back(bytes, '\0');
      kernels::Widen(wire, operands.back(), widened.back().data(), count);
    }
    for (size_t i = 0; i < widened.size(); ++i) operands[i] = widened[i].data();
    std::vector<std::string> sums;
    std::vector<const void*> sources;
    for (const std::vector<int>& members : hosts) {
      sources.clear();
      for (const int member : members) sources.push_back(operands[static_cast<size_t>(member)]);
      sums.emplace_back(bytes, '\0');
      kernels::Reduce(wire.type, operation_.reduce_op, sources, sums.back().data(), count,
                      wire.before);
    }
    sources.clear();
    for (const std::string& sum : sums) sources.push_back(sum.data());
    kernels::Combine(wire, operation_.reduce_op, sources, output, count);
  }

  const BucketOperation& operation_;
  const int self_;
  const bool narrow_;
  const absl::Span<const std::string> brought_;
};

}  // namespace

absl::Status ExecuteInline(const BucketOperation& operation,
                           const std::vector<std::vector<int>>& hosts, int self, bool narrow,
                           absl::Span<const std::string> brought) {
  Inline execution(operation, self, narrow, brought);
  RUEDA_RETURN_IF_ERROR(execution.Check());
  execution.Execute(hosts);
  return absl::OkStatus();
}

}  // namespace rueda
