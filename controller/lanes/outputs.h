// Outputs whose size the plan tells: how large this rank's are, and memory for them. Called by the
// engine.
#pragma once

#include <functional>
#include <memory>

#include "controller/lanes/request.h"
#include "controller/membership/process_sets.h"

namespace rueda {

// Memory where the request's tensors are.
using AllocateMemory = std::function<absl::StatusOr<std::shared_ptr<void>>(size_t bytes)>;

// Finds out the shapes of the request's outputs, where they are not the inputs', and gets memory.
// `first_dims`: as planned (Ordered). An error is this rank's alone: it takes part all the same,
// and throws the result away.
absl::Status PrepareOutputs(Request* request, absl::Span<const int64_t> first_dims,
                            const ProcessSet& set, Rank self, const AllocateMemory& allocate);

}  // namespace rueda
