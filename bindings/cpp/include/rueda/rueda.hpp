/// \file
/// Rueda's C++ API, with Horovod's names: header-only, over the C API, C++20.
///
///     #include <rueda/rueda.hpp>
///
///     rueda::init();
///     std::vector<float> gradient = ...;
///     rueda::allreduce_(gradient, {.name = "gradient"});  // in place; the average over all ranks
///     rueda::shutdown();
///
/// `namespace hvd = rueda;` reads like Horovod. Functions whose name ends in `_` work in place.
/// Those with `async` return at once, with a handle for `synchronize` and `poll`. Names match
/// operations across the ranks, in any order of submission. Operations without a name match by
/// order.
///
/// **Options** of an operation are a struct. It follows the tensor and the rank, if there is one:
/// `allreduce(tensor, {.name = "gradient", .op = rueda::Sum})`. Options that you leave out keep
/// their defaults. Write the others in the order in which the struct declares them.
///
/// **Tensors** are contiguous ranges (a vector, an array, a span: one dimension), a TensorView,
/// which has a shape, or numbers (no dimension): `double mean = rueda::allreduce(loss)`. Roots and
/// peers are world ranks.
///
/// **Ownership**:
///
/// * A function that works in place and is async borrows the caller's memory until the operation
///   ends. Keep the memory alive, and in its place, until synchronize has returned or the last
///   handle has gone: declare the memory before the handle, and return no handle without it. A
///   container that is a temporary does not compile. Clang warns (-Wreturn-stack-address,
///   -Wdangling) when a handle leaves the scope of a local container. GCC does not. A TensorView or
///   a group hides the container from Clang too, and nothing checks it at run time.
/// * All other functions leave their input unchanged, and need it only during the call. They return
///   a std::vector of the range's elements, or a Tensor for a view. With async the handle owns the
///   result, and a copy of the input.
///
/// Exceptions of the program's own may unwind past handles: see rueda::Handle.
///
/// **Errors** are exceptions of type rueda::Error, which say what happened, where, and what to do.
///
/// **Threads**: any thread may call everything, as in the C API. A call works on the calling
/// thread's current context (rueda_current_context), which init sets for the process.
#ifndef RUEDA_RUEDA_HPP_
#define RUEDA_RUEDA_HPP_

#include "rueda/cpp/calls.hpp"
#include "rueda/cpp/deprecated.hpp"
#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/fingerprint.hpp"
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
