// PURE
#include "controller/negotiation/messages.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"

namespace rueda {

// FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv), as absl::Hash differs from process to
// process.
uint64_t IdentityOf(SetId set, absl::string_view name, OpKind kind) {
  uint64_t hash = 0xCBF29CE484222325u;
  const auto add = [&](uint8_t byte) { hash = (hash ^ byte) * 0x100000001B3u; };
  for (int shift = 0; shift < 32; shift += 8) add(static_cast<uint8_t>(set >> shift));
  add(static_cast<uint8_t>(kind));
  for (const char c : name) add(static_cast<uint8_t>(c));
  return hash;
}

SpecPtr MakeSpec(SetId set, std::string name, Signature signature) {
  auto spec = std::make_shared<TensorSpec>();
  spec->set = set;
  spec->name = std::move(name);
  spec->signature = std::move(signature);
  spec->hash = absl::HashOf(spec->set, spec->name, spec->signature);
  spec->identity = IdentityOf(set, spec->name, spec->signature.kind);
  return spec;
}

std::string SpecLabel(const TensorSpec& spec, std::optional<uint32_t> sequence) {
  std::string label = spec.unnamed()
                          ? absl::StrCat("unnamed ", OpKindName(spec.signature.kind))
                          : absl::StrCat(OpKindName(spec.signature.kind), " '", spec.name, "'");
  if (spec.unnamed() && sequence.has_value()) absl::StrAppend(&label, " #", *sequence);
  if (const auto [from, to] = spec.pair(); to >= 0) {
    absl::StrAppend(&label, " from ", from, " to ", to);
  }
  if (spec.set != kWorldSet) absl::StrAppend(&label, " of process set ", spec.set);
  return label;
}

bool CanMiss(const Signature& signature, Rank rank) {
  return !TraitsOf(signature.kind).has_ranks && rank != signature.root && rank != signature.peer;
}

int64_t BytesBrought(const Signature& signature, absl::Span<const int64_t> first_dims, Rank rank) {
  if (signature.device != DeviceType::kCpu || signature.parts.size() != 1 || signature.is_group() ||
      !signature.compression.none() || signature.reduce_op == ReduceOp::kAdasum) {
    return -1;
  }
  const PartSignature& part = signature.parts[0];
  int64_t bytes = 0;
  if (__builtin_mul_overflow(part.shape.elements(), static_cast<int64_t>(DTypeSize(part.dtype)),
                             &bytes)) {
    return -1;
  }
  int64_t rows = 0;
  switch (signature.kind) {
    case OpKind::kAllreduce:
    case OpKind::kReduce:
    case OpKind::kReducescatter:
      return bytes;
    case OpKind::kBroadcast:
      return rank == signature.root ? bytes : 0;
    case OpKind::kAllgather:
    case OpKind::kGather:
    case OpKind::kAlltoall:
    case OpKind::kScatter:
      for (const int64_t dim : first_dims) {
        if (__builtin_add_overflow(rows, dim, &rows)) return -1;
      }
      return __builtin_mul_overflow(rows, bytes, &bytes) ? -1 : bytes;
    default:
      return -1;
  }
}

absl::Status CheckExtras(const TensorSpec& spec, const CallExtras& extras, int members, Rank rank) {
  const Signature& signature = spec.signature;
  const size_t count = extras.first_dims.size();
  const std::string* const data = extras.data();
  if (data != nullptr &&
      (data->size() > kInlineBytesMax ||
       static_cast<int64_t>(data->size()) != BytesBrought(signature, extras.first_dims, rank))) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": ", SpecLabel(spec),
                                                   " came with ", data->size(), " bytes of data"));
  }
  if (extras.fault() != nullptr && count == 0) return absl::OkStatus();
  bool fits = false;
  switch (signature.kind) {
    case OpKind::kAllgather:
    case OpKind::kGather:
      fits = count == signature.parts.size();
      break;
    case OpKind::kAlltoall:
      fits = count == 1 || count == static_cast<size_t>(members);
      break;
    case OpKind::kScatter:
      fits =
          rank == signature.root ? count == 1 || count == static_cast<size_t>(members) : count == 0;
      break;
    case OpKind::kRemoveProcessSet:
      fits = count == 1;
      break;
    default:
      fits = count == 0;
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ": ", SpecLabel(spec),
                                                 " came with ", count, " first dimensions"));
}

}  // namespace rueda
