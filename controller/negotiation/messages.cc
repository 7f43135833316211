// PURE
#include "controller/negotiation/messages.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace rueda {

SpecPtr MakeSpec(SetId set, std::string name, Signature signature) {
  auto spec = std::make_shared<TensorSpec>();
  spec->set = set;
  spec->name = std::move(name);
  spec->signature = std::move(signature);
  spec->hash = absl::HashOf(spec->set, spec->name, spec->signature);
  return spec;
}

std::string SpecLabel(const TensorSpec& spec, uint32_t sequence) {
  std::string label =
      spec.unnamed() ? absl::StrCat("unnamed ", OpKindName(spec.signature.kind), " #", sequence)
                     : absl::StrCat(OpKindName(spec.signature.kind), " '", spec.name, "'");
  if (spec.set != kWorldSet) absl::StrAppend(&label, " of process set ", spec.set);
  return label;
}

absl::Status CheckExtras(const TensorSpec& spec, const CallExtras& extras) {
  const Signature& signature = spec.signature;
  const size_t wanted = signature.kind == OpKind::kAllgather ? signature.parts.size() : 0;
  if (extras.first_dims.size() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(SpecLabel(spec, 0), " came with ",
                                                 extras.first_dims.size(),
                                                 " first dimensions instead of ", wanted));
}

}  // namespace rueda
