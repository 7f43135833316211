// Rueda's C++ API: broadcast, gathering and scattering. Included by rueda/rueda.hpp, which says how
// to use it.
#ifndef RUEDA_CPP_MOVEMENT_HPP_
#define RUEDA_CPP_MOVEMENT_HPP_

#include <concepts>
#include <type_traits>
#include <vector>

#include "rueda/cpp/calls.hpp"
#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/cpp/tensors.hpp"

namespace rueda {

/// \addtogroup cpp_movement
/// @{

/// Gives every rank of the process set the `tensor` of `root_rank`.
inline void broadcast_(const TensorView& tensor, int root_rank, const Options& options = {}) {
  detail::Execute(detail::CallOf(RUEDA_BROADCAST, options, root_rank), &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> broadcast_async_(const TensorView& tensor, int root_rank,
                                               const Options& options = {}) {
  return detail::Start<void>(detail::CallOf(RUEDA_BROADCAST, options, root_rank), {&tensor, 1},
                             detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> broadcast_async_(R& tensor RUEDA_LIFETIMEBOUND, int root_rank,
                                        const Options& options = {}) {
  return broadcast_async_(TensorView(tensor), root_rank, options);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    broadcast_async_(R&& temporary, int root_rank, const Options& options = {})
= delete;

/// The same, out of place.
template <Input I>
Result<I> broadcast(const I& tensor, int root_rank, const Options& options = {}) {
  return synchronize(
      detail::StartOne<Result<I>>(detail::CallOf(RUEDA_BROADCAST, options, root_rank), tensor,
                                  detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> broadcast_async(const I& tensor, int root_rank,
                                                const Options& options = {}) {
  return detail::StartOne<Result<I>>(detail::CallOf(RUEDA_BROADCAST, options, root_rank), tensor,
                                     detail::Memory::kCopied, detail::When::kInBackground);
}

/// All ranks' tensors, one after another in rank order. They may differ in the first dimension. A
/// number is one row: the result has one for each rank.
template <Input I>
Joined<I> allgather(const I& tensor, const Options& options = {}) {
  return synchronize(detail::StartOne<Joined<I>>(detail::CallOf(RUEDA_ALLGATHER, options),
                                                 detail::RowsOf(tensor), detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Joined<I>> allgather_async(const I& tensor, const Options& options = {}) {
  return detail::StartOne<Joined<I>>(detail::CallOf(RUEDA_ALLGATHER, options),
                                     detail::RowsOf(tensor), detail::Memory::kAllocated,
                                     detail::When::kInBackground);
}

/// Several allgathers as one operation; see grouped_allreduce_.
template <RowInput I>
std::vector<Result<I>> grouped_allgather(const std::vector<I>& tensors,
                                         const Options& options = {}) {
  return synchronize(detail::StartGroup(detail::CallOf(RUEDA_ALLGATHER, options), tensors,
                                        detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <RowInput I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_allgather_async(const std::vector<I>& tensors,
                                                                     const Options& options = {}) {
  return detail::StartGroup(detail::CallOf(RUEDA_ALLGATHER, options), tensors,
                            detail::Memory::kAllocated, detail::When::kInBackground);
}

/// As allgather, but only `root_rank` has a result; elsewhere it is empty.
template <Input I>
Joined<I> gather(const I& tensor, int root_rank, const Options& options = {}) {
  return synchronize(detail::StartOne<Joined<I>>(detail::CallOf(RUEDA_GATHER, options, root_rank),
                                                 detail::RowsOf(tensor), detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Joined<I>> gather_async(const I& tensor, int root_rank,
                                             const Options& options = {}) {
  return detail::StartOne<Joined<I>>(detail::CallOf(RUEDA_GATHER, options, root_rank),
                                     detail::RowsOf(tensor), detail::Memory::kAllocated,
                                     detail::When::kInBackground);
}

/// Gives each rank of the process set its `options.splits` rows of the root's tensor; without
/// splits equal parts. Elsewhere `tensor` only tells dtype and shape of a row, and may have none.
template <RowInput I>
Result<I> scatter(const I& tensor, int root_rank, const SplitOptions& options = {}) {
  return synchronize(detail::StartOne<Result<I>>(detail::CallOf(RUEDA_SCATTER, options, root_rank),
                                                 tensor, detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <RowInput I>
[[nodiscard]] Handle<Result<I>> scatter_async(const I& tensor, int root_rank,
                                              const SplitOptions& options = {}) {
  return detail::StartOne<Result<I>>(detail::CallOf(RUEDA_SCATTER, options, root_rank), tensor,
                                     detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Gives `options.splits` rows of `tensor` to each rank of the process set; without splits equal
/// parts. Returns what all ranks gave this one.
template <RowInput I>
Received<Result<I>> alltoall(const I& tensor, const SplitOptions& options = {}) {
  return synchronize(detail::StartOne<Received<Result<I>>>(detail::CallOf(RUEDA_ALLTOALL, options),
                                                           tensor, detail::Memory::kAllocated,
                                                           detail::When::kNow));
}

/// The same, in the background.
template <RowInput I>
[[nodiscard]] Handle<Received<Result<I>>> alltoall_async(const I& tensor,
                                                         const SplitOptions& options = {}) {
  return detail::StartOne<Received<Result<I>>>(detail::CallOf(RUEDA_ALLTOALL, options), tensor,
                                               detail::Memory::kAllocated,
                                               detail::When::kInBackground);
}

/// Gives `tensor` to `rank`, which receives it in the same shape, under the same name (or both
/// without one, in order). Waits until it has.
template <Input I>
void send(const I& tensor, int rank, const Options& options = {}) {
  const TensorView view = detail::ViewOf(tensor);
  detail::Execute(detail::CallOf(RUEDA_SEND, options, rank), &view);
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<> send_async(const I& tensor, int rank, const Options& options = {}) {
  return detail::StartOne<void>(detail::CallOf(RUEDA_SEND, options, rank), tensor,
                                detail::Memory::kReadOnly, detail::When::kInBackground);
}

/// Fills `tensor` with what `rank` sends.
inline void recv(const TensorView& tensor, int rank, const Options& options = {}) {
  detail::Execute(detail::CallOf(RUEDA_RECV, options, rank), &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> recv_async(const TensorView& tensor, int rank,
                                         const Options& options = {}) {
  return detail::Start<void>(detail::CallOf(RUEDA_RECV, options, rank), {&tensor, 1},
                             detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> recv_async(R& tensor RUEDA_LIFETIMEBOUND, int rank,
                                  const Options& options = {}) {
  return recv_async(TensorView(tensor), rank, options);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    recv_async(R&& temporary, int rank, const Options& options = {})
= delete;

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_MOVEMENT_HPP_
