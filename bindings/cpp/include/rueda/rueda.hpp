// Rueda's C++ API, in the manner of Horovod's: header-only, over the C API, C++20.
//
//     #include <rueda/rueda.hpp>
//
//     rueda::init();
//     std::vector<float> gradient = ...;
//     rueda::allreduce_(gradient, {.name = "gradient"});  // in place; the average over all ranks
//     rueda::shutdown();
//
// `namespace hvd = rueda;` reads like Horovod. Functions whose name ends in `_` work in place,
// those with `async` return at once with a handle for `synchronize` and `poll`. Names match
// operations across the ranks, in any order of submission; operations without a name match by
// order.
//
// What else there is to say about an operation is a struct of options, behind the tensor and the
// rank, if there is one: allreduce(tensor, {.name = "gradient", .op = rueda::Sum}). What is not
// said keeps its default; what is said stands in the order in which the struct declares it.
//
// Tensors are contiguous ranges (a vector, an array, a span: one dimension), a TensorView, which
// has a shape, or numbers (no dimension): double mean = rueda::allreduce(loss). Roots and peers are
// world ranks.
//
// Whose memory it is:
//  - A function that works in place and is async borrows the caller's memory until the operation
//    has ended. The caller keeps it alive, and where it is, until synchronize has returned or the
//    last handle has gone: declare the memory before the handle, and return no handle without it.
//    A container that is a temporary does not compile. Clang warns (-Wreturn-stack-address,
//    -Wdangling) when a handle leaves the scope of a local container. GCC does not, a TensorView or
//    a group hides the container from Clang too, and nothing checks it at run time.
//  - Everything else leaves its input as it is, and needs it during the call only. It returns a
//    std::vector of what the range holds, or a Tensor for a view. With async the handle owns that,
//    and a copy of the input.
//
// Exceptions of the program's own may unwind past handles: see rueda::Handle.
//
// Errors are exceptions of type rueda::Error, which say what, where, and what to do. All functions
// work on the calling thread's current context (rueda_current_context), which init sets for the
// process. Threads: as in the C API, everything may be called from any thread.
#ifndef RUEDA_RUEDA_HPP_
#define RUEDA_RUEDA_HPP_

#include "rueda/cpp/calls.hpp"
#include "rueda/cpp/deprecated.hpp"
#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/job.hpp"
#include "rueda/cpp/meeting.hpp"
#include "rueda/cpp/movement.hpp"
#include "rueda/cpp/objects.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/cpp/process_sets.hpp"
#include "rueda/cpp/reduce_ops.hpp"
#include "rueda/cpp/reductions.hpp"
#include "rueda/cpp/tensors.hpp"
#include "rueda/rueda.h"

#endif  // RUEDA_RUEDA_HPP_
