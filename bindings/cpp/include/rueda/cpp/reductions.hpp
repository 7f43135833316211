// Rueda's C++ API: allreduce, reduce, reducescatter. Included by rueda/rueda.hpp, which says how to
// use it.
#ifndef RUEDA_CPP_REDUCTIONS_HPP_
#define RUEDA_CPP_REDUCTIONS_HPP_

#include <concepts>
#include <type_traits>
#include <vector>

#include "rueda/cpp/calls.hpp"
#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/cpp/tensors.hpp"

namespace rueda {

/// \addtogroup cpp_reductions
/// @{

/// Combines `tensor` over the ranks of the process set, in place.
inline void allreduce_(const TensorView& tensor, const AllreduceOptions& options = {}) {
  detail::Execute(detail::CallOf(RUEDA_ALLREDUCE, options), &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> allreduce_async_(const TensorView& tensor,
                                               const AllreduceOptions& options = {}) {
  return detail::Start<void>(detail::CallOf(RUEDA_ALLREDUCE, options), {&tensor, 1},
                             detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> allreduce_async_(R& tensor RUEDA_LIFETIMEBOUND,
                                        const AllreduceOptions& options = {}) {
  return allreduce_async_(TensorView(tensor), options);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    allreduce_async_(R&& temporary, const AllreduceOptions& options = {})
= delete;

/// The same, out of place.
template <Input I>
Result<I> allreduce(const I& tensor, const AllreduceOptions& options = {}) {
  return synchronize(detail::StartOne<Result<I>>(detail::CallOf(RUEDA_ALLREDUCE, options), tensor,
                                                 detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> allreduce_async(const I& tensor,
                                                const AllreduceOptions& options = {}) {
  return detail::StartOne<Result<I>>(detail::CallOf(RUEDA_ALLREDUCE, options), tensor,
                                     detail::Memory::kCopied, detail::When::kInBackground);
}

/// Several tensors, also of several dtypes, as one operation: taken whole or not at all. Their
/// names are `options.name` with ".0", ".1", ... behind it.
inline void grouped_allreduce_(const std::vector<TensorView>& tensors,
                               const AllreduceOptions& options = {}) {
  synchronize(detail::Start<void>(detail::CallOf(RUEDA_ALLREDUCE, options), tensors,
                                  detail::Memory::kInPlace, detail::When::kNow, /*grouped=*/true));
}

/// The same, in the background: the memory is borrowed until the operation has ended, and the
/// caller keeps it alive until then.
[[nodiscard]] inline Handle<> grouped_allreduce_async_(const std::vector<TensorView>& tensors,
                                                       const AllreduceOptions& options = {}) {
  return detail::Start<void>(detail::CallOf(RUEDA_ALLREDUCE, options), tensors,
                             detail::Memory::kInPlace, detail::When::kInBackground,
                             /*grouped=*/true);
}

/// The same, out of place: of vectors all of one type, or of a std::vector<TensorView> of any.
template <RowInput I>
std::vector<Result<I>> grouped_allreduce(const std::vector<I>& tensors,
                                         const AllreduceOptions& options = {}) {
  return synchronize(detail::StartGroup(detail::CallOf(RUEDA_ALLREDUCE, options), tensors,
                                        detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <RowInput I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_allreduce_async(
    const std::vector<I>& tensors, const AllreduceOptions& options = {}) {
  return detail::StartGroup(detail::CallOf(RUEDA_ALLREDUCE, options), tensors,
                            detail::Memory::kCopied, detail::When::kInBackground);
}

/// As allreduce_, but only the tensor of `root_rank` changes.
inline void reduce_(const TensorView& tensor, int root_rank, const ReduceOptions& options = {}) {
  detail::Execute(detail::CallOf(RUEDA_REDUCE, options, root_rank), &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> reduce_async_(const TensorView& tensor, int root_rank,
                                            const ReduceOptions& options = {}) {
  return detail::Start<void>(detail::CallOf(RUEDA_REDUCE, options, root_rank), {&tensor, 1},
                             detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> reduce_async_(R& tensor RUEDA_LIFETIMEBOUND, int root_rank,
                                     const ReduceOptions& options = {}) {
  return reduce_async_(TensorView(tensor), root_rank, options);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    reduce_async_(R&& temporary, int root_rank, const ReduceOptions& options = {})
= delete;

/// As allreduce, but only `root_rank` has a result; elsewhere it is empty, or the number 0.
template <Input I>
Result<I> reduce(const I& tensor, int root_rank, const ReduceOptions& options = {}) {
  return synchronize(detail::StartOne<Result<I>>(detail::CallOf(RUEDA_REDUCE, options, root_rank),
                                                 tensor, detail::ReduceMemory(root_rank),
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> reduce_async(const I& tensor, int root_rank,
                                             const ReduceOptions& options = {}) {
  return detail::StartOne<Result<I>>(detail::CallOf(RUEDA_REDUCE, options, root_rank), tensor,
                                     detail::ReduceMemory(root_rank), detail::When::kInBackground);
}

/// Reduces the tensors, of one shape on all ranks, and gives each rank its part of the rows: equal
/// parts, the lowest ranks one row more.
template <RowInput I>
Result<I> reducescatter(const I& tensor, const ReducescatterOptions& options = {}) {
  return synchronize(detail::StartOne<Result<I>>(detail::CallOf(RUEDA_REDUCESCATTER, options),
                                                 tensor, detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <RowInput I>
[[nodiscard]] Handle<Result<I>> reducescatter_async(const I& tensor,
                                                    const ReducescatterOptions& options = {}) {
  return detail::StartOne<Result<I>>(detail::CallOf(RUEDA_REDUCESCATTER, options), tensor,
                                     detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Several reducescatters as one operation; see grouped_allreduce_.
template <RowInput I>
std::vector<Result<I>> grouped_reducescatter(const std::vector<I>& tensors,
                                             const ReducescatterOptions& options = {}) {
  return synchronize(detail::StartGroup(detail::CallOf(RUEDA_REDUCESCATTER, options), tensors,
                                        detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <RowInput I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_reducescatter_async(
    const std::vector<I>& tensors, const ReducescatterOptions& options = {}) {
  return detail::StartGroup(detail::CallOf(RUEDA_REDUCESCATTER, options), tensors,
                            detail::Memory::kAllocated, detail::When::kInBackground);
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_REDUCTIONS_HPP_
