// The tensors that the benchmarks of the negotiation are about: gradients of a network.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/negotiation/messages.h"

namespace rueda::micro {

inline Signature Gradient(int64_t elements = 1'024) {
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = ReduceOp::kSum;
  signature.parts.push_back({DType::kFloat32, {elements}});
  return signature;
}

// "layer0.weight", ... A call's specs are equal to the next call's, and other objects, as those
// that a rank submits are not those that it reads from the log.
inline std::vector<SpecPtr> Gradients(int count) {
  std::vector<SpecPtr> specs;
  for (int i = 0; i < count; ++i) {
    specs.push_back(MakeSpec(kWorldSet, absl::StrCat("layer", i, ".weight"), Gradient()));
  }
  return specs;
}

}  // namespace rueda::micro
