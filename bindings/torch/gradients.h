// Operations that gradients flow through.
#pragma once

#include <c10/core/SymIntArrayRef.h>

#include <memory>
#include <vector>

#include "bindings/torch/operation.h"

namespace rueda::libtorch {

struct Executed {
  std::vector<at::Tensor> results;
  std::shared_ptr<Operation> operation;  // null if it was traced
};

// Executes an allreduce, broadcast, allgather, alltoall or reducescatter that is not in place. If
// a gradient is wanted, the results have a history: their backward pass is an operation of the same
// ranks, called "<name>.gradient", in the same context. Throws, before anything is submitted, when
// there is no gradient.
Executed ExecuteWithGradient(rueda_context* context, const Call& call);

// Whether the tensors are those of a compiler of graphs, which have no memory, or of another
// subclass in Python that wants to know of operators.
bool IsTraced(const Call& call);

// By its operator, without a history. `rows`: what the results of an allgather have, if it is
// known. An alltoall has a second result, the splits.
std::vector<at::Tensor> CallOperator(const Call& call, c10::SymIntArrayRef rows = {});

}  // namespace rueda::libtorch
