// The public functions on tensors and handles: each is one call of Operation.
#include <ATen/ops/tensor.h>

#include <utility>

#include "bindings/torch/gradients.h"
#include "bindings/torch/operation.h"

namespace rueda::libtorch {
namespace {

Operation& Get(const std::shared_ptr<Operation>& operation) {
  if (operation == nullptr) {
    throw Error(RUEDA_INVALID_ARGUMENT, "an empty handle: nothing was submitted with it");
  }
  return *operation;
}

Call CallOf(rueda_kind kind, at::TensorList tensors, const AllreduceOptions& options) {
  return {.kind = kind,
          .tensors = tensors,
          .name = options.name,
          .process_set = options.process_set,
          .op = options.op,
          .prescale = options.prescale_factor,
          .postscale = options.postscale_factor,
          .compressor = options.compression,
          .priority = options.priority};
}

Call CallOf(rueda_kind kind, at::TensorList tensors, const ReduceOptions& options, int root) {
  return {.kind = kind,
          .tensors = tensors,
          .name = options.name,
          .process_set = options.process_set,
          .op = options.op,
          .prescale = options.prescale_factor,
          .postscale = options.postscale_factor,
          .root = root};
}

Call CallOf(rueda_kind kind, at::TensorList tensors, const Options& options, int root = -1) {
  return {.kind = kind,
          .tensors = tensors,
          .name = options.name,
          .process_set = options.process_set,
          .root = root};
}

Call CallOf(rueda_kind kind, at::TensorList tensors, const SplitOptions& options, int root = -1) {
  return {.kind = kind,
          .tensors = tensors,
          .name = options.name,
          .process_set = options.process_set,
          .root = root,
          .splits = options.splits.rows(),
          .fault = options.splits.fault()};
}

Call InPlace(Call call) {
  call.in_place = true;
  return call;
}

Call Grouped(Call call) {
  call.grouped = true;
  return call;
}

Handle Submit(const Call& call) {
  return Handle(Operation::Submit(CurrentContext(), call));
}

GroupHandle SubmitGroup(const Call& call) {
  return GroupHandle(Operation::Submit(CurrentContext(), call));
}

std::vector<at::Tensor> ExecuteGroup(const Call& call) {
  return Operation::Execute(CurrentContext(), call)->Wait();
}

at::Tensor Execute(const Call& call) {
  return ExecuteGroup(call).front();
}

std::vector<at::Tensor> DifferentiateGroup(const Call& call) {
  return ExecuteWithGradient(CurrentContext(), call).results;
}

at::Tensor Differentiate(const Call& call) {
  return DifferentiateGroup(call).front();
}

at::Tensor SplitsOf(Operation& operation) {
  const std::vector<std::vector<int64_t>>& splits = operation.WaitForSplits();
  if (splits.empty()) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "received_splits: only the results of an allgather, an alltoall and of a gather's "
                "root are rows of several ranks");
  }
  return at::tensor(splits.front());
}

// What is wrong with a tensor of rows, or "".
std::string FaultOf(const at::Tensor& rows) {
  if (!rows.defined()) return "`splits` is undefined";
  if (!at::isIntegralType(rows.scalar_type(), /*includeBool=*/false)) {
    return std::string("`splits` is of type ") + at::toString(rows.scalar_type()) +
           "; it must be a tensor of integers";
  }
  if (rows.dim() != 1 || !rows.device().is_cpu() || rows.layout() != at::kStrided) {
    return "`splits` has " + std::to_string(rows.dim()) + " dimensions and is on " +
           rows.device().str() + "; it must be a vector on the CPU";
  }
  return rows.numel() == 0 ? "`splits` is a tensor without elements" : "";
}

}  // namespace

Operation& Handle::operation() const {
  return Get(operation_);
}
Operation& GroupHandle::operation() const {
  return Get(operation_);
}

bool internal::WaitFor(Operation& operation, int64_t timeout_ns) {
  return operation.WaitFor(timeout_ns);
}

void internal::Then(Operation& operation, std::function<void(const Error*)> callback) {
  operation.Then(std::move(callback));
}

bool poll(const Handle& handle) {
  return handle.operation().Poll();
}
bool poll(const GroupHandle& handle) {
  return handle.operation().Poll();
}

at::Tensor synchronize(const Handle& handle) {
  return handle.operation().Wait().front();
}
std::vector<at::Tensor> synchronize(const GroupHandle& handle) {
  return handle.operation().Wait();
}

Splits::Splits(const at::Tensor& rows) : fault_(FaultOf(rows)) {
  if (!fault_.empty()) return;
  const at::Tensor plain = rows.to(at::kLong).contiguous();
  const auto* first = plain.const_data_ptr<int64_t>();
  rows_.assign(first, first + plain.numel());
}

at::Tensor received_splits(const Handle& handle) {
  return SplitsOf(handle.operation());
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return Differentiate(CallOf(RUEDA_ALLREDUCE, tensor, options));
}

at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return Execute(InPlace(CallOf(RUEDA_ALLREDUCE, tensor, options)));
}

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return Submit(CallOf(RUEDA_ALLREDUCE, tensor, options));
}

Handle allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return Submit(InPlace(CallOf(RUEDA_ALLREDUCE, tensor, options)));
}

std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                          const AllreduceOptions& options) {
  return DifferentiateGroup(Grouped(CallOf(RUEDA_ALLREDUCE, tensors, options)));
}

std::vector<at::Tensor> grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                                           const AllreduceOptions& options) {
  return ExecuteGroup(InPlace(Grouped(CallOf(RUEDA_ALLREDUCE, tensors, options))));
}

GroupHandle grouped_allreduce_async(const std::vector<at::Tensor>& tensors,
                                    const AllreduceOptions& options) {
  return SubmitGroup(Grouped(CallOf(RUEDA_ALLREDUCE, tensors, options)));
}

GroupHandle grouped_allreduce_async_(const std::vector<at::Tensor>& tensors,
                                     const AllreduceOptions& options) {
  return SubmitGroup(InPlace(Grouped(CallOf(RUEDA_ALLREDUCE, tensors, options))));
}

at::Tensor broadcast(const at::Tensor& tensor, int root_rank, const Options& options) {
  return Differentiate(CallOf(RUEDA_BROADCAST, tensor, options, root_rank));
}

at::Tensor broadcast_(const at::Tensor& tensor, int root_rank, const Options& options) {
  return Execute(InPlace(CallOf(RUEDA_BROADCAST, tensor, options, root_rank)));
}

Handle broadcast_async(const at::Tensor& tensor, int root_rank, const Options& options) {
  return Submit(CallOf(RUEDA_BROADCAST, tensor, options, root_rank));
}

Handle broadcast_async_(const at::Tensor& tensor, int root_rank, const Options& options) {
  return Submit(InPlace(CallOf(RUEDA_BROADCAST, tensor, options, root_rank)));
}

at::Tensor allgather(const at::Tensor& tensor, const Options& options) {
  return Differentiate(CallOf(RUEDA_ALLGATHER, tensor, options));
}

Handle allgather_async(const at::Tensor& tensor, const Options& options) {
  return Submit(CallOf(RUEDA_ALLGATHER, tensor, options));
}

std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                          const Options& options) {
  return DifferentiateGroup(Grouped(CallOf(RUEDA_ALLGATHER, tensors, options)));
}

GroupHandle grouped_allgather_async(const std::vector<at::Tensor>& tensors,
                                    const Options& options) {
  return SubmitGroup(Grouped(CallOf(RUEDA_ALLGATHER, tensors, options)));
}

at::Tensor alltoall(const at::Tensor& tensor, const SplitOptions& options) {
  return Differentiate(CallOf(RUEDA_ALLTOALL, tensor, options));
}

std::pair<at::Tensor, at::Tensor> alltoall_with_splits(const at::Tensor& tensor,
                                                       const SplitOptions& options) {
  const Executed executed =
      ExecuteWithGradient(CurrentContext(), CallOf(RUEDA_ALLTOALL, tensor, options));
  if (executed.operation == nullptr) return {executed.results[0], executed.results[1]};
  return {executed.results.front(), SplitsOf(*executed.operation)};
}

Handle alltoall_async(const at::Tensor& tensor, const SplitOptions& options) {
  return Submit(CallOf(RUEDA_ALLTOALL, tensor, options));
}

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  return Differentiate(CallOf(RUEDA_REDUCESCATTER, tensor, options));
}

Handle reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options) {
  return Submit(CallOf(RUEDA_REDUCESCATTER, tensor, options));
}

std::vector<at::Tensor> grouped_reducescatter(const std::vector<at::Tensor>& tensors,
                                              const ReducescatterOptions& options) {
  return DifferentiateGroup(Grouped(CallOf(RUEDA_REDUCESCATTER, tensors, options)));
}

GroupHandle grouped_reducescatter_async(const std::vector<at::Tensor>& tensors,
                                        const ReducescatterOptions& options) {
  return SubmitGroup(Grouped(CallOf(RUEDA_REDUCESCATTER, tensors, options)));
}

at::Tensor reduce(const at::Tensor& tensor, int root_rank, const ReduceOptions& options) {
  return Execute(CallOf(RUEDA_REDUCE, tensor, options, root_rank));
}

at::Tensor reduce_(const at::Tensor& tensor, int root_rank, const ReduceOptions& options) {
  return Execute(InPlace(CallOf(RUEDA_REDUCE, tensor, options, root_rank)));
}

Handle reduce_async(const at::Tensor& tensor, int root_rank, const ReduceOptions& options) {
  return Submit(CallOf(RUEDA_REDUCE, tensor, options, root_rank));
}

Handle reduce_async_(const at::Tensor& tensor, int root_rank, const ReduceOptions& options) {
  return Submit(InPlace(CallOf(RUEDA_REDUCE, tensor, options, root_rank)));
}

at::Tensor gather(const at::Tensor& tensor, int root_rank, const Options& options) {
  return Execute(CallOf(RUEDA_GATHER, tensor, options, root_rank));
}

Handle gather_async(const at::Tensor& tensor, int root_rank, const Options& options) {
  return Submit(CallOf(RUEDA_GATHER, tensor, options, root_rank));
}

at::Tensor scatter(const at::Tensor& tensor, int root_rank, const SplitOptions& options) {
  return Execute(CallOf(RUEDA_SCATTER, tensor, options, root_rank));
}

Handle scatter_async(const at::Tensor& tensor, int root_rank, const SplitOptions& options) {
  return Submit(CallOf(RUEDA_SCATTER, tensor, options, root_rank));
}

void send(const at::Tensor& tensor, int rank, const Options& options) {
  Execute(InPlace(CallOf(RUEDA_SEND, tensor, options, rank)));
}

Handle send_async(const at::Tensor& tensor, int rank, const Options& options) {
  return Submit(InPlace(CallOf(RUEDA_SEND, tensor, options, rank)));
}

at::Tensor recv_(const at::Tensor& tensor, int rank, const Options& options) {
  return Execute(InPlace(CallOf(RUEDA_RECV, tensor, options, rank)));
}

Handle recv_async_(const at::Tensor& tensor, int rank, const Options& options) {
  return Submit(InPlace(CallOf(RUEDA_RECV, tensor, options, rank)));
}

}  // namespace rueda::libtorch
