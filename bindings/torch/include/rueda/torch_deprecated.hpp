// rueda/torch.hpp as it was before options: a name, and what else there was, by position. All of
// this goes with version 0.3. Included by rueda/torch.hpp, which says how to use the API.
#ifndef RUEDA_TORCH_DEPRECATED_HPP_
#define RUEDA_TORCH_DEPRECATED_HPP_

#include "rueda/torch.hpp"

namespace rueda::libtorch {

// `T_` is what braces are taken for where the tensor stands.
#define RUEDA_OLD_REDUCTION(function, T_)                                                 \
  template <typename T = const T_&, typename N, rueda::detail::IfName<N> = 0>             \
  [[deprecated("write " #function "(tensor, {.name = \"name\", .op = rueda::Sum}): each " \
               "argument behind the tensor is a field of rueda::AllreduceOptions")]] auto \
  function(T&& tensor, const N& name, reduce_op op = Average, double prescale_factor = 1, \
           double postscale_factor = 1, ProcessSet process_set = global_process_set)      \
      ->decltype(function(static_cast<T&&>(tensor), AllreduceOptions{})) {                \
    return function(static_cast<T&&>(tensor),                                             \
                    AllreduceOptions{.name = name,                                        \
                                     .op = op,                                            \
                                     .prescale_factor = prescale_factor,                  \
                                     .postscale_factor = postscale_factor,                \
                                     .process_set = process_set});                        \
  }

RUEDA_OLD_REDUCTION(allreduce, at::Tensor)
RUEDA_OLD_REDUCTION(allreduce_, at::Tensor)
RUEDA_OLD_REDUCTION(allreduce_async, at::Tensor)
RUEDA_OLD_REDUCTION(allreduce_async_, at::Tensor)
RUEDA_OLD_REDUCTION(grouped_allreduce, std::vector<at::Tensor>)
RUEDA_OLD_REDUCTION(grouped_allreduce_, std::vector<at::Tensor>)
RUEDA_OLD_REDUCTION(grouped_allreduce_async, std::vector<at::Tensor>)
RUEDA_OLD_REDUCTION(grouped_allreduce_async_, std::vector<at::Tensor>)
#undef RUEDA_OLD_REDUCTION

#define RUEDA_OLD_REDUCESCATTER(function, T_)                                                 \
  template <typename T = const T_&, typename N, rueda::detail::IfName<N> = 0>                 \
  [[deprecated("write " #function "(tensor, {.name = \"name\", .op = rueda::Sum}): each "     \
               "argument behind the tensor is a field of rueda::ReducescatterOptions")]] auto \
  function(T&& tensor, const N& name, reduce_op op = Average,                                 \
           ProcessSet process_set = global_process_set, double prescale_factor = 1,           \
           double postscale_factor = 1)                                                       \
      ->decltype(function(static_cast<T&&>(tensor), ReducescatterOptions{})) {                \
    return function(static_cast<T&&>(tensor),                                                 \
                    ReducescatterOptions{.name = name,                                        \
                                         .op = op,                                            \
                                         .prescale_factor = prescale_factor,                  \
                                         .postscale_factor = postscale_factor,                \
                                         .process_set = process_set});                        \
  }

RUEDA_OLD_REDUCESCATTER(reducescatter, at::Tensor)
RUEDA_OLD_REDUCESCATTER(reducescatter_async, at::Tensor)
RUEDA_OLD_REDUCESCATTER(grouped_reducescatter, std::vector<at::Tensor>)
RUEDA_OLD_REDUCESCATTER(grouped_reducescatter_async, std::vector<at::Tensor>)
#undef RUEDA_OLD_REDUCESCATTER

#define RUEDA_OLD_SPARSE(function)                                                              \
  template <typename N, rueda::detail::IfName<N> = 0>                                           \
  [[deprecated("write " #function "(tensor, {.name = \"name\", .op = rueda::Sum}): each "       \
               "argument behind the tensor is a field of SparseOptions")]] auto                 \
  function(const at::Tensor& tensor, const N& name, reduce_op op = Average,                     \
           ProcessSet process_set = global_process_set) {                                       \
    return function(tensor, SparseOptions{.name = name, .op = op, .process_set = process_set}); \
  }

RUEDA_OLD_SPARSE(sparse_allreduce)
RUEDA_OLD_SPARSE(sparse_allreduce_async)
#undef RUEDA_OLD_SPARSE

#define RUEDA_OLD_REDUCE(function)                                                              \
  template <typename N, rueda::detail::IfName<N> = 0>                                           \
  [[deprecated("write " #function "(tensor, root_rank, {.name = \"name\", .op = rueda::Sum}): " \
               "each argument behind the root is a field of rueda::ReduceOptions")]] auto       \
  function(const at::Tensor& tensor, int root_rank, const N& name, reduce_op op = Average,      \
           double prescale_factor = 1, double postscale_factor = 1,                             \
           ProcessSet process_set = global_process_set) {                                       \
    return function(tensor, root_rank,                                                          \
                    ReduceOptions{.name = name,                                                 \
                                  .op = op,                                                     \
                                  .prescale_factor = prescale_factor,                           \
                                  .postscale_factor = postscale_factor,                         \
                                  .process_set = process_set});                                 \
  }

RUEDA_OLD_REDUCE(reduce)
RUEDA_OLD_REDUCE(reduce_)
RUEDA_OLD_REDUCE(reduce_async)
RUEDA_OLD_REDUCE(reduce_async_)
#undef RUEDA_OLD_REDUCE

#define RUEDA_OLD_MOVE(function)                                                              \
  template <typename N, rueda::detail::IfName<N> = 0>                                         \
  [[deprecated("write " #function "(tensor, rank, {.name = \"name\"}): each argument behind " \
               "the rank is a field of rueda::Options")]] auto                                \
  function(const at::Tensor& tensor, int rank, const N& name,                                 \
           ProcessSet process_set = global_process_set) {                                     \
    return function(tensor, rank, Options{.name = name, .process_set = process_set});         \
  }

RUEDA_OLD_MOVE(broadcast)
RUEDA_OLD_MOVE(broadcast_)
RUEDA_OLD_MOVE(broadcast_async)
RUEDA_OLD_MOVE(broadcast_async_)
RUEDA_OLD_MOVE(gather)
RUEDA_OLD_MOVE(gather_async)
RUEDA_OLD_MOVE(send)
RUEDA_OLD_MOVE(send_async)
RUEDA_OLD_MOVE(recv_)
RUEDA_OLD_MOVE(recv_async_)
#undef RUEDA_OLD_MOVE

#define RUEDA_OLD_GATHER(function, T_)                                                      \
  template <typename N, rueda::detail::IfName<N> = 0>                                       \
  [[deprecated("write " #function "(tensor, {.name = \"name\"}): each argument behind the " \
               "tensor is a field of rueda::Options")]] auto                                \
  function(const T_& tensor, const N& name, ProcessSet process_set = global_process_set) {  \
    return function(tensor, Options{.name = name, .process_set = process_set});             \
  }

RUEDA_OLD_GATHER(allgather, at::Tensor)
RUEDA_OLD_GATHER(allgather_async, at::Tensor)
RUEDA_OLD_GATHER(grouped_allgather, std::vector<at::Tensor>)
RUEDA_OLD_GATHER(grouped_allgather_async, std::vector<at::Tensor>)
#undef RUEDA_OLD_GATHER

#define RUEDA_OLD_SCATTER(function)                                                             \
  template <typename S = Splits, typename N = std::string, rueda::detail::IfName<N> = 0>        \
  requires std::convertible_to<const S&, Splits>                                                \
  [[deprecated("write " #function "(tensor, root_rank, {.splits = {1, 2}, .name = \"name\"}): " \
               "each argument behind the root is a field of SplitOptions")]] auto               \
  function(const at::Tensor& tensor, int root_rank, const S& splits, const N& name = "",        \
           ProcessSet process_set = global_process_set) {                                       \
    return function(tensor, root_rank,                                                          \
                    SplitOptions{.splits = splits, .name = name, .process_set = process_set});  \
  }

RUEDA_OLD_SCATTER(scatter)
RUEDA_OLD_SCATTER(scatter_async)
#undef RUEDA_OLD_SCATTER

#define RUEDA_OLD_ALLTOALL(function)                                                           \
  template <typename S = Splits, typename N = std::string, rueda::detail::IfName<N> = 0>       \
  requires std::convertible_to<const S&, Splits>                                               \
  [[deprecated("write " #function "(tensor, {.splits = {1, 2}, .name = \"name\"}): each "      \
               "argument behind the tensor is a field of SplitOptions")]] auto                 \
  function(const at::Tensor& tensor, const S& splits, const N& name = "",                      \
           ProcessSet process_set = global_process_set) {                                      \
    return function(tensor,                                                                    \
                    SplitOptions{.splits = splits, .name = name, .process_set = process_set}); \
  }

RUEDA_OLD_ALLTOALL(alltoall)
RUEDA_OLD_ALLTOALL(alltoall_with_splits)
RUEDA_OLD_ALLTOALL(alltoall_async)
#undef RUEDA_OLD_ALLTOALL

}  // namespace rueda::libtorch

#endif  // RUEDA_TORCH_DEPRECATED_HPP_
