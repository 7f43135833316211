// The public functions on tensors and handles: each is one request to Operation.
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

Request Allreduce(c10::ArrayRef<at::Tensor> tensors, bool in_place, bool grouped,
                  const std::string& name, reduce_op op, double prescale_factor,
                  double postscale_factor, ProcessSet process_set) {
  return {.kind = RUEDA_ALLREDUCE,
          .tensors = tensors,
          .in_place = in_place,
          .grouped = grouped,
          .name = name,
          .process_set = process_set,
          .op = op,
          .prescale = prescale_factor,
          .postscale = postscale_factor};
}

Request Broadcast(const at::Tensor& tensor, bool in_place, int root_rank, const std::string& name,
                  ProcessSet process_set) {
  return {.kind = RUEDA_BROADCAST,
          .tensors = tensor,
          .in_place = in_place,
          .name = name,
          .process_set = process_set,
          .root = root_rank};
}

Request Allgather(c10::ArrayRef<at::Tensor> tensors, bool grouped, const std::string& name,
                  ProcessSet process_set) {
  return {.kind = RUEDA_ALLGATHER,
          .tensors = tensors,
          .grouped = grouped,
          .name = name,
          .process_set = process_set};
}

Request Alltoall(const at::Tensor& tensor, const Splits& splits, const std::string& name,
                 ProcessSet process_set) {
  return {.kind = RUEDA_ALLTOALL,
          .tensors = tensor,
          .name = name,
          .process_set = process_set,
          .splits = splits.rows()};
}

Request Reducescatter(c10::ArrayRef<at::Tensor> tensors, bool grouped, const std::string& name,
                      reduce_op op, ProcessSet process_set, double prescale_factor,
                      double postscale_factor) {
  return {.kind = RUEDA_REDUCESCATTER,
          .tensors = tensors,
          .grouped = grouped,
          .name = name,
          .process_set = process_set,
          .op = op,
          .prescale = prescale_factor,
          .postscale = postscale_factor};
}

Request Reduce(const at::Tensor& tensor, bool in_place, int root_rank, const std::string& name,
               reduce_op op, double prescale_factor, double postscale_factor,
               ProcessSet process_set) {
  return {.kind = RUEDA_REDUCE,
          .tensors = tensor,
          .in_place = in_place,
          .name = name,
          .process_set = process_set,
          .op = op,
          .prescale = prescale_factor,
          .postscale = postscale_factor,
          .root = root_rank};
}

Request Gather(const at::Tensor& tensor, int root_rank, const std::string& name,
               ProcessSet process_set) {
  return {.kind = RUEDA_GATHER,
          .tensors = tensor,
          .name = name,
          .process_set = process_set,
          .root = root_rank};
}

Request Scatter(const at::Tensor& tensor, int root_rank, const Splits& splits,
                const std::string& name, ProcessSet process_set) {
  return {.kind = RUEDA_SCATTER,
          .tensors = tensor,
          .name = name,
          .process_set = process_set,
          .root = root_rank,
          .splits = splits.rows()};
}

Request SendOrRecv(rueda_kind kind, const at::Tensor& tensor, int rank, const std::string& name,
                   ProcessSet process_set) {
  return {.kind = kind,
          .tensors = tensor,
          .in_place = true,
          .name = name,
          .process_set = process_set,
          .root = rank};
}

Handle Submit(const Request& request) {
  return Handle(Operation::Submit(CurrentContext(), request));
}

GroupHandle SubmitGroup(const Request& request) {
  return GroupHandle(Operation::Submit(CurrentContext(), request));
}

std::vector<at::Tensor> ExecuteGroup(const Request& request) {
  return Operation::Execute(CurrentContext(), request)->Wait();
}

at::Tensor Execute(const Request& request) {
  return ExecuteGroup(request).front();
}

std::vector<at::Tensor> DifferentiateGroup(const Request& request) {
  return ExecuteWithGradient(CurrentContext(), request).results;
}

at::Tensor Differentiate(const Request& request) {
  return DifferentiateGroup(request).front();
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

// A tensor of integers, of which type it may be.
std::vector<int64_t> RowsOf(const at::Tensor& splits) {
  if (!splits.defined()) throw Error(RUEDA_INVALID_ARGUMENT, "`splits` is undefined");
  if (!at::isIntegralType(splits.scalar_type(), /*includeBool=*/false)) {
    throw Error(RUEDA_INVALID_ARGUMENT, std::string("`splits` is of type ") +
                                            at::toString(splits.scalar_type()) +
                                            "; it must be a tensor of integers");
  }
  if (splits.dim() != 1 || !splits.device().is_cpu() || splits.layout() != at::kStrided) {
    throw Error(RUEDA_INVALID_ARGUMENT, "`splits` has " + std::to_string(splits.dim()) +
                                            " dimensions and is on " + splits.device().str() +
                                            "; it must be a vector on the CPU");
  }
  const at::Tensor rows = splits.to(at::kLong).contiguous();
  const auto* first = rows.const_data_ptr<int64_t>();
  return {first, first + rows.numel()};
}

}  // namespace

Operation& Handle::operation() const {
  return Get(operation_);
}
Operation& GroupHandle::operation() const {
  return Get(operation_);
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

Splits::Splits(const at::Tensor& rows) : rows_(RowsOf(rows)) {
  if (rows_.empty()) throw Error(RUEDA_INVALID_ARGUMENT, "`splits` is a tensor without elements");
}

at::Tensor received_splits(const Handle& handle) {
  return SplitsOf(handle.operation());
}

at::Tensor allreduce(const at::Tensor& tensor, const std::string& name, reduce_op op,
                     double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Differentiate(
      Allreduce(tensor, false, false, name, op, prescale_factor, postscale_factor, process_set));
}

at::Tensor allreduce_(const at::Tensor& tensor, const std::string& name, reduce_op op,
                      double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Execute(
      Allreduce(tensor, true, false, name, op, prescale_factor, postscale_factor, process_set));
}

Handle allreduce_async(const at::Tensor& tensor, const std::string& name, reduce_op op,
                       double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Submit(
      Allreduce(tensor, false, false, name, op, prescale_factor, postscale_factor, process_set));
}

Handle allreduce_async_(const at::Tensor& tensor, const std::string& name, reduce_op op,
                        double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Submit(
      Allreduce(tensor, true, false, name, op, prescale_factor, postscale_factor, process_set));
}

std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                          const std::string& name, reduce_op op,
                                          double prescale_factor, double postscale_factor,
                                          ProcessSet process_set) {
  return DifferentiateGroup(
      Allreduce(tensors, false, true, name, op, prescale_factor, postscale_factor, process_set));
}

std::vector<at::Tensor> grouped_allreduce_(const std::vector<at::Tensor>& tensors,
                                           const std::string& name, reduce_op op,
                                           double prescale_factor, double postscale_factor,
                                           ProcessSet process_set) {
  return ExecuteGroup(
      Allreduce(tensors, true, true, name, op, prescale_factor, postscale_factor, process_set));
}

GroupHandle grouped_allreduce_async(const std::vector<at::Tensor>& tensors, const std::string& name,
                                    reduce_op op, double prescale_factor, double postscale_factor,
                                    ProcessSet process_set) {
  return SubmitGroup(
      Allreduce(tensors, false, true, name, op, prescale_factor, postscale_factor, process_set));
}

GroupHandle grouped_allreduce_async_(const std::vector<at::Tensor>& tensors,
                                     const std::string& name, reduce_op op, double prescale_factor,
                                     double postscale_factor, ProcessSet process_set) {
  return SubmitGroup(
      Allreduce(tensors, true, true, name, op, prescale_factor, postscale_factor, process_set));
}

at::Tensor broadcast(const at::Tensor& tensor, int root_rank, const std::string& name,
                     ProcessSet process_set) {
  return Differentiate(Broadcast(tensor, false, root_rank, name, process_set));
}

at::Tensor broadcast_(const at::Tensor& tensor, int root_rank, const std::string& name,
                      ProcessSet process_set) {
  return Execute(Broadcast(tensor, true, root_rank, name, process_set));
}

Handle broadcast_async(const at::Tensor& tensor, int root_rank, const std::string& name,
                       ProcessSet process_set) {
  return Submit(Broadcast(tensor, false, root_rank, name, process_set));
}

Handle broadcast_async_(const at::Tensor& tensor, int root_rank, const std::string& name,
                        ProcessSet process_set) {
  return Submit(Broadcast(tensor, true, root_rank, name, process_set));
}

at::Tensor allgather(const at::Tensor& tensor, const std::string& name, ProcessSet process_set) {
  return Differentiate(Allgather(tensor, false, name, process_set));
}

Handle allgather_async(const at::Tensor& tensor, const std::string& name, ProcessSet process_set) {
  return Submit(Allgather(tensor, false, name, process_set));
}

std::vector<at::Tensor> grouped_allgather(const std::vector<at::Tensor>& tensors,
                                          const std::string& name, ProcessSet process_set) {
  return DifferentiateGroup(Allgather(tensors, true, name, process_set));
}

GroupHandle grouped_allgather_async(const std::vector<at::Tensor>& tensors, const std::string& name,
                                    ProcessSet process_set) {
  return SubmitGroup(Allgather(tensors, true, name, process_set));
}

at::Tensor alltoall(const at::Tensor& tensor, const Splits& splits, const std::string& name,
                    ProcessSet process_set) {
  return Differentiate(Alltoall(tensor, splits, name, process_set));
}

std::pair<at::Tensor, at::Tensor> alltoall_with_splits(const at::Tensor& tensor,
                                                       const Splits& splits,
                                                       const std::string& name,
                                                       ProcessSet process_set) {
  const Executed executed =
      ExecuteWithGradient(CurrentContext(), Alltoall(tensor, splits, name, process_set));
  return {executed.results.front(), SplitsOf(*executed.operation)};
}

Handle alltoall_async(const at::Tensor& tensor, const Splits& splits, const std::string& name,
                      ProcessSet process_set) {
  return Submit(Alltoall(tensor, splits, name, process_set));
}

at::Tensor reducescatter(const at::Tensor& tensor, const std::string& name, reduce_op op,
                         ProcessSet process_set, double prescale_factor, double postscale_factor) {
  return Differentiate(
      Reducescatter(tensor, false, name, op, process_set, prescale_factor, postscale_factor));
}

Handle reducescatter_async(const at::Tensor& tensor, const std::string& name, reduce_op op,
                           ProcessSet process_set, double prescale_factor,
                           double postscale_factor) {
  return Submit(
      Reducescatter(tensor, false, name, op, process_set, prescale_factor, postscale_factor));
}

std::vector<at::Tensor> grouped_reducescatter(const std::vector<at::Tensor>& tensors,
                                              const std::string& name, reduce_op op,
                                              ProcessSet process_set, double prescale_factor,
                                              double postscale_factor) {
  return DifferentiateGroup(
      Reducescatter(tensors, true, name, op, process_set, prescale_factor, postscale_factor));
}

GroupHandle grouped_reducescatter_async(const std::vector<at::Tensor>& tensors,
                                        const std::string& name, reduce_op op,
                                        ProcessSet process_set, double prescale_factor,
                                        double postscale_factor) {
  return SubmitGroup(
      Reducescatter(tensors, true, name, op, process_set, prescale_factor, postscale_factor));
}

at::Tensor reduce(const at::Tensor& tensor, int root_rank, const std::string& name, reduce_op op,
                  double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Execute(
      Reduce(tensor, false, root_rank, name, op, prescale_factor, postscale_factor, process_set));
}

at::Tensor reduce_(const at::Tensor& tensor, int root_rank, const std::string& name, reduce_op op,
                   double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Execute(
      Reduce(tensor, true, root_rank, name, op, prescale_factor, postscale_factor, process_set));
}

Handle reduce_async(const at::Tensor& tensor, int root_rank, const std::string& name, reduce_op op,
                    double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Submit(
      Reduce(tensor, false, root_rank, name, op, prescale_factor, postscale_factor, process_set));
}

Handle reduce_async_(const at::Tensor& tensor, int root_rank, const std::string& name, reduce_op op,
                     double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Submit(
      Reduce(tensor, true, root_rank, name, op, prescale_factor, postscale_factor, process_set));
}

at::Tensor gather(const at::Tensor& tensor, int root_rank, const std::string& name,
                  ProcessSet process_set) {
  return Execute(Gather(tensor, root_rank, name, process_set));
}

Handle gather_async(const at::Tensor& tensor, int root_rank, const std::string& name,
                    ProcessSet process_set) {
  return Submit(Gather(tensor, root_rank, name, process_set));
}

at::Tensor scatter(const at::Tensor& tensor, int root_rank, const Splits& splits,
                   const std::string& name, ProcessSet process_set) {
  return Execute(Scatter(tensor, root_rank, splits, name, process_set));
}

Handle scatter_async(const at::Tensor& tensor, int root_rank, const Splits& splits,
                     const std::string& name, ProcessSet process_set) {
  return Submit(Scatter(tensor, root_rank, splits, name, process_set));
}

void send(const at::Tensor& tensor, int rank, const std::string& name, ProcessSet process_set) {
  Execute(SendOrRecv(RUEDA_SEND, tensor, rank, name, process_set));
}

Handle send_async(const at::Tensor& tensor, int rank, const std::string& name,
                  ProcessSet process_set) {
  return Submit(SendOrRecv(RUEDA_SEND, tensor, rank, name, process_set));
}

at::Tensor recv_(const at::Tensor& tensor, int rank, const std::string& name,
                 ProcessSet process_set) {
  return Execute(SendOrRecv(RUEDA_RECV, tensor, rank, name, process_set));
}

Handle recv_async_(const at::Tensor& tensor, int rank, const std::string& name,
                   ProcessSet process_set) {
  return Submit(SendOrRecv(RUEDA_RECV, tensor, rank, name, process_set));
}

}  // namespace rueda::libtorch
