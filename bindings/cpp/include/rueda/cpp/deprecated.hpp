// Rueda's C++ API as it was before options: a name, and what else there was, by position. And
// functions by their old names. All of this goes with version 0.3. Included by rueda/rueda.hpp,
// which says how to use the API.
//
// What the new form refuses (a temporary that an operation would outlive), the old one does, too.
#ifndef RUEDA_CPP_DEPRECATED_HPP_
#define RUEDA_CPP_DEPRECATED_HPP_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "rueda/cpp/job.hpp"
#include "rueda/cpp/movement.hpp"
#include "rueda/cpp/objects.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/cpp/process_sets.hpp"
#include "rueda/cpp/reduce_ops.hpp"
#include "rueda/cpp/reductions.hpp"
#include "rueda/cpp/tensors.hpp"

namespace rueda {

namespace detail {
// A name by position. Braces are none: they are options. No concepts: compilers (Clang) that look
// at a function's result before they look at those would ask for it without end.
template <typename N>
using IfName = std::enable_if_t<std::is_convertible_v<const N&, std::string>, int>;
template <typename S>
using IfSplits = std::enable_if_t<std::is_convertible_v<const S&, std::vector<int64_t>>, int>;
}  // namespace detail

// `T` is what braces are taken for where the tensor stands.
#define RUEDA_OLD_REDUCTION(function, T_)                                                 \
  template <typename T = const T_&, typename N, detail::IfName<N> = 0>                    \
  [[deprecated("write " #function "(tensor, {.name = \"name\", .op = rueda::Sum}): each " \
               "argument behind the tensor is a field of rueda::AllreduceOptions")]] auto \
  function(T&& tensor, const N& name, reduce_op op = Average, double prescale_factor = 1, \
           double postscale_factor = 1, ProcessSet process_set = global_process_set,      \
           const std::string& compressor = "")                                            \
      ->decltype(function(static_cast<T&&>(tensor), AllreduceOptions{})) {                \
    return function(static_cast<T&&>(tensor),                                             \
                    AllreduceOptions{.name = name,                                        \
                                     .op = op,                                            \
                                     .prescale_factor = prescale_factor,                  \
                                     .postscale_factor = postscale_factor,                \
                                     .process_set = process_set,                          \
                                     .compression = compressor});                         \
  }

// Of memory of its own: the handle must not outlive it.
template <detail::Owner R, typename N, detail::IfName<N> = 0>
requires std::convertible_to<R&, TensorView>
[[deprecated(
    "write allreduce_async_(tensor, {.name = \"name\", .op = rueda::Sum}): each argument "
    "behind the tensor is a field of rueda::AllreduceOptions")]] Handle<>
allreduce_async_(R& tensor RUEDA_LIFETIMEBOUND, const N& name, reduce_op op = Average,
                 double prescale_factor = 1, double postscale_factor = 1,
                 ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return allreduce_async_(TensorView(tensor), AllreduceOptions{.name = name,
                                                               .op = op,
                                                               .prescale_factor = prescale_factor,
                                                               .postscale_factor = postscale_factor,
                                                               .process_set = process_set,
                                                               .compression = compressor});
}

RUEDA_OLD_REDUCTION(allreduce, TensorView)
RUEDA_OLD_REDUCTION(allreduce_, TensorView)
RUEDA_OLD_REDUCTION(allreduce_async, TensorView)
RUEDA_OLD_REDUCTION(allreduce_async_, TensorView)
RUEDA_OLD_REDUCTION(grouped_allreduce, std::vector<TensorView>)
RUEDA_OLD_REDUCTION(grouped_allreduce_, std::vector<TensorView>)
RUEDA_OLD_REDUCTION(grouped_allreduce_async, std::vector<TensorView>)
RUEDA_OLD_REDUCTION(grouped_allreduce_async_, std::vector<TensorView>)
RUEDA_OLD_REDUCTION(reducescatter, TensorView)
RUEDA_OLD_REDUCTION(reducescatter_async, TensorView)
RUEDA_OLD_REDUCTION(grouped_reducescatter, std::vector<TensorView>)
RUEDA_OLD_REDUCTION(grouped_reducescatter_async, std::vector<TensorView>)
#undef RUEDA_OLD_REDUCTION

#define RUEDA_OLD_REDUCE(function)                                                              \
  template <typename T = const TensorView&, typename N, detail::IfName<N> = 0>                  \
  [[deprecated("write " #function "(tensor, root_rank, {.name = \"name\", .op = rueda::Sum}): " \
               "each argument behind the root is a field of rueda::ReduceOptions")]] auto       \
  function(T&& tensor, int root_rank, const N& name, reduce_op op = Average,                    \
           double prescale_factor = 1, double postscale_factor = 1,                             \
           ProcessSet process_set = global_process_set)                                         \
      ->decltype(function(static_cast<T&&>(tensor), root_rank, ReduceOptions{})) {              \
    return function(static_cast<T&&>(tensor), root_rank,                                        \
                    ReduceOptions{.name = name,                                                 \
                                  .op = op,                                                     \
                                  .prescale_factor = prescale_factor,                           \
                                  .postscale_factor = postscale_factor,                         \
                                  .process_set = process_set});                                 \
  }

template <detail::Owner R, typename N, detail::IfName<N> = 0>
requires std::convertible_to<R&, TensorView>
[[deprecated(
    "write reduce_async_(tensor, root_rank, {.name = \"name\", .op = rueda::Sum}): each "
    "argument behind the root is a field of rueda::ReduceOptions")]] Handle<>
reduce_async_(R& tensor RUEDA_LIFETIMEBOUND, int root_rank, const N& name, reduce_op op = Average,
              double prescale_factor = 1, double postscale_factor = 1,
              ProcessSet process_set = global_process_set) {
  return reduce_async_(TensorView(tensor), root_rank,
                       ReduceOptions{.name = name,
                                     .op = op,
                                     .prescale_factor = prescale_factor,
                                     .postscale_factor = postscale_factor,
                                     .process_set = process_set});
}

RUEDA_OLD_REDUCE(reduce)
RUEDA_OLD_REDUCE(reduce_)
RUEDA_OLD_REDUCE(reduce_async)
RUEDA_OLD_REDUCE(reduce_async_)
#undef RUEDA_OLD_REDUCE

#define RUEDA_OLD_MOVE(function, T_)                                                          \
  template <typename T = const T_&, typename N, detail::IfName<N> = 0>                        \
  [[deprecated("write " #function "(tensor, rank, {.name = \"name\"}): each argument behind " \
               "the rank is a field of rueda::Options")]] auto                                \
  function(T&& tensor, int rank, const N& name, ProcessSet process_set = global_process_set)  \
      ->decltype(function(static_cast<T&&>(tensor), rank, Options{})) {                       \
    return function(static_cast<T&&>(tensor), rank,                                           \
                    Options{.name = name, .process_set = process_set});                       \
  }

#define RUEDA_OLD_MOVE_OF(function)                                                               \
  template <detail::Owner R, typename N, detail::IfName<N> = 0>                                   \
  requires std::convertible_to<R&, TensorView>                                                    \
  [[deprecated("write " #function "(tensor, rank, {.name = \"name\"}): each argument behind "     \
               "the rank is a field of rueda::Options")]] Handle<>                                \
  function(R& tensor RUEDA_LIFETIMEBOUND, int rank, const N& name,                                \
           ProcessSet process_set = global_process_set) {                                         \
    return function(TensorView(tensor), rank, Options{.name = name, .process_set = process_set}); \
  }

RUEDA_OLD_MOVE_OF(broadcast_async_)
RUEDA_OLD_MOVE_OF(recv_async)
#undef RUEDA_OLD_MOVE_OF

RUEDA_OLD_MOVE(broadcast, TensorView)
RUEDA_OLD_MOVE(broadcast_, TensorView)
RUEDA_OLD_MOVE(broadcast_async, TensorView)
RUEDA_OLD_MOVE(broadcast_async_, TensorView)
RUEDA_OLD_MOVE(gather, TensorView)
RUEDA_OLD_MOVE(gather_async, TensorView)
RUEDA_OLD_MOVE(send, TensorView)
RUEDA_OLD_MOVE(send_async, TensorView)
RUEDA_OLD_MOVE(recv, TensorView)
RUEDA_OLD_MOVE(recv_async, TensorView)
RUEDA_OLD_MOVE(broadcast_object, std::string)
#undef RUEDA_OLD_MOVE

#define RUEDA_OLD_GATHER(function, T_)                                                            \
  template <typename T = const T_&, typename N, detail::IfName<N> = 0>                            \
  [[deprecated("write " #function "(tensor, {.name = \"name\"}): each argument behind the "       \
               "tensor is a field of rueda::Options")]] auto                                      \
  function(T&& tensor, const N& name, ProcessSet process_set = global_process_set)                \
      ->decltype(function(static_cast<T&&>(tensor), Options{})) {                                 \
    return function(static_cast<T&&>(tensor), Options{.name = name, .process_set = process_set}); \
  }

RUEDA_OLD_GATHER(allgather, TensorView)
RUEDA_OLD_GATHER(allgather_async, TensorView)
RUEDA_OLD_GATHER(grouped_allgather, std::vector<TensorView>)
RUEDA_OLD_GATHER(grouped_allgather_async, std::vector<TensorView>)
RUEDA_OLD_GATHER(allgather_object, std::string)
#undef RUEDA_OLD_GATHER

#define RUEDA_OLD_SCATTER(function)                                                             \
  template <RowInput I, typename S = std::vector<int64_t>, detail::IfSplits<S> = 0,             \
            typename N = std::string, detail::IfName<N> = 0>                                    \
  [[deprecated("write " #function "(tensor, root_rank, {.splits = {1, 2}, .name = \"name\"}): " \
               "each argument behind the root is a field of rueda::SplitOptions")]] auto        \
  function(const I& tensor, int root_rank, const S& splits, const N& name = "",                 \
           ProcessSet process_set = global_process_set) {                                       \
    return function(tensor, root_rank,                                                          \
                    SplitOptions{.splits = splits, .name = name, .process_set = process_set});  \
  }

RUEDA_OLD_SCATTER(scatter)
RUEDA_OLD_SCATTER(scatter_async)
#undef RUEDA_OLD_SCATTER

#define RUEDA_OLD_ALLTOALL(function)                                                           \
  template <RowInput I, typename S = std::vector<int64_t>, detail::IfSplits<S> = 0,            \
            typename N = std::string, detail::IfName<N> = 0>                                   \
  [[deprecated("write " #function "(tensor, {.splits = {1, 2}, .name = \"name\"}): each "      \
               "argument behind the tensor is a field of rueda::SplitOptions")]] auto          \
  function(const I& tensor, const S& splits, const N& name = "",                               \
           ProcessSet process_set = global_process_set) {                                      \
    return function(tensor,                                                                    \
                    SplitOptions{.splits = splits, .name = name, .process_set = process_set}); \
  }

RUEDA_OLD_ALLTOALL(alltoall)
RUEDA_OLD_ALLTOALL(alltoall_async)
#undef RUEDA_OLD_ALLTOALL

[[deprecated("write membership()")]] inline uint64_t epoch() {
  return membership();
}

}  // namespace rueda

#endif  // RUEDA_CPP_DEPRECATED_HPP_
