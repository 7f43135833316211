// The public functions on tensors and handles: each is one request to Operation.
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

Request Allgather(const at::Tensor& tensor, const std::string& name, ProcessSet process_set) {
  return {.kind = RUEDA_ALLGATHER, .tensors = tensor, .name = name, .process_set = process_set};
}

std::vector<at::Tensor> ExecuteGroup(const Request& request) {
  return Operation::Execute(CurrentContext(), request)->Wait();
}

at::Tensor Execute(const Request& request) {
  return Operation::Execute(CurrentContext(), request)->Wait().front();
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

at::Tensor allreduce(const at::Tensor& tensor, const std::string& name, reduce_op op,
                     double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Execute(
      Allreduce(tensor, false, false, name, op, prescale_factor, postscale_factor, process_set));
}

at::Tensor allreduce_(const at::Tensor& tensor, const std::string& name, reduce_op op,
                      double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Execute(
      Allreduce(tensor, true, false, name, op, prescale_factor, postscale_factor, process_set));
}

Handle allreduce_async(const at::Tensor& tensor, const std::string& name, reduce_op op,
                       double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Handle(Operation::Submit(
      CurrentContext(),
      Allreduce(tensor, false, false, name, op, prescale_factor, postscale_factor, process_set)));
}

Handle allreduce_async_(const at::Tensor& tensor, const std::string& name, reduce_op op,
                        double prescale_factor, double postscale_factor, ProcessSet process_set) {
  return Handle(Operation::Submit(
      CurrentContext(),
      Allreduce(tensor, true, false, name, op, prescale_factor, postscale_factor, process_set)));
}

std::vector<at::Tensor> grouped_allreduce(const std::vector<at::Tensor>& tensors,
                                          const std::string& name, reduce_op op,
                                          double prescale_factor, double postscale_factor,
                                          ProcessSet process_set) {
  return ExecuteGroup(
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
  return GroupHandle(Operation::Submit(
      CurrentContext(),
      Allreduce(tensors, false, true, name, op, prescale_factor, postscale_factor, process_set)));
}

GroupHandle grouped_allreduce_async_(const std::vector<at::Tensor>& tensors,
                                     const std::string& name, reduce_op op, double prescale_factor,
                                     double postscale_factor, ProcessSet process_set) {
  return GroupHandle(Operation::Submit(
      CurrentContext(),
      Allreduce(tensors, true, true, name, op, prescale_factor, postscale_factor, process_set)));
}

at::Tensor broadcast(const at::Tensor& tensor, int root_rank, const std::string& name,
                     ProcessSet process_set) {
  return Execute(Broadcast(tensor, false, root_rank, name, process_set));
}

at::Tensor broadcast_(const at::Tensor& tensor, int root_rank, const std::string& name,
                      ProcessSet process_set) {
  return Execute(Broadcast(tensor, true, root_rank, name, process_set));
}

Handle broadcast_async(const at::Tensor& tensor, int root_rank, const std::string& name,
                       ProcessSet process_set) {
  return Handle(
      Operation::Submit(CurrentContext(), Broadcast(tensor, false, root_rank, name, process_set)));
}

Handle broadcast_async_(const at::Tensor& tensor, int root_rank, const std::string& name,
                        ProcessSet process_set) {
  return Handle(
      Operation::Submit(CurrentContext(), Broadcast(tensor, true, root_rank, name, process_set)));
}

at::Tensor allgather(const at::Tensor& tensor, const std::string& name, ProcessSet process_set) {
  return Execute(Allgather(tensor, name, process_set));
}

Handle allgather_async(const at::Tensor& tensor, const std::string& name, ProcessSet process_set) {
  return Handle(Operation::Submit(CurrentContext(), Allgather(tensor, name, process_set)));
}

}  // namespace rueda::libtorch
