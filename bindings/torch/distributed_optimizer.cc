// DistributedOptimizer: hooks that submit gradients, and the step that waits for them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "bindings/torch/operation.h"
#include "bindings/torch/sparse.h"

namespace rueda::libtorch {
namespace {

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(RUEDA_INVALID_ARGUMENT, "DistributedOptimizer: " + message);
}

NamedTensors PlaceNames(const torch::optim::Optimizer& optimizer) {
  NamedTensors named;
  const auto& groups = optimizer.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < groups[group].params().size(); ++i) {
      named.emplace_back("group" + std::to_string(group) + "." + std::to_string(i),
                         groups[group].params()[i]);
    }
  }
  return named;
}

NamedTensors List(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors list;
  for (const auto& item : tensors) list.emplace_back(item.key(), item.value());
  return list;
}

}  // namespace

class RUEDA_TORCH_LOCAL DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& optimizer, const NamedTensors& named_parameters,
       DistributedOptimizerOptions options);
  ~Impl();

  void Synchronize();
  void Step();
  void ZeroGrad(bool set_to_none);
  void OnGradient(size_t index);
  torch::optim::Optimizer& optimizer() const { return optimizer_; }

 private:
  class Hook;
  // One of them, or neither.
  struct Reduction {
    std::shared_ptr<Operation> dense;
    std::shared_ptr<SparseOperation> sparse;
  };
  struct Slot {
    // Constant after construction.
    at::Tensor parameter;
    std::string name;  // of the operation
    torch::autograd::PostAccumulateGradHook* hook = nullptr;
    // Guarded by mutex_.
    int passes = 0;          // since the last synchronize
    int64_t sparse_dim = 0;  // of the last gradient; 0: it was dense
    Reduction reduction;     // in flight, or ended and not yet looked at

    bool in_flight() const { return reduction.dense != nullptr || reduction.sparse != nullptr; }
  };

  void CheckOptions() const;
  void CheckForNewParameters();
  void MakeGradient(Slot& slot) const;
  void Submit(Slot& slot);
  void Keep(std::exception_ptr error) {
    if (first_error_ == nullptr) first_error_ = std::move(error);
  }

  torch::optim::Optimizer& optimizer_;
  const DistributedOptimizerOptions options_;
  rueda_context* const context_;
  double prescale_ = 1;
  double postscale_ = 1;

  std::mutex mutex_;
  std::vector<Slot> slots_;                             // the vector itself is constant
  std::unordered_set<const c10::TensorImpl*> reduced_;  // the slots' parameters; constant
  // Guarded by mutex_.
  bool synchronized_ = false;  // since the last gradient and step
  std::exception_ptr first_error_;
};

// Called by autograd, on any thread, when a gradient has been added to its parameter's.
class RUEDA_TORCH_LOCAL DistributedOptimizer::Impl::Hook
    : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(Impl* impl, size_t index) : impl_(impl), index_(index) {}
  void operator()(const at::Tensor&) override { impl_->OnGradient(index_); }

 private:
  Impl* const impl_;
  const size_t index_;
};

void DistributedOptimizer::Impl::CheckOptions() const {
  if (options_.backward_passes_per_step < 1) {
    Refuse("backward_passes_per_step is " + std::to_string(options_.backward_passes_per_step) +
           "; at least 1");
  }
  if (!(options_.gradient_predivide_factor > 0)) {
    Refuse("gradient_predivide_factor must be above 0");
  }
  if (options_.gradient_predivide_factor != 1 && options_.op != Average) {
    Refuse("gradient_predivide_factor goes with op = Average only");
  }
  if (rueda_process_set_rank(context_, options_.process_set.id) < 0) {
    Refuse("this rank is not in process set " + std::to_string(options_.process_set.id));
  }
}

DistributedOptimizer::Impl::Impl(torch::optim::Optimizer& optimizer,
                                 const NamedTensors& named_parameters,
                                 DistributedOptimizerOptions options)
    : optimizer_(optimizer), options_(std::move(options)), context_(CurrentContext()) {
  CheckOptions();
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    Refuse("LBFGS runs backward passes within its step, where gradients can't be waited for");
  }
  if (options_.op == Average) {  // the library divides by the size on top
    prescale_ = 1 / options_.gradient_predivide_factor;
    postscale_ = options_.gradient_predivide_factor;
  }
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  std::unordered_set<std::string> taken;
  for (const auto& [name, tensor] : named_parameters) {
    // A shared parameter has several names: the first one counts.
    if (!names.emplace(tensor.unsafeGetTensorImpl(), name).second) continue;
    if (!taken.insert(name).second) Refuse("two parameters are called '" + name + "'");
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad()) continue;
      if (!reduced_.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const auto it = names.find(parameter.unsafeGetTensorImpl());
      if (it == names.end()) {
        Refuse("parameter " + std::to_string(reduced_.size() - 1) +
               " of the optimizer is not among the named parameters");
      }
      if (torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr) {
        Refuse("'" + it->second + "' has a post-accumulate-grad hook already; is it in another " +
               "DistributedOptimizer?");
      }
      slots_.push_back({parameter, options_.name + "." + it->second});
    }
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    auto hook = std::make_unique<Hook>(this, i);
    slots_[i].hook = hook.get();
    torch::autograd::impl::set_post_acc_grad_hooks(slots_[i].parameter, std::move(hook));
  }
}

DistributedOptimizer::Impl::~Impl() {
  for (Slot& slot : slots_) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(slot.parameter);
    if (hook.get() == slot.hook) hook.reset();
  }
  // The slots' operations wait for their ends.
}

void DistributedOptimizer::Impl::OnGradient(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  synchronized_ = false;
  if (++slot.passes < options_.backward_passes_per_step) return;
  if (slot.passes == options_.backward_passes_per_step) return Submit(slot);
  Keep(std::make_exception_ptr(
      Error(RUEDA_FAILED_PRECONDITION,
            "'" + slot.name + "' was computed " + std::to_string(slot.passes) +
                " times since the last step, the last time while it was being reduced; to add " +
                "gradients up over several passes set backward_passes_per_step")));
}

// Holds mutex_. What is not there counts as zeros.
void DistributedOptimizer::Impl::MakeGradient(Slot& slot) const {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined() && slot.sparse_dim > 0) {
    gradient = at::_sparse_coo_tensor_with_dims(
        slot.sparse_dim, slot.parameter.dim() - slot.sparse_dim, slot.parameter.sizes(),
        slot.parameter.options().layout(at::kSparse));
  } else if (!gradient.defined()) {
    gradient = at::zeros_like(slot.parameter);
  } else if (gradient.is_sparse() && options_.sparse_as_dense) {
    gradient = gradient.to_dense();
  }
  slot.sparse_dim = gradient.is_sparse() ? gradient.sparse_dim() : 0;
}

// Holds mutex_. An error is kept.
void DistributedOptimizer::Impl::Submit(Slot& slot) {
  try {
    MakeGradient(slot);
    const Request request = {.kind = RUEDA_ALLREDUCE,
                             .tensors = slot.parameter.mutable_grad(),
                             .in_place = true,
                             .name = slot.name,
                             .process_set = options_.process_set,
                             .op = options_.op,
                             .prescale = prescale_,
                             .postscale = postscale_};
    if (slot.sparse_dim > 0) {
      slot.reduction.sparse = SparseOperation::Submit(context_, request);
    } else {
      slot.reduction.dense = Operation::Submit(context_, request);
    }
  } catch (...) {
    Keep(std::current_exception());
  }
}

void DistributedOptimizer::Impl::ZeroGrad(bool set_to_none) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const Slot& slot : slots_) {
    if (!slot.in_flight()) continue;
    throw Error(RUEDA_FAILED_PRECONDITION, "zero_grad() while '" + slot.name +
                                               "' is being reduced: call it before " +
                                               "backward(), or after step() or synchronize()");
  }
  for (Slot& slot : slots_) slot.passes = 0;  // what they have added up goes
  optimizer_.zero_grad(set_to_none);
}

// Holds mutex_. One that was added or unfrozen since would go unreduced, and replicas apart.
void DistributedOptimizer::Impl::CheckForNewParameters() {
  const auto& groups = optimizer_.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < groups[group].params().size(); ++i) {
      const at::Tensor& parameter = groups[group].params()[i];
      if (!parameter.requires_grad() || reduced_.contains(parameter.unsafeGetTensorImpl())) {
        continue;
      }
      return Keep(std::make_exception_ptr(
          Error(RUEDA_FAILED_PRECONDITION, "DistributedOptimizer: parameter " + std::to_string(i) +
                                               " of group " + std::to_string(group) +
                                               " requires a gradient, but wasn't there or was " +
                                               "frozen when this object was made: make it again")));
    }
  }
}

void DistributedOptimizer::Impl::Synchronize() {
  std::vector<std::pair<at::Tensor, Reduction>> reductions;  // of parameters' gradients
  std::vector<at::Tensor> frozen;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (synchronized_) return;
    CheckForNewParameters();
    for (Slot& slot : slots_) {
      if (!slot.parameter.requires_grad() && !slot.parameter.grad().defined()) {
        frozen.push_back(slot.parameter);
      }
      if (!slot.in_flight()) Submit(slot);  // the others may have a gradient here
      if (slot.in_flight()) {
        reductions.emplace_back(slot.parameter, std::exchange(slot.reduction, {}));
      }
      slot.passes = 0;
    }
  }
  std::exception_ptr error;
  for (const auto& [parameter, reduction] : reductions) {
    try {
      if (reduction.dense != nullptr) reduction.dense->Wait();
      if (reduction.sparse != nullptr) parameter.mutable_grad() = reduction.sparse->Wait();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  // Else a weight decay or a momentum would move what was frozen.
  for (const at::Tensor& parameter : frozen) parameter.mutable_grad().reset();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_error_ != nullptr) error = std::exchange(first_error_, nullptr);
    synchronized_ = error == nullptr;
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void DistributedOptimizer::Impl::Step() {
  Synchronize();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    synchronized_ = false;
  }
  optimizer_.step();
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedTensors& named_parameters,
                                           DistributedOptimizerOptions options)
    : impl_(std::make_unique<Impl>(optimizer, named_parameters, std::move(options))) {}

DistributedOptimizer::DistributedOptimizer(
    torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options)
    : DistributedOptimizer(optimizer, List(named_parameters), std::move(options)) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           DistributedOptimizerOptions options)
    : DistributedOptimizer(optimizer, PlaceNames(optimizer), std::move(options)) {}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::step() {
  impl_->Step();
}

void DistributedOptimizer::synchronize() {
  impl_->Synchronize();
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  impl_->ZeroGrad(set_to_none);
}

torch::optim::Optimizer& DistributedOptimizer::optimizer() const {
  return impl_->optimizer();
}

}  // namespace rueda::libtorch
