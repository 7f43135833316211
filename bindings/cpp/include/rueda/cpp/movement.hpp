// Rueda's C++ API: broadcast, gathering and scattering. Included by rueda/rueda.hpp, which says how
// to use it.
#ifndef RUEDA_CPP_MOVEMENT_HPP_
#define RUEDA_CPP_MOVEMENT_HPP_

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/process_sets.hpp"
#include "rueda/cpp/requests.hpp"
#include "rueda/cpp/tensors.hpp"

namespace rueda {

/// \addtogroup cpp_movement
/// @{

/// Gives every rank of the process set the `tensor` of `root_rank`.
inline void broadcast_(const TensorView& tensor, int root_rank, const std::string& name = "",
                       ProcessSet process_set = global_process_set) {
  detail::Execute(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> broadcast_async_(const TensorView& tensor, int root_rank,
                                               const std::string& name = "",
                                               ProcessSet process_set = global_process_set) {
  return detail::Start<void>(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      {&tensor, 1}, detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> broadcast_async_(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return broadcast_async_(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    broadcast_async_(R&& temporary, const More&... more)
= delete;

/// The same, out of place.
template <Input I>
Result<I> broadcast(const I& tensor, int root_rank, const std::string& name = "",
                    ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      tensor, detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> broadcast_async(const I& tensor, int root_rank,
                                                const std::string& name = "",
                                                ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {.kind = RUEDA_BROADCAST, .name = name, .process_set = process_set, .root = root_rank},
      tensor, detail::Memory::kCopied, detail::When::kInBackground);
}

/// All ranks' tensors, one after another in rank order. They may differ in the first dimension.
template <Input I>
Result<I> allgather(const I& tensor, const std::string& name = "",
                    ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set}, tensor,
      detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> allgather_async(const I& tensor, const std::string& name = "",
                                                ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set}, tensor,
      detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Several allgathers as one operation; see grouped_allreduce_.
template <Input I>
std::vector<Result<I>> grouped_allgather(const std::vector<I>& tensors,
                                         const std::string& name = "",
                                         ProcessSet process_set = global_process_set) {
  return synchronize(
      detail::StartGroup({.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set},
                         tensors, detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_allgather_async(
    const std::vector<I>& tensors, const std::string& name = "",
    ProcessSet process_set = global_process_set) {
  return detail::StartGroup({.kind = RUEDA_ALLGATHER, .name = name, .process_set = process_set},
                            tensors, detail::Memory::kAllocated, detail::When::kInBackground);
}

/// As allgather, but only `root_rank` has a result; elsewhere it is empty.
template <Input I>
Result<I> gather(const I& tensor, int root_rank, const std::string& name = "",
                 ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {.kind = RUEDA_GATHER, .name = name, .process_set = process_set, .root = root_rank}, tensor,
      detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> gather_async(const I& tensor, int root_rank,
                                             const std::string& name = "",
                                             ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {.kind = RUEDA_GATHER, .name = name, .process_set = process_set, .root = root_rank}, tensor,
      detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Gives each rank of the process set its `splits` rows of the root's tensor; without splits equal
/// parts. Elsewhere `tensor` only tells dtype and shape of a row, and may have none.
template <Input I>
Result<I> scatter(const I& tensor, int root_rank, const std::vector<int64_t>& splits = {},
                  const std::string& name = "", ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>({.kind = RUEDA_SCATTER,
                                                  .name = name,
                                                  .process_set = process_set,
                                                  .root = root_rank,
                                                  .splits = splits},
                                                 tensor, detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> scatter_async(const I& tensor, int root_rank,
                                              const std::vector<int64_t>& splits = {},
                                              const std::string& name = "",
                                              ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>({.kind = RUEDA_SCATTER,
                                      .name = name,
                                      .process_set = process_set,
                                      .root = root_rank,
                                      .splits = splits},
                                     tensor, detail::Memory::kAllocated,
                                     detail::When::kInBackground);
}

/// Gives `splits` rows of `tensor` to each rank of the process set; without splits equal parts.
/// Returns what all ranks gave this one.
template <Input I>
Received<Result<I>> alltoall(const I& tensor, const std::vector<int64_t>& splits = {},
                             const std::string& name = "",
                             ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Received<Result<I>>>(
      {.kind = RUEDA_ALLTOALL, .name = name, .process_set = process_set, .splits = splits}, tensor,
      detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Received<Result<I>>> alltoall_async(
    const I& tensor, const std::vector<int64_t>& splits = {}, const std::string& name = "",
    ProcessSet process_set = global_process_set) {
  return detail::StartOne<Received<Result<I>>>(
      {.kind = RUEDA_ALLTOALL, .name = name, .process_set = process_set, .splits = splits}, tensor,
      detail::Memory::kAllocated, detail::When::kInBackground);
}

/// Gives `tensor` to the rank `destination`, which receives it in the same shape, under the same
/// name (or both without one, in order). Waits until it has.
template <Input I>
void send(const I& tensor, int destination, const std::string& name = "",
          ProcessSet process_set = global_process_set) {
  const TensorView view = detail::ViewOf(tensor);
  detail::Execute(
      {.kind = RUEDA_SEND, .name = name, .process_set = process_set, .root = destination}, &view);
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<> send_async(const I& tensor, int destination, const std::string& name = "",
                                  ProcessSet process_set = global_process_set) {
  return detail::StartOne<void>(
      {.kind = RUEDA_SEND, .name = name, .process_set = process_set, .root = destination}, tensor,
      detail::Memory::kReadOnly, detail::When::kInBackground);
}

/// Fills `tensor` with what the rank `source` sends.
inline void recv(const TensorView& tensor, int source, const std::string& name = "",
                 ProcessSet process_set = global_process_set) {
  detail::Execute({.kind = RUEDA_RECV, .name = name, .process_set = process_set, .root = source},
                  &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> recv_async(const TensorView& tensor, int source,
                                         const std::string& name = "",
                                         ProcessSet process_set = global_process_set) {
  return detail::Start<void>(
      {.kind = RUEDA_RECV, .name = name, .process_set = process_set, .root = source}, {&tensor, 1},
      detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> recv_async(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return recv_async(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    recv_async(R&& temporary, const More&... more)
= delete;

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_MOVEMENT_HPP_
