// Rueda's C++ API: allreduce, reduce, reducescatter. Included by rueda/rueda.hpp, which says how to
// use it.
#ifndef RUEDA_CPP_REDUCTIONS_HPP_
#define RUEDA_CPP_REDUCTIONS_HPP_

#include <concepts>
#include <string>
#include <type_traits>
#include <vector>

#include "rueda/cpp/handles.hpp"
#include "rueda/cpp/process_sets.hpp"
#include "rueda/cpp/reduce_ops.hpp"
#include "rueda/cpp/requests.hpp"
#include "rueda/cpp/tensors.hpp"

namespace rueda {

/// \addtogroup cpp_reductions
/// @{

/// Combines `tensor` over the ranks of the process set, in place. The inputs are multiplied by
/// `prescale_factor` before and the result by `postscale_factor` after the reduction. `compressor`:
/// "" or, for sums and averages of floats, what makes them smaller on their way, such as "int8" or
/// "powersgd:4": rueda_operation has them all.
inline void allreduce_(const TensorView& tensor, const std::string& name = "",
                       reduce_op op = Average, double prescale_factor = 1,
                       double postscale_factor = 1, ProcessSet process_set = global_process_set,
                       const std::string& compressor = "") {
  detail::Execute({RUEDA_ALLREDUCE,
                   name,
                   process_set,
                   op,
                   prescale_factor,
                   postscale_factor,
                   -1,
                   {},
                   compressor},
                  &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> allreduce_async_(const TensorView& tensor,
                                               const std::string& name = "", reduce_op op = Average,
                                               double prescale_factor = 1,
                                               double postscale_factor = 1,
                                               ProcessSet process_set = global_process_set,
                                               const std::string& compressor = "") {
  return detail::Start<void>({RUEDA_ALLREDUCE,
                              name,
                              process_set,
                              op,
                              prescale_factor,
                              postscale_factor,
                              -1,
                              {},
                              compressor},
                             {&tensor, 1}, detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> allreduce_async_(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return allreduce_async_(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    allreduce_async_(R&& temporary, const More&... more)
= delete;

/// The same, out of place.
template <Input I>
Result<I> allreduce(const I& tensor, const std::string& name = "", reduce_op op = Average,
                    double prescale_factor = 1, double postscale_factor = 1,
                    ProcessSet process_set = global_process_set,
                    const std::string& compressor = "") {
  return synchronize(detail::StartOne<Result<I>>({RUEDA_ALLREDUCE,
                                                  name,
                                                  process_set,
                                                  op,
                                                  prescale_factor,
                                                  postscale_factor,
                                                  -1,
                                                  {},
                                                  compressor},
                                                 tensor, detail::Memory::kCopied,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> allreduce_async(const I& tensor, const std::string& name = "",
                                                reduce_op op = Average, double prescale_factor = 1,
                                                double postscale_factor = 1,
                                                ProcessSet process_set = global_process_set,
                                                const std::string& compressor = "") {
  return detail::StartOne<Result<I>>({RUEDA_ALLREDUCE,
                                      name,
                                      process_set,
                                      op,
                                      prescale_factor,
                                      postscale_factor,
                                      -1,
                                      {},
                                      compressor},
                                     tensor, detail::Memory::kCopied, detail::When::kInBackground);
}

/// Several tensors, also of several dtypes, as one operation: taken whole or not at all. Their
/// names are `name` with ".0", ".1", ... behind it.
inline void grouped_allreduce_(const std::vector<TensorView>& tensors, const std::string& name = "",
                               reduce_op op = Average, double prescale_factor = 1,
                               double postscale_factor = 1,
                               ProcessSet process_set = global_process_set,
                               const std::string& compressor = "") {
  synchronize(detail::Start<void>({RUEDA_ALLREDUCE,
                                   name,
                                   process_set,
                                   op,
                                   prescale_factor,
                                   postscale_factor,
                                   -1,
                                   {},
                                   compressor},
                                  tensors, detail::Memory::kInPlace, detail::When::kNow,
                                  /*grouped=*/true));
}

/// The same, in the background: the memory is borrowed until the operation has ended, and the
/// caller keeps it alive until then.
[[nodiscard]] inline Handle<> grouped_allreduce_async_(
    const std::vector<TensorView>& tensors, const std::string& name = "", reduce_op op = Average,
    double prescale_factor = 1, double postscale_factor = 1,
    ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return detail::Start<void>({RUEDA_ALLREDUCE,
                              name,
                              process_set,
                              op,
                              prescale_factor,
                              postscale_factor,
                              -1,
                              {},
                              compressor},
                             tensors, detail::Memory::kInPlace, detail::When::kInBackground,
                             /*grouped=*/true);
}

/// The same, out of place: of vectors all of one type, or of a std::vector<TensorView> of any.
template <Input I>
std::vector<Result<I>> grouped_allreduce(const std::vector<I>& tensors,
                                         const std::string& name = "", reduce_op op = Average,
                                         double prescale_factor = 1, double postscale_factor = 1,
                                         ProcessSet process_set = global_process_set,
                                         const std::string& compressor = "") {
  return synchronize(detail::StartGroup({RUEDA_ALLREDUCE,
                                         name,
                                         process_set,
                                         op,
                                         prescale_factor,
                                         postscale_factor,
                                         -1,
                                         {},
                                         compressor},
                                        tensors, detail::Memory::kCopied, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_allreduce_async(
    const std::vector<I>& tensors, const std::string& name = "", reduce_op op = Average,
    double prescale_factor = 1, double postscale_factor = 1,
    ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return detail::StartGroup({RUEDA_ALLREDUCE,
                             name,
                             process_set,
                             op,
                             prescale_factor,
                             postscale_factor,
                             -1,
                             {},
                             compressor},
                            tensors, detail::Memory::kCopied, detail::When::kInBackground);
}

/// As allreduce_, but only the tensor of `root_rank` changes.
inline void reduce_(const TensorView& tensor, int root_rank, const std::string& name = "",
                    reduce_op op = Average, double prescale_factor = 1, double postscale_factor = 1,
                    ProcessSet process_set = global_process_set) {
  detail::Execute(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank}, &tensor);
}

/// The same, in the background: `tensor` is borrowed until the operation has ended, and the caller
/// keeps it alive until then.
[[nodiscard]] inline Handle<> reduce_async_(const TensorView& tensor, int root_rank,
                                            const std::string& name = "", reduce_op op = Average,
                                            double prescale_factor = 1, double postscale_factor = 1,
                                            ProcessSet process_set = global_process_set) {
  return detail::Start<void>(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank},
      {&tensor, 1}, detail::Memory::kInPlace, detail::When::kInBackground);
}
/// The same for memory of its own: the handle must not outlive it.
template <detail::Owner R, typename... More>
requires std::convertible_to<R&, TensorView>
[[nodiscard]] Handle<> reduce_async_(R& tensor RUEDA_LIFETIMEBOUND, const More&... more) {
  return reduce_async_(TensorView(tensor), more...);
}
/// A temporary would be gone while the operation goes on: keep it in a variable.
template <detail::Owner R, typename... More>
requires(!std::is_lvalue_reference_v<R>) detail::KeepTheTensorUntilTheOperationHasEnded
    reduce_async_(R&& temporary, const More&... more)
= delete;

/// As allreduce, but only `root_rank` has a result; elsewhere it is empty.
template <Input I>
Result<I> reduce(const I& tensor, int root_rank, const std::string& name = "",
                 reduce_op op = Average, double prescale_factor = 1, double postscale_factor = 1,
                 ProcessSet process_set = global_process_set) {
  return synchronize(detail::StartOne<Result<I>>(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank}, tensor,
      detail::ReduceMemory(root_rank), detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> reduce_async(const I& tensor, int root_rank,
                                             const std::string& name = "", reduce_op op = Average,
                                             double prescale_factor = 1,
                                             double postscale_factor = 1,
                                             ProcessSet process_set = global_process_set) {
  return detail::StartOne<Result<I>>(
      {RUEDA_REDUCE, name, process_set, op, prescale_factor, postscale_factor, root_rank}, tensor,
      detail::ReduceMemory(root_rank), detail::When::kInBackground);
}

/// Reduces the tensors, of one shape on all ranks, and gives each rank its part of the rows: equal
/// parts, the lowest ranks one row more.
template <Input I>
Result<I> reducescatter(const I& tensor, const std::string& name = "", reduce_op op = Average,
                        double prescale_factor = 1, double postscale_factor = 1,
                        ProcessSet process_set = global_process_set,
                        const std::string& compressor = "") {
  return synchronize(detail::StartOne<Result<I>>({RUEDA_REDUCESCATTER,
                                                  name,
                                                  process_set,
                                                  op,
                                                  prescale_factor,
                                                  postscale_factor,
                                                  -1,
                                                  {},
                                                  compressor},
                                                 tensor, detail::Memory::kAllocated,
                                                 detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<Result<I>> reducescatter_async(const I& tensor, const std::string& name = "",
                                                    reduce_op op = Average,
                                                    double prescale_factor = 1,
                                                    double postscale_factor = 1,
                                                    ProcessSet process_set = global_process_set,
                                                    const std::string& compressor = "") {
  return detail::StartOne<Result<I>>({RUEDA_REDUCESCATTER,
                                      name,
                                      process_set,
                                      op,
                                      prescale_factor,
                                      postscale_factor,
                                      -1,
                                      {},
                                      compressor},
                                     tensor, detail::Memory::kAllocated,
                                     detail::When::kInBackground);
}

/// Several reducescatters as one operation; see grouped_allreduce_.
template <Input I>
std::vector<Result<I>> grouped_reducescatter(const std::vector<I>& tensors,
                                             const std::string& name = "", reduce_op op = Average,
                                             double prescale_factor = 1,
                                             double postscale_factor = 1,
                                             ProcessSet process_set = global_process_set,
                                             const std::string& compressor = "") {
  return synchronize(detail::StartGroup({RUEDA_REDUCESCATTER,
                                         name,
                                         process_set,
                                         op,
                                         prescale_factor,
                                         postscale_factor,
                                         -1,
                                         {},
                                         compressor},
                                        tensors, detail::Memory::kAllocated, detail::When::kNow));
}

/// The same, in the background.
template <Input I>
[[nodiscard]] Handle<std::vector<Result<I>>> grouped_reducescatter_async(
    const std::vector<I>& tensors, const std::string& name = "", reduce_op op = Average,
    double prescale_factor = 1, double postscale_factor = 1,
    ProcessSet process_set = global_process_set, const std::string& compressor = "") {
  return detail::StartGroup({RUEDA_REDUCESCATTER,
                             name,
                             process_set,
                             op,
                             prescale_factor,
                             postscale_factor,
                             -1,
                             {},
                             compressor},
                            tensors, detail::Memory::kAllocated, detail::When::kInBackground);
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_REDUCTIONS_HPP_
