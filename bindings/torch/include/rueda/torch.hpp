// Rueda for LibTorch, in the manner of Horovod's torch API: tensors, parameters, optimizers.
//
//     #include <rueda/torch.hpp>
//     #include <torch/torch.h>
//     namespace hvd = rueda::libtorch;
//
//     hvd::init();
//     Net model;
//     torch::optim::SGD sgd(model->parameters(), 0.01 * hvd::size());
//     hvd::broadcast_parameters(*model, 0);
//     hvd::broadcast_optimizer_state(sgd, 0);
//     hvd::DistributedOptimizer optimizer(sgd, model->named_parameters());
//     for (...) {
//       optimizer.zero_grad();
//       loss(...).backward();    // every gradient is on its way as soon as it is there
//       optimizer.step();        // waits for the averages, then steps
//     }
//     hvd::shutdown();
//
// Tensors (at::Tensor, which is torch::Tensor) are strided (but for sparse_allreduce) and on the
// CPU or on CUDA, all of an operation in one place. They are of the types bool, uint8 to uint64,
// int8 to int64, float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64 and
// complex128, of any number of dimensions up to 32. Contiguous ones go in and come out by pointer;
// others are copied, on the way in, and for functions that work in place (their names end in `_`)
// on the way out too. Where rows are split or joined a tensor needs a first dimension: a scalar is
// refused, tensor.reshape({1}) is not.
//
// On CUDA an operation is in the order of streams: behind what the current stream had been given
// when it was called, and before what the stream that is current in synchronize() is given
// afterwards. "Waits" then means: until all ranks have called. Nothing waits for the device.
//
// Ownership: an operation keeps its tensors alive until it has ended. (Memory that at::from_blob
// was given without a deleter is no tensor's: keep it until then.) Until then don't read its
// outputs and don't change its inputs. Functions in place bump their tensor's version, so that
// autograd notices a change under its feet.
//
// Gradients flow through allreduce, broadcast, allgather, alltoall, reducescatter and the groups of
// them, when their input requires one: for the sum of all ranks' losses. The backward pass is an
// operation too, called "<name>.gradient": so all ranks must use what they got in their loss, or
// none, and names keep the ranks together where order does not. A reduce operation other than Sum
// and Average has no gradient: RUEDA_INVALID_ARGUMENT when the input requires one. Everything else
// (with async, in place, reduce, gather, scatter, send, recv) gives results without a history.
//
// Threads: everything may be called from any thread, and works on that thread's current context
// (rueda.h, rueda_current_context). A DistributedOptimizer keeps the context it was made with.
//
// Errors are exceptions of type rueda::Error. RUEDA_INVALID_ARGUMENT: your mistake, or the ranks
// disagree (then every rank of the process set gets it, and the job goes on).
// RUEDA_UNIMPLEMENTED: a tensor of a type, layout or device that this version doesn't move.
// RUEDA_ABORTED: a rank was lost, rank(); recoverable() says whether the others could go on.
// RUEDA_FAILED_PRECONDITION: before init or after shutdown. rueda.h has the rest.
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

// Strings of bytes: what they mean is the caller's business, a serialized object, say.
using rueda::allgather_object;
using rueda::broadcast_object;

using rueda::Error;
using rueda::Knobs;
using rueda::LostRankError;
using rueda::MismatchError;

// The device of this type that this rank is to use, and whose tensors its operations take:
// at::kCUDA gives the one that rueda_local_device (rueda.h) tells, by the local rank. Tensors and
// modules are put there by the caller. RUEDA_FAILED_PRECONDITION, in one line: why there is none,
// or that this torch has no CUDA.
RUEDA_TORCH_API at::Device local_device(at::DeviceType type);

// Handles --------------------------------------------------------------------------------------

class RUEDA_TORCH_LOCAL Operation;
class RUEDA_TORCH_LOCAL SparseOperation;

namespace internal {

RUEDA_TORCH_API bool WaitFor(Operation& operation, int64_t timeout_ns);
RUEDA_TORCH_API bool WaitFor(SparseOperation& operation, int64_t timeout_ns);
RUEDA_TORCH_API void Then(Operation& operation, std::function<void(const Error*)> callback);
RUEDA_TORCH_API void Then(SparseOperation& operation, std::function<void(const Error*)> callback);

// What all handles can.
template <typename Derived>
class Waits {
 public:
  // Waits for the operation for at most that long. Whether it has ended, well or not: synchronize
  // tells. If not, it goes on. On CUDA this waits for the device, as nothing else here does.
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> timeout) const {
    return WaitFor(self().operation(), rueda::detail::Nanoseconds(timeout));
  }

  // Calls `callback` once, when the operation has ended (on CUDA: on the device), on the context's
  // callback thread: with null when it went well, else with the rueda::Error that says how it
  // failed. When it has been synchronized already that is at once, on this thread. The rest is as
  // for rueda::Handle: it must not throw, and may start operations and wait for them. Copy the
  // handle into it to synchronize there.
  template <std::invocable<const Error*> F>
  void then(F callback) const {
    Then(self().operation(), [shared = std::make_shared<F>(std::move(callback))](
                                 const Error* error) { (*shared)(error); });
  }

 private:
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace internal

// An operation under way, with a tensor as its result. Copies refer to the same operation. The
// destructor of the last one waits for the operation's end, without a limit. One that was not
// synchronized before shutdown gives RUEDA_FAILED_PRECONDITION afterwards.
//
// An exception that unwinds past the last handle is not held up (rueda::Handle says when that is).
// An operation in place, or one on memory that no tensor owns (at::from_blob without a deleter), is
// waited for, for at most RUEDA_UNWIND_TIMEOUT_S (5 s); then the handle ends the membership on all
// ranks, and the error names the operation. Another one goes on by itself, and keeps its tensors
// until it has ended: it still reads its inputs. The same holds for all that has handles of its
// own, such as a DistributedOptimizer with gradients on their way.
class RUEDA_TORCH_API Handle : public internal::Waits<Handle> {
 public:
  Handle() = default;
  explicit Handle(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  // Throws for an empty handle.
  Operation& operation() const;

 private:
  std::shared_ptr<Operation> operation_;
};

// A group under way: one operation with several tensors as its result.
class RUEDA_TORCH_API GroupHandle : public internal::Waits<GroupHandle> {
 public:
  GroupHandle() = default;
  explicit GroupHandle(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  Operation& operation() const;

 private:
  std::shared_ptr<Operation> operation_;
};

// A sparse_allreduce under way.
class RUEDA_TORCH_API SparseHandle : public internal::Waits<SparseHandle> {
 public:
  SparseHandle() = default;
  explicit SparseHandle(std::shared_ptr<SparseOperation> operation)
      : operation_(std::move(operation)) {}
  SparseOperation& operation() const;

 private:
  std::shared_ptr<SparseOperation> operation_;
};

// Whether the operation has ended. May be false right after it was submitted, and while another
// thread synchronizes.
RUEDA_TORCH_API bool poll(const Handle& handle);
RUEDA_TORCH_API bool poll(const GroupHandle& handle);
RUEDA_TORCH_API bool poll(const SparseHandle& handle);

// Waits for the operation and returns its result: for functions in place the tensor that they were
// given. Throws how the operation failed. Again, when called again.
RUEDA_TORCH_API at::Tensor synchronize(const Handle& handle);
RUEDA_TORCH_API std::vector<at::Tensor> synchronize(const GroupHandle& handle);
RUEDA_TORCH_API at::Tensor synchronize(const SparseHandle& handle);

// Waits until all of the operations have ended, then returns their results in that order. If some
// failed, throws how the first of them did. `handles`: a range of them.
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
// The same of `wait_all({first, second})`.
template <typename H>
auto wait_all(std::initializer_list<H> handles) {
  return wait_all(std::span(handles.begin(), handles.size()));
}

// How many rows of the result came from each rank of the process set: an int64 vector. Waits for
// the operation: an allgather, an alltoall, or a gather on its root; else RUEDA_INVALID_ARGUMENT.
RUEDA_TORCH_API at::Tensor received_splits(const Handle& handle);

// Options --------------------------------------------------------------------------------------
//
// Those of rueda.hpp, and two of torch's own: allreduce(tensor, {.name = "loss", .op = hvd::Sum}).

// How many rows go to each rank of the process set, in rank order; they add up to the tensor's
// first dimension. Empty: equal parts.
class RUEDA_TORCH_API Splits {
 public:
  Splits() = default;
  Splits(std::initializer_list<int64_t> rows) : rows_(rows) {}   // NOLINT: implicit
  Splits(std::vector<int64_t> rows) : rows_(std::move(rows)) {}  // NOLINT
  Splits(c10::IntArrayRef rows) : rows_(rows.vec()) {}           // NOLINT
  // A vector of integers on the CPU; RUEDA_INVALID_ARGUMENT says what it is instead.
  Splits(const at::Tensor& rows);  // NOLINT
  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  std::vector<int64_t> rows_;
};

// Of alltoall and scatter.
struct SplitOptions {
  Splits splits = {};
  std::string name = {};
  ProcessSet process_set = global_process_set;
};

// Of sparse_allreduce.
struct SparseOptions {
  std::string name = {};
  reduce_op op = Average;
  ProcessSet process_set = global_process_set;
};

// allreduce ------------------------------------------------------------------------------------

// Combines `tensor`, of one shape and type on all ranks, over the process set. Inputs are
// multiplied by `prescale_factor` before and the result by `postscale_factor` after the reduction.
// Averages of integers are those of RUEDA_AVERAGE: exact up to 32 bits, and truncated towards zero;
// bool has none. `name` matches the operation with the other ranks', in any order of submission;
// without one, order matches it. The gradient of a compressed allreduce is not compressed.
RUEDA_TORCH_API at::Tensor allreduce(const at::Tensor& tensor,
                                     const AllreduceOptions& options = {});
// In place. Returns `tensor`. Its elements must not share memory (as an expanded tensor's do).
RUEDA_TORCH_API at::Tensor allreduce_(const at::Tensor& tensor,
                                      const AllreduceOptions& options = {});
// In the background.
[[nodiscard]] RUEDA_TORCH_API Handle allreduce_async(const at::Tensor& tensor,
                                                     const AllreduceOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle allreduce_async_(const at::Tensor& tensor,
                                                      const AllreduceOptions& options = {});

// Several tensors (at least one) that are reduced together or not at all. With a name they are
// called "<name>.0", "<name>.1", ...
RUEDA_TORCH_API std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                                          const AllreduceOptions& options = {});
RUEDA_TORCH_API std::vector<at::Tensor> grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                                                           const AllreduceOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API GroupHandle grouped_allreduce_async(
    const std::vector<at::Tensor>& tensors, const AllreduceOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API GroupHandle grouped_allreduce_async_(
    const std::vector<at::Tensor>& tensors, const AllreduceOptions& options = {});

// The Sum or Average of sparse COO tensors of one shape and type, of any number of elements on each
// rank: the indices and values of all are gathered. The result is coalesced, the same bits on all
// ranks. RUEDA_INVALID_ARGUMENT, on all: shapes differ, or it is an average of bool or uint64.
RUEDA_TORCH_API at::Tensor sparse_allreduce(const at::Tensor& tensor,
                                            const SparseOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API SparseHandle
sparse_allreduce_async(const at::Tensor& tensor, const SparseOptions& options = {});

// broadcast ------------------------------------------------------------------------------------

// Gives every rank of the process set the `tensor` of `root_rank`, a world rank in the set. Shape
// and type are the same on all ranks.
RUEDA_TORCH_API at::Tensor broadcast(const at::Tensor& tensor, int root_rank,
                                     const Options& options = {});
RUEDA_TORCH_API at::Tensor broadcast_(const at::Tensor& tensor, int root_rank,
                                      const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle broadcast_async(const at::Tensor& tensor, int root_rank,
                                                     const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle broadcast_async_(const at::Tensor& tensor, int root_rank,
                                                      const Options& options = {});

// allgather ------------------------------------------------------------------------------------

// All ranks' tensors, joined along the first dimension in rank order. The first dimension may
// differ by rank and may be 0; the others may not. A scalar has no first dimension:
// tensor.reshape({1}).
RUEDA_TORCH_API at::Tensor allgather(const at::Tensor& tensor, const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle allgather_async(const at::Tensor& tensor,
                                                     const Options& options = {});

// Several tensors that are gathered together or not at all.
RUEDA_TORCH_API std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                                          const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API GroupHandle
grouped_allgather_async(const std::vector<at::Tensor>& tensors, const Options& options = {});

// alltoall -------------------------------------------------------------------------------------

// Gives each rank of the process set its rows of `tensor`. The result is what all ranks gave to
// this one, in rank order. All dimensions but the first are the same on all ranks.
RUEDA_TORCH_API at::Tensor alltoall(const at::Tensor& tensor, const SplitOptions& options = {});
// And how many rows came from each rank: an int64 vector.
RUEDA_TORCH_API std::pair<at::Tensor, at::Tensor> alltoall_with_splits(
    const at::Tensor& tensor, const SplitOptions& options = {});
// In the background; see received_splits.
[[nodiscard]] RUEDA_TORCH_API Handle alltoall_async(const at::Tensor& tensor,
                                                    const SplitOptions& options = {});

// reducescatter --------------------------------------------------------------------------------

// Combines `tensor`, of one shape and type on all ranks, and gives each rank its rows of the
// result: equal parts in rank order, the lowest ranks one row more. Factors as in allreduce.
RUEDA_TORCH_API at::Tensor reducescatter(const at::Tensor& tensor,
                                         const ReducescatterOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle reducescatter_async(const at::Tensor& tensor,
                                                         const ReducescatterOptions& options = {});
RUEDA_TORCH_API std::vector<at::Tensor> grouped_reducescatter(
    const std::vector<at::Tensor>& tensors, const ReducescatterOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API GroupHandle grouped_reducescatter_async(
    const std::vector<at::Tensor>& tensors, const ReducescatterOptions& options = {});

// To and from one rank -------------------------------------------------------------------------
//
// Ranks are world ranks, in process sets too.

// As allreduce, but `root_rank` alone gets the result: elsewhere it is an undefined tensor, and in
// place `tensor` as it was.
RUEDA_TORCH_API at::Tensor reduce(const at::Tensor& tensor, int root_rank,
                                  const ReduceOptions& options = {});
RUEDA_TORCH_API at::Tensor reduce_(const at::Tensor& tensor, int root_rank,
                                   const ReduceOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle reduce_async(const at::Tensor& tensor, int root_rank,
                                                  const ReduceOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle reduce_async_(const at::Tensor& tensor, int root_rank,
                                                   const ReduceOptions& options = {});

// As allgather, but `root_rank` alone gets the result: elsewhere it is an undefined tensor.
RUEDA_TORCH_API at::Tensor gather(const at::Tensor& tensor, int root_rank,
                                  const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle gather_async(const at::Tensor& tensor, int root_rank,
                                                  const Options& options = {});

// Gives each rank its rows of the `tensor` of `root_rank`, split as the root says. Elsewhere
// `tensor` says what a row is, by type and shape, and its own rows are not looked at:
// torch::empty({0, 3}).
RUEDA_TORCH_API at::Tensor scatter(const at::Tensor& tensor, int root_rank,
                                   const SplitOptions& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle scatter_async(const at::Tensor& tensor, int root_rank,
                                                   const SplitOptions& options = {});

// `tensor` goes to `rank`, which must receive it into a tensor of the same type and shape, under
// the same name, or both without one and in one order. A send may wait for its recv. The async
// ones' result is `tensor`.
RUEDA_TORCH_API void send(const at::Tensor& tensor, int rank, const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle send_async(const at::Tensor& tensor, int rank,
                                                const Options& options = {});
RUEDA_TORCH_API at::Tensor recv_(const at::Tensor& tensor, int rank, const Options& options = {});
[[nodiscard]] RUEDA_TORCH_API Handle recv_async_(const at::Tensor& tensor, int rank,
                                                 const Options& options = {});

// Models and optimizers ------------------------------------------------------------------------

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Gives all ranks the tensors of `root_rank`, in place; they have the same names, shapes and types
// on all ranks, in any order. Blocks. Undefined tensors are passed over. When some fail, the rest
// arrive all the same, and the first error is thrown.
RUEDA_TORCH_API void broadcast_parameters(const NamedTensors& tensors, int root_rank,
                                          ProcessSet process_set = global_process_set);
// For model->named_parameters() and model->named_buffers().
RUEDA_TORCH_API void broadcast_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& tensors, int root_rank,
    ProcessSet process_set = global_process_set);
// All parameters and buffers of a module.
RUEDA_TORCH_API void broadcast_parameters(const torch::nn::Module& module, int root_rank,
                                          ProcessSet process_set = global_process_set);

// Gives all ranks the state of the optimizer of `root_rank`: its options, learning rate included,
// and what it remembers of each parameter, step counters included. For torch's SGD, Adam, AdamW,
// RMSprop and Adagrad. A rank without state gets one, and one with more than the root loses it.
// Blocks. RUEDA_INVALID_ARGUMENT, on all ranks and with nothing changed: the optimizers are not of
// one type with the same parameters in the same groups and order, or of another type.
RUEDA_TORCH_API void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root_rank,
                                               ProcessSet process_set = global_process_set);

struct DistributedOptimizerOptions {
  reduce_op op = Average;
  ProcessSet process_set = global_process_set;
  // How many gradients of each parameter are added up before they are reduced. They are added, not
  // averaged, over the passes.
  int backward_passes_per_step = 1;
  // Average only: gradients are divided by this before they are added up, and by the rest of the
  // size afterwards; against overflow in small types.
  double gradient_predivide_factor = 1;
  // Makes sparse gradients dense before they are reduced. For those that have many elements on all
  // ranks together, for optimizers that don't take sparse ones, for operations other than Average
  // and Sum, and when a rank may not compute one in the first step.
  bool sparse_as_dense = false;
  // Lets gradients of over 128 KiB, and the tensors of 32 KiB to 4 MiB in which smaller ones lie
  // together, be allocated as rueda_mem_alloc does, where the ranks of a host reduce them with no
  // other memory between, and keeps that memory from step to step. It takes the place of torch's
  // CPU allocator for tensors that have exactly such a size, gradients or not. A forked child that
  // touches one of them gets SIGSEGV.
  bool gradients_in_arena = true;
  // What makes gradients of float32, float16 and bfloat16 smaller on their way: "" (nothing),
  // "fp16", "int8", "topk:0.01", "powersgd:4", "auto" and the others of rueda_operation. What a
  // gradient loses is remembered by its name, and added in the next step. For Average and Sum;
  // sparse gradients and other types go as they are.
  std::string compression;
  // Begins the names of the operations: "<name>.<parameter>". Optimizers whose gradients are in
  // flight at the same time need different ones if their parameters share names.
  std::string name = "gradient";
};

// Makes an optimizer data-parallel: reduces each gradient over the ranks, as soon as a backward
// pass has computed it, and steps when all have arrived. Only parameters that require a gradient
// when it is made take part.
//
// What is reduced is a copy, which synchronize and step make the parameter's gradient. Until then
// the gradient is this rank's own, and what is written to it is lost; if torch has counted a write
// there, one warning (c10::WarningUtils) says so. A gradient that the program keeps is not written
// to by later steps. Gradients take their size twice from the backward pass until then.
//
// Gradients of up to 128 KiB are reduced as parts of shared tensors (of up to 4 MiB and 256
// gradients, by type, in the order in which the first step's backward passes computed them on
// average) when a backward pass has computed all of them, or with synchronize.
//
// Every rank reduces every gradient in every step: one that no backward pass has computed since
// zero_grad() counts as zeros on this rank, so that ranks may differ in which parts of the model
// they used. What no rank has used has no gradient after the step, as in one process.
//
// Sparse gradients (of an embedding with sparse(true)) are reduced as in sparse_allreduce, and
// replaced by the result. A rank takes a gradient that it has not computed for a sparse one when
// its last one was: so each rank must compute one in the first step, or all get
// RUEDA_INVALID_ARGUMENT.
//
// The optimizer is borrowed, must outlive this object, and goes on to be used for what is not
// here (learning rates, schedulers, saving). Parameters may be frozen later, and then stay as they
// are; after adding or unfreezing some, make a new object. Optimizers that need a closure (LBFGS)
// are refused.
//
// Threads: backward may run on any thread, in any context; the operations go to the context that
// was current when this object was made. Everything else, destruction included, is for one thread
// at a time, and not while a backward pass runs.
//
// Errors: nothing is thrown into a backward pass. What goes wrong there is kept and thrown by
// the next synchronize or step, when all other gradients have arrived; then the gradients are
// worthless, the parameters are untouched, and the next backward pass starts afresh.
class RUEDA_TORCH_API DistributedOptimizer {
 public:
  // `named_parameters` gives each parameter of the optimizer its name, the same on all ranks;
  // there may be more than the optimizer has. RUEDA_INVALID_ARGUMENT: a parameter without a name,
  // a name that two have, options out of range, a parameter that another one has hooked.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedTensors& named_parameters,
                       DistributedOptimizerOptions options = {});
  DistributedOptimizer(torch::optim::Optimizer& optimizer,
                       const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
                       DistributedOptimizerOptions options = {});
  // Names the parameters by their place in the optimizer.
  explicit DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                DistributedOptimizerOptions options = {});
  // Removes its hooks, and waits for what is in flight.
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Does what synchronize does, and lets the optimizer step.
  void step();

  // Waits until all gradients are reduced, unless that was done since the last backward pass,
  // zero_grad or step. For what comes between: clipping, looking.
  void synchronize();

  // Also forgets the passes that were added up so far. RUEDA_FAILED_PRECONDITION: while gradients
  // are in flight; to drop them, synchronize first.
  void zero_grad(bool set_to_none = true);

  // While it lives, backward passes only add to this rank's gradients. The first pass without it
  // reduces the sum of all; so hold it in all passes of a step but the last:
  //
  //     for (const Batch& batch : micro_batches) {
  //       std::optional<hvd::DistributedOptimizer::NoSync> hold;
  //       if (&batch != &micro_batches.back()) hold.emplace(optimizer);
  //       loss(batch).backward();
  //     }
  //     optimizer.step();
  //
  // What it added and no later pass computes is reduced by step.
  class RUEDA_TORCH_API NoSync {
   public:
    explicit NoSync(DistributedOptimizer& optimizer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DistributedOptimizer& optimizer_;
  };
  [[nodiscard]] NoSync no_sync();

  // The names of those parameters that no rank had a gradient for in the last synchronize or step.
  // They have none after it either, so that neither weight decay nor momentum moves them.
  std::vector<std::string> unused_parameters() const;

  torch::optim::Optimizer& optimizer() const;

 private:
  class RUEDA_TORCH_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

// Operators ------------------------------------------------------------------------------------
//
// Loading the library registers these for TorchScript and Python (torch.ops.load_library,
// torch.ops.rueda), with kernels for CPU and CUDA tensors. `op` is "average", "sum", "min", "max",
// "product", "band", "bor", "bxor", "adasum" or "average_live", `process_set` a process set's id.
// They work on the calling thread's current context, block, and raise RuntimeError. Gradients flow
// through those that they flow through in C++. Under torch.compile import rueda.torch too (see
// docs/guides/libtorch.md): those whose results have rows of other ranks, or no tensors, end a
// graph.
//
//     rueda::init() -> ()        rueda::rank() -> int    rueda::local_rank() -> int
//     rueda::shutdown() -> ()    rueda::size() -> int    rueda::local_size() -> int
//     rueda::barrier(int process_set=0) -> ()            rueda::join(int process_set=0) -> int
//     rueda::allreduce(Tensor tensor, str name="", str op="average", float prescale_factor=1.0,
//                      float postscale_factor=1.0, int process_set=0) -> Tensor
//     rueda::allreduce_(Tensor(a!) tensor, <the same>) -> Tensor(a!)
//     rueda::grouped_allreduce(Tensor[] tensors, <the same>) -> Tensor[]
//     rueda::broadcast(Tensor tensor, int root_rank, str name="", int process_set=0) -> Tensor
//     rueda::broadcast_(Tensor(a!) tensor, int root_rank, str name="", int process_set=0)
//                      -> Tensor(a!)
//     rueda::allgather(Tensor tensor, str name="", int process_set=0) -> Tensor
//     rueda::grouped_allgather(Tensor[] tensors, str name="", int process_set=0) -> Tensor[]
//     rueda::alltoall(Tensor tensor, int[] splits=[], str name="", int process_set=0)
//                      -> (Tensor, Tensor), the second as in alltoall_with_splits
//     rueda::reducescatter(Tensor tensor, str name="", str op="average", *,
//                      float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0)
//                      -> Tensor
//     rueda::grouped_reducescatter(Tensor[] tensors, <the same>) -> Tensor[]
//     rueda::reduce(Tensor tensor, int root_rank, str name="", str op="average",
//                      float prescale_factor=1.0, float postscale_factor=1.0, int process_set=0)
//                      -> Tensor?, None but on the root
//     rueda::gather(Tensor tensor, int root_rank, str name="", int process_set=0) -> Tensor?
//     rueda::scatter(Tensor tensor, int root_rank, int[] splits=[], str name="",
//                      int process_set=0) -> Tensor
//     rueda::send(Tensor tensor, int rank, str name="", int process_set=0) -> ()
//     rueda::recv_(Tensor(a!) tensor, int rank, str name="", int process_set=0) -> Tensor(a!)

}  // namespace rueda::libtorch

#include "rueda/torch_deprecated.hpp"

#endif  // RUEDA_TORCH_HPP_
