// Operations that gradients flow through.
#pragma once

#include <memory>
#include <vector>

#include "bindings/torch/operation.h"

namespace rueda::libtorch {

struct Executed {
  std::vector<at::Tensor> results;
  std::shared_ptr<Operation> operation;
};

// Executes an allreduce, broadcast, allgather, alltoall or reducescatter that is not in place. If
// a gradient is wanted, the results have a history: their backward pass is an operation of the same
// ranks, called "<name>.gradient", in the same context. Throws, before anything is submitted, when
// there is no gradient.
Executed ExecuteWithGradient(rueda_context* context, const Call& call);

}  // namespace rueda::libtorch
