// What the backward pass of each operation is. With y as the results on all ranks, and L the sum of
// the ranks' losses, each rank gets dL/dx of its own input x. An operation is linear in the inputs
// of all ranks, and its gradient is the transposed one:
//
//     allreduce       the same allreduce
//     broadcast       the sum, to the root; zeros elsewhere
//     allgather       to each rank its rows, and there the sum
//     alltoall        back with the splits that were received
//     reducescatter   allgather, divided by the size if it was an average
#include "bindings/torch/gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace rueda::libtorch {
namespace {

using Tensors = std::vector<at::Tensor>;

// What of a call, and of how it went, its backward pass needs.
struct Forward {
  rueda_context* context;
  rueda_kind kind;
  bool grouped;
  std::string name;  // of the backward pass
  ProcessSet process_set;
  reduce_op op;
  double prescale;
  double postscale;
  int root;
  std::vector<std::vector<int64_t>> splits;
  int32_t size;
  std::vector<c10::SymInt> rows;  // of the inputs, if it was traced
};

// With a gradient of its own, for second derivatives.
Tensors Execute(const Forward& forward, const Call& call) {
  return ExecuteWithGradient(forward.context, call).results;
}

Tensors Reduced(const Forward& forward, const Tensors& gradients) {
  return Execute(forward, {.kind = RUEDA_ALLREDUCE,
                           .tensors = gradients,
                           .grouped = forward.grouped,
                           .name = forward.name,
                           .process_set = forward.process_set,
                           .op = forward.op,
                           .prescale = forward.prescale,
                           .postscale = forward.postscale});
}

// Elsewhere not simply zeros: a second backward pass is for all ranks.
Tensors AtTheRoot(const Forward& forward, const Tensors& gradients) {
  const at::Tensor sum = Execute(forward, {.kind = RUEDA_ALLREDUCE,
                                           .tensors = gradients,
                                           .name = forward.name,
                                           .process_set = forward.process_set,
                                           .op = Sum})[0];
  return {rueda_rank(forward.context) == forward.root ? sum : sum.mul(0)};
}

at::Tensor Alltoall(const Forward& forward, const at::Tensor& gradient, const std::string& name,
                    const std::vector<int64_t>& splits) {
  return Execute(forward, {.kind = RUEDA_ALLTOALL,
                           .tensors = gradient,
                           .name = name,
                           .process_set = forward.process_set,
                           .splits = splits})[0];
}

// Every rank sends each rank the gradient of that rank's rows, and adds up what it gets.
Tensors OwnRows(const Forward& forward, const Tensors& gradients) {
  Tensors own;
  for (size_t i = 0; i < gradients.size(); ++i) {
    std::string name = forward.name;
    if (forward.grouped && !name.empty()) name += "." + std::to_string(i);
    const at::Tensor parts = Alltoall(forward, gradients[i], name, forward.splits[i]);
    std::vector<int64_t> shape = parts.sizes().vec();
    shape[0] /= forward.size;
    shape.insert(shape.begin(), forward.size);
    own.push_back(parts.reshape(shape).sum(0));
  }
  return own;
}

Tensors Gathered(const Forward& forward, const Tensors& gradients) {
  const double factor =
      forward.prescale * forward.postscale / (forward.op == Average ? forward.size : 1);
  Tensors scaled = gradients;
  if (factor != 1) {
    for (at::Tensor& gradient : scaled) gradient = gradient.mul(factor);
  }
  const Call call = {.kind = RUEDA_ALLGATHER,
                     .tensors = scaled,
                     .grouped = forward.grouped,
                     .name = forward.name,
                     .process_set = forward.process_set};
  return forward.rows.empty() ? Execute(forward, call) : CallOperator(call, forward.rows);
}

Tensors Backward(const Forward& forward, const Tensors& gradients) {
  switch (forward.kind) {
    case RUEDA_ALLREDUCE:
      return Reduced(forward, gradients);
    case RUEDA_BROADCAST:
      return AtTheRoot(forward, gradients);
    case RUEDA_ALLGATHER:
      return OwnRows(forward, gradients);
    case RUEDA_ALLTOALL:
      return {Alltoall(forward, gradients[0], forward.name, forward.splits[0])};
    default:
      return Gathered(forward, gradients);
  }
}

struct Holder : torch::CustomClassHolder {
  explicit Holder(Forward what) : forward(std::move(what)) {}
  const Forward forward;
};

// Ties results that are there to the inputs that they were made from.
class History : public torch::autograd::Function<History> {
 public:
  static Tensors forward(torch::autograd::AutogradContext* context, at::TensorList /*inputs*/,
                         const Tensors* results, c10::intrusive_ptr<Holder> holder) {
    context->saved_data["forward"] = c10::IValue::make_capsule(std::move(holder));
    return *results;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const auto capsule = context->saved_data["forward"].toCapsule();
    Tensors own = Backward(static_cast<const Holder&>(*capsule).forward, gradients);
    own.resize(own.size() + 2);  // of what else forward took
    return own;
  }
};

bool WantsGradient(const Call& call) {
  return at::GradMode::is_enabled() &&
         std::any_of(call.tensors.begin(), call.tensors.end(), [](const at::Tensor& tensor) {
           return tensor.defined() && tensor.requires_grad();
         });
}

void CheckHasGradient(const Call& call) {
  const bool reduces = call.kind == RUEDA_ALLREDUCE || call.kind == RUEDA_REDUCESCATTER;
  if (!reduces || call.op == Sum || call.op == Average) return;
  throw Error(RUEDA_INVALID_ARGUMENT,
              (call.name.empty() ? "a tensor" : "'" + call.name + "'") +
                  " requires a gradient, and only the reduce operations Sum and Average have one: "
                  "detach() it, or call this under torch::NoGradGuard");
}

}  // namespace

Executed ExecuteWithGradient(rueda_context* context, const Call& call) {
  const bool wants_gradient = WantsGradient(call);
  if (wants_gradient) CheckHasGradient(call);
  Executed executed;
  std::vector<c10::SymInt> rows;
  if (IsTraced(call)) {
    executed.results = CallOperator(call);
    if (wants_gradient && (call.kind == RUEDA_ALLGATHER || call.kind == RUEDA_ALLTOALL)) {
      throw Error(RUEDA_UNIMPLEMENTED,
                  "the gradient of an allgather or alltoall of a subclass of torch.Tensor");
    }
    for (const at::Tensor& tensor : call.tensors) {
      rows.push_back(tensor.dim() == 0 ? 1 : tensor.sym_size(0));
    }
  } else {
    executed.operation = Operation::Execute(context, call);
    executed.results = executed.operation->Wait();
  }
  if (!wants_gradient) return executed;
  Forward forward = {.context = context,
                     .kind = call.kind,
                     .grouped = call.grouped,
                     .name = call.name.empty() ? "" : call.name + ".gradient",
                     .process_set = call.process_set,
                     .op = call.op,
                     .prescale = call.prescale,
                     .postscale = call.postscale,
                     .root = call.root,
                     .splits = {},
                     .size = rueda_process_set_size(context, call.process_set.id),
                     .rows = std::move(rows)};
  if (executed.operation != nullptr) forward.splits = executed.operation->WaitForSplits();
  executed.results = History::apply(at::TensorList(call.tensors), &executed.results,
                                    c10::make_intrusive<Holder>(std::move(forward)));
  return executed;
}

}  // namespace rueda::libtorch
