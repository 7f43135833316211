/// \file
/// Rueda for LibTorch, with the names of Horovod's torch API: tensors, parameters, optimizers.
///
///     #include <rueda/torch.hpp>
///     #include <torch/torch.h>
///     namespace hvd = rueda::libtorch;
///
///     hvd::init();
///     Net model;
///     torch::optim::SGD sgd(model->parameters(), 0.01 * hvd::size());
///     hvd::broadcast_parameters(*model, 0);
///     hvd::broadcast_optimizer_state(sgd, 0);
///     hvd::DistributedOptimizer optimizer(sgd, model->named_parameters());
///     for (...) {
///       optimizer.zero_grad();
///       loss(...).backward();    // each gradient is sent as soon as it is computed
///       optimizer.step();        // waits for the averages, then steps
///     }
///     hvd::shutdown();
///
/// **Tensors** (at::Tensor, which is torch::Tensor) are strided, except in sparse_allreduce. All
/// tensors of an operation are on one device, the CPU or CUDA. Types: bool, uint8 to uint64, int8
/// to int64, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64 and
/// complex128. A tensor has at most 32 dimensions. Contiguous tensors are passed by pointer. Others
/// are copied on the way in, and functions that work in place (their names end in `_`) copy them on
/// the way out too. Operations that split or join rows need a first dimension: they reject a
/// scalar, and accept tensor.reshape({1}).
///
/// **CUDA**: an operation follows the order of streams. It starts after the work that the current
/// stream had when you called it. Work that you give to the current stream after synchronize()
/// starts after the operation. "Waits" then means: until all ranks have called. Nothing waits for
/// the device.
///
/// **Ownership**: an operation keeps its tensors alive until it ends. Until then don't read its
/// outputs and don't change its inputs. Memory that you gave to at::from_blob without a deleter
/// belongs to no tensor: keep it alive yourself. Functions in place increase their tensor's
/// version, so autograd notices the change.
///
/// **Gradients** flow through allreduce, broadcast, allgather, alltoall, reducescatter and the
/// groups of them, when their input requires a gradient. They are those of the sum of all ranks'
/// losses. The backward pass is an operation too, named "<name>.gradient". So either all ranks use
/// the result in their loss, or none does. Give operations names where the order of backward passes
/// may differ between ranks. Reduce operations other than Sum and Average have no gradient:
/// RUEDA_INVALID_ARGUMENT when the input requires one. All other functions (async, in place,
/// reduce, gather, scatter, send, recv) return results without a history.
///
/// **Threads**: any thread may call everything. A call works on the calling thread's current
/// context (rueda_current_context). A DistributedOptimizer keeps the context that was current when
/// it was made.
///
/// **Errors** are exceptions of type rueda::Error:
///
/// * RUEDA_INVALID_ARGUMENT: a mistake on this rank, or the ranks disagree. In the second case
///   every rank of the process set gets the error, and the job goes on.
/// * RUEDA_UNIMPLEMENTED: this version does not move tensors of this type, layout or device.
/// * RUEDA_ABORTED: a rank was lost. rank() says which, and recoverable() whether the others could
///   go on.
/// * RUEDA_FAILED_PRECONDITION: the call came before init or after shutdown.
///
/// rueda.h describes the others.
#ifndef RUEDA_TORCH_HPP_
#define RUEDA_TORCH_HPP_

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <chrono>
#include <concepts>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rueda/rueda.hpp"

#define RUEDA_TORCH_API __attribute__((visibility("default")))
#define RUEDA_TORCH_LOCAL __attribute__((visibility("hidden")))

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace rueda::libtorch {

// The job, as in rueda.hpp ---------------------------------------------------------------------

using rueda::cross_rank;
using rueda::cross_size;
using rueda::init;
using rueda::is_homogeneous;
using rueda::is_initialized;
using rueda::local_rank;
using rueda::local_size;
using rueda::rank;
using rueda::shutdown;
using rueda::size;

using rueda::Adasum;
using rueda::add_process_set;
using rueda::AllreduceOptions;
using rueda::Average;
using rueda::AverageLive;
using rueda::Band;
using rueda::barrier;
using rueda::Bor;
using rueda::Bxor;
using rueda::global_process_set;
using rueda::join;
using rueda::Max;
using rueda::Min;
using rueda::Options;
using rueda::ProcessSet;
using rueda::Product;
using rueda::reduce_op;
using rueda::ReduceOptions;
using rueda::ReducescatterOptions;
using rueda::remove_process_set;
using rueda::Sum;

/// Strings of bytes. The caller decides what they mean: a serialized object, for example.
using rueda::allgather_object;
using rueda::broadcast_object;

using rueda::Error;
using rueda::Knobs;
using rueda::LostRankError;
using rueda::MismatchError;

/// \addtogroup lt_job
/// @{

/// The device of type `type` that this rank uses. at::kCUDA gives the device that
/// rueda_local_device (rueda.h) chooses by the local rank; operations take tensors on that device.
/// The caller moves tensors and modules there. RUEDA_FAILED_PRECONDITION: this rank has no such
/// device, or this torch has no CUDA; the message says why.
RUEDA_TORCH_API at::Device local_device(at::DeviceType type);

/// @}

// Handles --------------------------------------------------------------------------------------
/// \addtogroup lt_handles
/// @{

class RUEDA_TORCH_LOCAL Operation;
class RUEDA_TORCH_LOCAL SparseOperation;

namespace internal {

/// \cond
RUEDA_TORCH_API bool WaitFor(Operation& operation, int64_t timeout_ns);
RUEDA_TORCH_API bool WaitFor(SparseOperation& operation, int64_t timeout_ns);
RUEDA_TORCH_API void Then(Operation& operation, std::function<void(const Error*)> callback);
RUEDA_TORCH_API void Then(SparseOperation& operation, std::function<void(const Error*)> callback);

/// \endcond

/// The functions that all handles have.
template <typename Derived>
class Waits {
 public:
  /// Waits for at most `timeout`. Returns whether the operation has ended, with or without success;
  /// synchronize tells which. If it has not ended, it goes on. On CUDA, this function waits for the
  /// device; nothing else here does.
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout) const {
    return WaitFor(self().operation(), rueda::detail::Nanoseconds(timeout));
  }

  /// Calls `callback` once, when the operation has ended (on CUDA: on the device). The argument is
  /// null after success, else the rueda::Error. The callback runs on the context's callback thread,
  /// or at once on this thread if the operation was synchronized already. As for rueda::Handle, it
  /// must not throw, and may start operations and wait for them. To synchronize in the callback,
  /// copy the handle into it.
  template <std::invocable<const Error*> F>
  void then(F callback) const {
    Then(self().operation(), [shared = std::make_shared<F>(std::move(callback))](
                                 const Error* error) { (*shared)(error); });
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace internal

/// An operation in flight whose result is one tensor. Copies refer to the same operation. The
/// destructor of the last copy waits until the operation ends, without a limit. If you call
/// synchronize only after shutdown, it throws RUEDA_FAILED_PRECONDITION.
///
/// An exception that unwinds past the last handle does not wait without a limit (rueda::Handle says
/// when this applies):
///
/// * An operation in place, or on memory that no tensor owns (at::from_blob without a deleter): the
///   destructor waits for at most RUEDA_UNWIND_TIMEOUT_S (5 s). Then it ends the membership on all
///   ranks, and the error names the operation.
/// * Any other operation goes on alone, and keeps its tensors until it has ended, because it still
///   reads its inputs.
///
/// The same holds for objects that own handles, such as a DistributedOptimizer whose gradients are
/// in flight.
class RUEDA_TORCH_API Handle : public internal::Waits<Handle> {
 public:
  Handle() = default;
  /// The functions of this header make handles; programs don't.
  explicit Handle(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  /// The operation. Throws if the handle is empty.
  Operation& operation() const;

 private:
  std::shared_ptr<Operation> operation_;
};

/// A group in flight: one operation whose result is several tensors.
class RUEDA_TORCH_API GroupHandle : public internal::Waits<GroupHandle> {
 public:
  GroupHandle() = default;
  /// The functions of this header make handles; programs don't.
  explicit GroupHandle(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  /// The operation. Throws if the handle is empty.
  Operation& operation() const;

 private:
  std::shared_ptr<Operation> operation_;
};

/// A sparse_allreduce in flight.
class RUEDA_TORCH_API SparseHandle : public internal::Waits<SparseHandle> {
 public:
  SparseHandle() = default;
  /// The functions of this header make handles; programs don't.
  explicit SparseHandle(std::shared_ptr<SparseOperation> operation)
      : operation_(std::move(operation)) {}
  /// The operation. Throws if the handle is empty.
  SparseOperation& operation() const;

 private:
  std::shared_ptr<SparseOperation> operation_;
};

/// Whether the operation has ended. Returns false at times although it has: right after it was
/// submitted, and while another thread synchronizes.
RUEDA_TORCH_API bool poll(const Handle& handle);
/// The same for a group.
RUEDA_TORCH_API bool poll(const GroupHandle& handle);
/// The same for a sparse_allreduce.
RUEDA_TORCH_API bool poll(const SparseHandle& handle);

/// Waits for the operation and returns its result. A function in place returns the tensor that it
/// was given. Throws the error if the operation failed, on every call.
RUEDA_TORCH_API at::Tensor synchronize(const Handle& handle);
/// The same for a group.
RUEDA_TORCH_API std::vector<at::Tensor> synchronize(const GroupHandle& handle);
/// The same for a sparse_allreduce.
RUEDA_TORCH_API at::Tensor synchronize(const SparseHandle& handle);

/// Waits until all operations have ended, then returns their results in the order of `handles`,
/// which is any range. If some failed, throws the error of the first of these.
template <std::ranges::forward_range Handles>
auto wait_all(const Handles& handles) {
  using Result = decltype(synchronize(*std::ranges::begin(handles)));
  std::vector<Result> results;
  std::exception_ptr failure;
  for (const auto& handle : handles) {
    try {
      results.push_back(synchronize(handle));
    } catch (const Error&) {
      if (failure == nullptr) failure = std::current_exception();
    }
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  return results;
}
/// Also takes a list: `wait_all({first, second})`.
template <typename H>
auto wait_all(std::initializer_list<H> handles) {
  return wait_all(std::span(handles.begin(), handles.size()));
}

/// How many rows of the result came from each rank of the process set: an int64 vector. Waits for
/// the operation. Works for an allgather, an alltoall, and a gather on its root; others throw
/// RUEDA_INVALID_ARGUMENT.
RUEDA_TORCH_API at::Tensor received_splits(const Handle& handle);

/// @}

// Options --------------------------------------------------------------------------------------
//
// Those of rueda.hpp, and two of torch's own: allreduce(tensor, {.name = "loss", .op = hvd::Sum}).
/// \addtogroup lt_options
/// @{

/// How many rows go to each rank of the process set, in rank order. The numbers add up to the
/// tensor's first dimension. Empty: equal parts.
class RUEDA_TORCH_API Splits {
 public:
  Splits() = default;
  /// From a list: `{2, 1}`.
  Splits(std::initializer_list<int64_t> rows) : rows_(rows) {}  // NOLINT: implicit
  /// From a vector.
  Splits(std::vector<int64_t> rows) : rows_(std::move(rows)) {}  // NOLINT
  /// From torch's view of a list.
  Splits(c10::IntArrayRef rows) : rows_(rows.vec()) {}  // NOLINT
  /// From a vector of integers on the CPU. If `rows` is something else, the operation that gets it
  /// fails on all ranks.
  Splits(const at::Tensor& rows);  // NOLINT
  /// The numbers of rows.
  const std::vector<int64_t>& rows() const { return rows_; }
  /// What is wrong with the tensor that was given, or "".
  const std::string& fault() const { return fault_; }

 private:
  std::vector<int64_t> rows_;
  std::string fault_;
};

/// Options of alltoall and scatter.
struct SplitOptions {
  Splits splits = {};
  std::string name = {};
  ProcessSet process_set = global_process_set;
};

/// Options of sparse_allreduce.
struct SparseOptions {
  std::string name = {};
  reduce_op op = Average;
  ProcessSet process_set = global_process_set;
};

/// @}

// allreduce ------------------------------------------------------------------------------------
/// \addtogroup lt_reductions
/// @{

/// Combines `tensor` over the ranks of the process set. Shape and type are the same on all ranks.
/// Inputs are multiplied by `prescale_factor` before the reduction, and the result by
/// `postscale_factor` after it. `name` matches the operation with those of the other ranks,
/// whatever the order of submission; operations without a name are matched by order.
///
/// Averages of integers follow RUEDA_AVERAGE: exact up to 32 bits, and truncated toward zero. bool
/// has no average. The gradient of a compressed allreduce is not compressed.
RUEDA_TORCH_API at::Tensor allreduce(const at::Tensor& tensor,
                                     const AllreduceOptions& options = {});
/// In place. Returns `tensor`. Its elements must not share memory, as those of an expanded tensor
/// do.
RUEDA_TORCH_API at::Tensor allreduce_(const at::Tensor& tensor,
                                      const AllreduceOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle allreduce_async(const at::Tensor& tensor,
                                                     const AllreduceOptions& options = {});
/// In place, in the background.
[[nodiscard]] RUEDA_TORCH_API Handle allreduce_async_(const at::Tensor& tensor,
                                                      const AllreduceOptions& options = {});

/// Reduces several tensors (at least one) as one operation: all of them or none. With a name, the
/// tensors are called "<name>.0", "<name>.1", ...
RUEDA_TORCH_API std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                                          const AllreduceOptions& options = {});
/// In place.
RUEDA_TORCH_API std::vector<at::Tensor> grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                                                           const AllreduceOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API GroupHandle grouped_allreduce_async(
    const std::vector<at::Tensor>& tensors, const AllreduceOptions& options = {});
/// In place, in the background.
[[nodiscard]] RUEDA_TORCH_API GroupHandle grouped_allreduce_async_(
    const std::vector<at::Tensor>& tensors, const AllreduceOptions& options = {});

/// The Sum or Average of sparse COO tensors. Shape and type are the same on all ranks; each rank
/// may have any number of elements. The indices and values of all ranks are gathered. The result is
/// coalesced and has the same bits on all ranks. RUEDA_INVALID_ARGUMENT on all ranks: the shapes
/// differ, or it is an average of bool or uint64.
RUEDA_TORCH_API at::Tensor sparse_allreduce(const at::Tensor& tensor,
                                            const SparseOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API SparseHandle
sparse_allreduce_async(const at::Tensor& tensor, const SparseOptions& options = {});

/// @}

// broadcast ------------------------------------------------------------------------------------
/// \addtogroup lt_movement
/// @{

/// Gives every rank of the process set the `tensor` of `root_rank`, a world rank in the set. Shape
/// and type are the same on all ranks.
RUEDA_TORCH_API at::Tensor broadcast(const at::Tensor& tensor, int root_rank,
                                     const Options& options = {});
/// In place. Returns `tensor`.
RUEDA_TORCH_API at::Tensor broadcast_(const at::Tensor& tensor, int root_rank,
                                      const Options& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle broadcast_async(const at::Tensor& tensor, int root_rank,
                                                     const Options& options = {});
/// In place, in the background.
[[nodiscard]] RUEDA_TORCH_API Handle broadcast_async_(const at::Tensor& tensor, int root_rank,
                                                      const Options& options = {});

// allgather ------------------------------------------------------------------------------------

/// Joins all ranks' tensors along the first dimension, in rank order. The first dimension may
/// differ between ranks and may be 0; the others are the same. A scalar has no first dimension: use
/// tensor.reshape({1}).
RUEDA_TORCH_API at::Tensor allgather(const at::Tensor& tensor, const Options& options = {});
/// In the background. received_splits gives the number of rows from each rank.
[[nodiscard]] RUEDA_TORCH_API Handle allgather_async(const at::Tensor& tensor,
                                                     const Options& options = {});

/// Gathers several tensors as one operation: all of them or none.
RUEDA_TORCH_API std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                                          const Options& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API GroupHandle
grouped_allgather_async(const std::vector<at::Tensor>& tensors, const Options& options = {});

// alltoall -------------------------------------------------------------------------------------

/// Sends each rank of the process set its rows of `tensor`. The result is what all ranks sent to
/// this one, in rank order. All dimensions but the first are the same on all ranks.
RUEDA_TORCH_API at::Tensor alltoall(const at::Tensor& tensor, const SplitOptions& options = {});
/// Also returns how many rows came from each rank: an int64 vector.
RUEDA_TORCH_API std::pair<at::Tensor, at::Tensor> alltoall_with_splits(
    const at::Tensor& tensor, const SplitOptions& options = {});
/// In the background. received_splits gives the number of rows from each rank.
[[nodiscard]] RUEDA_TORCH_API Handle alltoall_async(const at::Tensor& tensor,
                                                    const SplitOptions& options = {});

/// @}

// reducescatter --------------------------------------------------------------------------------
/// \addtogroup lt_reductions
/// @{

/// Combines `tensor` over the ranks, and gives each rank its rows of the result: equal parts in
/// rank order, where the lowest ranks get one row more. Shape and type are the same on all ranks.
/// Factors work as in allreduce.
RUEDA_TORCH_API at::Tensor reducescatter(const at::Tensor& tensor,
                                         const ReducescatterOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle reducescatter_async(const at::Tensor& tensor,
                                                         const ReducescatterOptions& options = {});
/// Several tensors as one operation: all of them or none.
RUEDA_TORCH_API std::vector<at::Tensor> grouped_reducescatter(
    const std::vector<at::Tensor>& tensors, const ReducescatterOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API GroupHandle grouped_reducescatter_async(
    const std::vector<at::Tensor>& tensors, const ReducescatterOptions& options = {});

// To and from one rank -------------------------------------------------------------------------
//
// Ranks are world ranks, in process sets too.

/// Like allreduce, but only `root_rank` gets the result. Other ranks get an undefined tensor.
RUEDA_TORCH_API at::Tensor reduce(const at::Tensor& tensor, int root_rank,
                                  const ReduceOptions& options = {});
/// In place. Returns `tensor`, which stays as it was on ranks other than `root_rank`.
RUEDA_TORCH_API at::Tensor reduce_(const at::Tensor& tensor, int root_rank,
                                   const ReduceOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle reduce_async(const at::Tensor& tensor, int root_rank,
                                                  const ReduceOptions& options = {});
/// In place, in the background.
[[nodiscard]] RUEDA_TORCH_API Handle reduce_async_(const at::Tensor& tensor, int root_rank,
                                                   const ReduceOptions& options = {});

/// @}
/// \addtogroup lt_movement
/// @{

/// Like allgather, but only `root_rank` gets the result. Other ranks get an undefined tensor.
RUEDA_TORCH_API at::Tensor gather(const at::Tensor& tensor, int root_rank,
                                  const Options& options = {});
/// In the background. On the root, received_splits gives the number of rows from each rank.
[[nodiscard]] RUEDA_TORCH_API Handle gather_async(const at::Tensor& tensor, int root_rank,
                                                  const Options& options = {});

/// Gives each rank its rows of the `tensor` of `root_rank`, which chooses the splits. On other
/// ranks, `tensor` only gives the type and the shape of a row, and its own rows are ignored:
/// torch::empty({0, 3}) will do.
RUEDA_TORCH_API at::Tensor scatter(const at::Tensor& tensor, int root_rank,
                                   const SplitOptions& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle scatter_async(const at::Tensor& tensor, int root_rank,
                                                   const SplitOptions& options = {});

/// Sends `tensor` to `rank`. That rank must receive it into a tensor of the same type and shape,
/// under the same name; without names, sends and receives match by order. A send may wait for its
/// recv. The result of the async functions is `tensor`.
RUEDA_TORCH_API void send(const at::Tensor& tensor, int rank, const Options& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle send_async(const at::Tensor& tensor, int rank,
                                                const Options& options = {});
/// Receives into `tensor` what `rank` sends, and returns `tensor`.
RUEDA_TORCH_API at::Tensor recv_(const at::Tensor& tensor, int rank, const Options& options = {});
/// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle recv_async_(const at::Tensor& tensor, int rank,
                                                 const Options& options = {});

/// @}

// Models and optimizers ------------------------------------------------------------------------
/// \addtogroup lt_optimizers
/// @{

/// Tensors with their names.

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Overwrites all ranks' tensors with those of `root_rank`. Names, shapes and types are the same on
/// all ranks; the order may differ. Blocks. Skips undefined tensors. If some tensors fail, the
/// others still arrive, and the first error is thrown.
RUEDA_TORCH_API void broadcast_parameters(const NamedTensors& tensors, int root_rank,
                                          ProcessSet process_set = global_process_set);
/// For model->named_parameters() and model->named_buffers().
RUEDA_TORCH_API void broadcast_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& tensors, int root_rank,
    ProcessSet process_set = global_process_set);
/// All parameters and buffers of a module.
RUEDA_TORCH_API void broadcast_parameters(const torch::nn::Module& module, int root_rank,
                                          ProcessSet process_set = global_process_set);

/// Gives all ranks the state of the optimizer of `root_rank`: its options with the learning rate,
/// and what it stores for each parameter, step counters included. Works for torch's SGD, Adam,
/// AdamW, RMSprop and Adagrad. A rank without state gets it; a rank with more state than the root
/// loses the rest. Blocks.
///
/// RUEDA_INVALID_ARGUMENT on all ranks, with nothing changed: the optimizers differ in their type,
/// or in their parameters, groups or order; or the type is another one.
RUEDA_TORCH_API void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank,
                                               ProcessSet process_set = global_process_set);

/// Options of a DistributedOptimizer.
struct DistributedOptimizerOptions {
  reduce_op op = Average;
  ProcessSet process_set = global_process_set;
  /// How many gradients of each parameter are added up before they are reduced. They are summed
  /// over the passes, not averaged.
  int backward_passes_per_step = 1;
  /// For Average only, against overflow in small types: gradients are divided by this factor before
  /// they are added up over the ranks, and by the rest of the size afterwards.
  double gradient_predivide_factor = 1;
  /// Makes sparse gradients dense before they are reduced. Use it when all ranks together have many
  /// elements, when the optimizer takes no sparse gradients, for operations other than Average and
  /// Sum, and when a rank may not compute a sparse gradient in the first step.
  bool sparse_as_dense = false;
  /// Allocates gradients like rueda_mem_alloc, so that the ranks of a host reduce them without
  /// another copy. This applies to gradients over 128 KiB, and to the tensors of 32 KiB to 4 MiB in
  /// which smaller ones lie together. The memory is kept from step to step. The allocator replaces
  /// torch's CPU allocator for every tensor of exactly such a size, gradient or not. A forked child
  /// that touches such a tensor gets SIGSEGV.
  bool gradients_in_arena = true;
  /// Compresses gradients of float32, float16 and bfloat16 on their way: "" (no compression),
  /// "fp16", "int8", "topk:0.01", "powersgd:4", "auto" and the others of rueda_operation. What a
  /// gradient loses is stored under its name and added in the next step. For Average and Sum.
  /// Sparse gradients and other types are not compressed.
  std::string compression;
  /// The first part of the operations' names: "<name>.<parameter>". Optimizers whose gradients are
  /// in flight at the same time need different names if their parameters share names.
  std::string name = "gradient";
};

/// Makes an optimizer data-parallel. It reduces each gradient over the ranks as soon as a backward
/// pass has computed it, and steps when all have arrived. It takes the parameters that require a
/// gradient when it is made.
///
/// **What is reduced** is a copy. synchronize and step make the result the parameter's gradient.
/// Until then the gradient is this rank's own, and what you write to it is lost; if torch has
/// counted a write, one warning (c10::WarningUtils) says so. A gradient tensor that the program
/// keeps is not changed by later steps. From the backward pass until then, gradients take their
/// size twice.
///
/// **Small gradients**, up to 128 KiB, are reduced as parts of shared tensors of up to 4 MiB and
/// 256 gradients. Each shared tensor has one type. The order is the one in which the first step's
/// backward passes computed the gradients, on average. A shared tensor is reduced when a backward
/// pass has computed all of its gradients, or by synchronize.
///
/// **Unused parameters**: every rank reduces every gradient in every step. A gradient that no
/// backward pass has computed since zero_grad() counts as zeros on this rank. So ranks may use
/// different parts of the model. A parameter that no rank used has no gradient after the step, as
/// in one process.
///
/// **Sparse gradients** (of an embedding with sparse(true)) are reduced as in sparse_allreduce and
/// replaced by the result. If a rank has not computed a gradient, it takes it for sparse when its
/// last one was. So each rank must compute one in the first step, or all get
/// RUEDA_INVALID_ARGUMENT.
///
/// **The optimizer** is borrowed and must outlive this object. Use it directly for everything else:
/// learning rates, schedulers, saving. You may freeze parameters later; they then keep their
/// values. After adding or unfreezing parameters, make a new object. Optimizers that need a closure
/// (LBFGS) are rejected.
///
/// **Threads**: backward may run on any thread, in any context. The operations go to the context
/// that was current when this object was made. Everything else, destruction included, is for one
/// thread at a time, and not during a backward pass.
///
/// **Errors** are never thrown into a backward pass. The next synchronize or step throws them, when
/// all other gradients have arrived. Then the gradients are worthless, the parameters are
/// unchanged, and the next backward pass starts afresh.
class RUEDA_TORCH_API DistributedOptimizer {
 public:
  /// `named_parameters` gives each parameter of the optimizer its name, the same on all ranks. It
  /// may contain more parameters than the optimizer has. RUEDA_INVALID_ARGUMENT: a parameter has no
  /// name, two have the same name, an option is out of range, or another object has hooked a
  /// parameter.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedTensors& named_parameters,
                       DistributedOptimizerOptions options = {});
  /// The same, for model->named_parameters().
  DistributedOptimizer(torch::optim::Optimizer& optimizer,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});
  /// Names the parameters by their position in the optimizer.
  explicit DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                DistributedOptimizerOptions options = {});
  /// Removes the hooks, and waits for the gradients in flight.
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  /// Synchronizes, then steps the optimizer.
  void step();

  /// Waits until all gradients are reduced. Does nothing if that was done since the last backward
  /// pass, zero_grad or step. Call it before you clip or read gradients.
  void synchronize();

  /// Clears the gradients, and forgets the passes that were added up so far.
  /// RUEDA_FAILED_PRECONDITION: gradients are in flight; to drop them, synchronize first.
  void zero_grad(bool set_to_none = true);

  /// While it lives, backward passes only add to this rank's gradients. The first pass without it
  /// reduces the sum of all. So keep it alive in all passes of a step but the last:
  ///
  ///     for (const Batch& batch : micro_batches) {
  ///       std::optional<hvd::DistributedOptimizer::NoSync> hold;
  ///       if (&batch != &micro_batches.back()) hold.emplace(optimizer);
  ///       loss(batch).backward();
  ///     }
  ///     optimizer.step();
  ///
  /// step also reduces gradients that it added to and that no later pass computes.
  class RUEDA_TORCH_API NoSync {
   public:
    /// Holds back the reduction of `optimizer`'s gradients.
    explicit NoSync(DistributedOptimizer& optimizer);
    /// The next backward pass reduces the gradients.
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedOptimizer& optimizer_;
  };
  /// The same as NoSync(*this).
  [[nodiscard]] NoSync no_sync();

  /// The names of the parameters for which no rank had a gradient in the last synchronize or step.
  /// They have none afterwards either, so weight decay and momentum do not change them.
  std::vector<std::string> unused_parameters() const;

  /// The optimizer that this object was given.
  torch::optim::Optimizer& optimizer() const;

 private:
  class RUEDA_TORCH_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

/// @}

// Operators ------------------------------------------------------------------------------------

/// \addtogroup lt_operators
///
/// Loading the library registers these operators for TorchScript and Python
/// (torch.ops.load_library, torch.ops.rueda), with kernels for CPU and CUDA tensors.
///
/// * `op` is "average", "sum", "min", "max", "product", "band", "bor", "bxor", "adasum" or
///   "average_live".
/// * `process_set` is a process set's id.
///
/// Operators work on the calling thread's current context, block, and raise RuntimeError. Gradients
/// flow through the same operations as in C++. Under torch.compile, import rueda.torch too
/// (docs/guides/libtorch.md). Operators whose results have rows of other ranks, or no tensors, end
/// a graph.
///
///     rueda::init() -> ()        rueda::rank() -> int    rueda::local_rank() -> int
///     rueda::shutdown() -> ()    rueda::size() -> int    rueda::local_size() -> int
///     rueda::barrier(int process_set=0) -> ()            rueda::join(int process_set=0) -> int
///     rueda::allreduce(Tensor tensor, str name="", str op="average", float prescale_factor=1.0,
///                      float postscale_factor=1.0, int process_set=0) -> Tensor
///     rueda::allreduce_(Tensor(a!) tensor, <the same>) -> Tensor(a!)
///     rueda::grouped_allreduce(Tensor[] tensors, <the same>) -> Tensor[]
///     rueda::broadcast(Tensor tensor, int root_rank, str name="", int process_set=0) -> Tensor
///     rueda::broadcast_(Tensor(a!) tensor, int root_rank, str name="", int process_set=0)
///                      -> Tensor(a!)
///     rueda::allgather(Tensor tensor, str name="", int process_set=0) -> Tensor
///     rueda::grouped_allgather(Tensor[] tensors, str name="", int process_set=0) -> Tensor[]
///     rueda::alltoall(Tensor tensor, int[] splits=[], str name="", int process_set=0)
///                      -> (Tensor, Tensor), the second as in alltoall_with_splits
///     rueda::reducescatter(Tensor tensor, str name="", str op="average", *,
///                      float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0)
///                      -> Tensor
///     rueda::grouped_reducescatter(Tensor[] tensors, <the same>) -> Tensor[]
///     rueda::reduce(Tensor tensor, int root_rank, str name="", str op="average",
///                      float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0)
///                      -> Tensor?, None but on the root
///     rueda::gather(Tensor tensor, int root_rank, str name="", int process_set=0) -> Tensor?
///     rueda::scatter(Tensor tensor, int root_rank, int[] splits=[], str name="",
///                      int process_set=0) -> Tensor
///     rueda::send(Tensor tensor, int rank, str name="", int process_set=0) -> ()
///     rueda::recv_(Tensor(a!) tensor, int rank, str name="", int process_set=0) -> Tensor(a!)

}  // namespace rueda::libtorch

#include "rueda/torch_deprecated.hpp"

#endif  // RUEDA_TORCH_HPP_
