#include "bindings/torch/strategies/replicas.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "bindings/torch/device.h"

namespace rueda::libtorch {

// A replica's thread, and what belongs to it.
class Replicas::Thread {
 public:
  // By way of a plain function, as std::thread's templates are visible to other libraries.
  Thread() : thread_(&Thread::Main, static_cast<void*>(this)) {}
  ~Thread() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // The task before has ended.
  void Start(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      task_ = std::move(task);
    }
    changed_.notify_all();
  }
  // For the end of the task; returns what it has thrown.
  std::exception_ptr Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return task_ == nullptr; });
    return std::exchange(error_, nullptr);
  }

  // For the tasks alone.
  rueda_context* context = nullptr;
  std::optional<torch::optim::SGD> sgd;  // has the parameters, and never steps
  std::optional<DistributedOptimizer> distributed;

 private:
  static void Main(void* self) { static_cast<Thread*>(self)->Run(); }
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || task_ != nullptr; });
      if (task_ == nullptr) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        task_();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = std::move(error);
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  std::exception_ptr error_;
  bool ends_ = false;
  std::thread thread_;  // last: it uses the others
};

// A forward pass, for the backward pass.
struct Replicas::Pass : torch::CustomClassHolder {
  std::weak_ptr<Replicas> replicas;
  std::vector<at::Tensor> inputs, outputs;  // by replica
  at::Tensor joined;
};

// In a backward pass on the CPU: gives each replica its rows of the gradient. (On CUDA it would
// hold up autograd's thread of the device, for which the replicas' own backward passes would wait.)
class Replicas::Join : public torch::autograd::Function<Join> {
 public:
  // `anchor` makes it an operator with a history; the outputs have theirs by themselves.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor&,
                            const at::Tensor& input, const c10::intrusive_ptr<Pass>& pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->saved_data["input"] = input.requires_grad();
    return std::exchange(pass->joined, at::Tensor());
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    auto& pass = static_cast<Pass&>(*context->saved_data["pass"].toCapsule());
    if (pass.outputs.empty()) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "a second backward pass through the same outputs of replicas");
    }
    const std::shared_ptr<Replicas> replicas = pass.replicas.lock();
    if (replicas == nullptr) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "a backward pass through outputs of replicas whose strategy is gone");
    }
    // Their graphs are freed by it.
    const std::vector<at::Tensor> inputs = std::exchange(pass.inputs, {});
    replicas->Backward(std::exchange(pass.outputs, {}), gradients[0]);
    torch::autograd::tensor_list results(3);
    if (!context->saved_data["input"].toBool()) return results;
    std::vector<at::Tensor> rows;
    for (const at::Tensor& input : inputs) {
      rows.push_back(input.grad().defined() ? input.grad() : at::zeros_like(input));
    }
    results[1] = at::cat(rows);
    return results;
  }
};

namespace {

// On the CPU the same one.
at::Device DeviceBehind(at::Device first, size_t places) {
  if (first.is_cpu()) return first;
  const auto count = static_cast<size_t>(c10::impl::VirtualGuardImpl(first.type()).deviceCount());
  return {first.type(),
          static_cast<c10::DeviceIndex>((static_cast<size_t>(first.index()) + places) % count)};
}

// This thread's, one for each of the devices; none on the CPU.
std::vector<c10::Stream> CurrentStreams(const std::vector<at::Device>& devices) {
  std::vector<c10::Stream> streams;
  for (const at::Device device : devices) {
    const std::optional<c10::Stream> stream = CurrentStream(device);
    if (!stream.has_value()) continue;
    if (std::find(streams.begin(), streams.end(), *stream) == streams.end()) {
      streams.push_back(*stream);
    }
  }
  return streams;
}

// clone() may make two of a module that the model has twice; its gradients would be lost.
void CheckTies(const Model& model, const Model& replica) {
  const auto named = model.module().named_parameters();
  const std::vector<at::Tensor> own = model.module().parameters();
  const std::vector<at::Tensor> others = replica.module().parameters();
  bool tied = own.size() == others.size();
  for (size_t i = 0; tied && i < own.size(); ++i) {
    for (size_t j = 0; tied && j < i; ++j)
      tied = own[i].is_same(own[j]) == others[i].is_same(others[j]);
    if (tied) continue;
    throw Error(RUEDA_INVALID_ARGUMENT,
                "the model can't be replicated: its clone() does not share '" + named[i].key() +
                    "' as the model does");
  }
  if (!tied) {
    throw Error(RUEDA_INVALID_ARGUMENT, "the model can't be replicated: its clone() has " +
                                            std::to_string(others.size()) +
                                            " parameters, and not " + std::to_string(own.size()));
  }
}

}  // namespace

Replicas::Replicas(const Model& model, const NamedTensors& named, int count) : models_{model} {
  try {
    for (int i = 1; i < count; ++i) models_.push_back(model.clone());
  } catch (const c10::Error& error) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                std::string("the model can't be replicated: ") + error.what_without_backtrace());
  }
  const at::Device first = named.front().second.device();
  for (size_t i = 0; i < models_.size(); ++i) devices_.push_back(DeviceBehind(first, i));
  for (size_t i = 1; i < models_.size(); ++i) {
    CheckTies(model, models_[i]);
    models_[i].module().to(devices_[i]);
    Mirror(models_[i]);
  }
  // By place: a clone has its parameters in the same order.
  std::vector<std::pair<std::string, size_t>> places;
  const std::vector<at::Tensor> parameters = model.module().parameters();
  for (const auto& [name, tensor] : named) {
    size_t place = 0;
    while (!parameters[place].is_same(tensor)) ++place;
    places.emplace_back(name, place);
  }
  detail::Check(rueda_group_create(count, &group_), nullptr);
  for (int i = 0; i < count; ++i) threads_.push_back(std::make_unique<Thread>());
  try {
    OnAll(threads_.size(), [&](size_t i) {
      Thread& thread = *threads_[i];
      rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
      options.name = "replicas";
      options.group = group_;
      options.group_rank = static_cast<int32_t>(i);
      detail::Check(rueda_init(RUEDA_VERSION, &options, &thread.context), nullptr);
      rueda_set_thread_context(thread.context);
      const std::vector<at::Tensor> own = models_[i].module().parameters();
      NamedTensors names;
      std::vector<at::Tensor> tensors;
      for (const auto& [name, place] : places) {
        names.emplace_back(name, own[place]);
        tensors.push_back(own[place]);
      }
      thread.sgd.emplace(tensors, /*lr=*/1.0);
      thread.distributed.emplace(
          *thread.sgd, names,
          DistributedOptimizerOptions{.op = Sum, .gradients_in_arena = false, .name = "replicas"});
    });
  } catch (...) {
    // Those that have begun would wait at their end for those that could not.
    for (const auto& thread : threads_) {
      if (thread->context != nullptr) rueda_abort(thread->context, "a replica could not be made");
    }
    StopThreads();
    throw;
  }
}

Replicas::~Replicas() {
  StopThreads();
}

void Replicas::StopThreads() {
  try {
    OnAll(threads_.size(), [&](size_t i) {
      Thread& thread = *threads_[i];
      thread.distributed.reset();
      if (thread.context == nullptr) return;
      rueda_shutdown(thread.context);
      rueda_set_thread_context(nullptr);
      rueda_context_destroy(thread.context);
    });
  } catch (...) {  // nobody is left to hear of it
  }
  threads_.clear();
  rueda_group_destroy(group_);
}

void Replicas::OnAll(size_t count, const std::function<void(size_t)>& fn) {
  const std::vector<c10::Stream> streams = CurrentStreams(devices_);
  for (size_t i = 0; i < count; ++i) {
    threads_[i]->Start([&, i] {
      std::optional<c10::MultiStreamGuard> guard;
      if (!streams.empty()) guard.emplace(streams);
      fn(i);
    });
  }
  std::exception_ptr first;
  for (size_t i = 0; i < count; ++i) {
    std::exception_ptr error = threads_[i]->Wait();
    if (first == nullptr) first = std::move(error);
  }
  if (first != nullptr) std::rethrow_exception(first);
}

// Makes the replica what the first is. Parameters have the first's memory if that is on the same
// device; others are copied, as buffers are.
void Replicas::Mirror(const Model& replica) const {
  const at::NoGradGuard no_grad;
  const torch::nn::Module& first = models_.front().module();
  const std::vector<at::Tensor> from = first.parameters();
  std::vector<at::Tensor> to = replica.module().parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    if (to[i].device() != from[i].device()) {
      to[i].variable_data().copy_(from[i]);  // which autograd need not notice
    } else if (to[i].const_data_ptr() != from[i].const_data_ptr()) {
      to[i].set_data(from[i].detach());
    }
    if (to[i].requires_grad() != from[i].requires_grad()) {
      to[i].set_requires_grad(from[i].requires_grad());
    }
  }
  const std::vector<at::Tensor> buffers = first.buffers();
  std::vector<at::Tensor> copies = replica.module().buffers();
  for (size_t i = 0; i < buffers.size(); ++i) copies[i].copy_(buffers[i]);
  const auto modules = first.modules();
  const auto others = replica.module().modules();
  for (size_t i = 0; i < modules.size(); ++i) {  // the outer ones first
    if (others[i]->is_training() != modules[i]->is_training()) {
      others[i]->train(modules[i]->is_training());
    }
  }
}

at::Tensor Replicas::Forward(const at::Tensor& input) {
  if (!input.defined() || input.dim() == 0 || input.size(0) == 0) {
    throw Error(RUEDA_INVALID_ARGUMENT, "replicas need an input with rows, at least one");
  }
  for (size_t i = 1; i < models_.size(); ++i) Mirror(models_[i]);
  const auto count = static_cast<int64_t>(models_.size());
  const bool records = at::GradMode::is_enabled();
  std::vector<at::Tensor> inputs = are_on_cpu() ? input.detach().chunk(count) : input.chunk(count);
  std::vector<at::Tensor> outputs(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (are_on_cpu()) {
      inputs[i].set_requires_grad(records && input.requires_grad());
    } else {
      inputs[i] = inputs[i].to(devices_[i]);
    }
  }
  const at::ThreadLocalState state;
  OnAll(inputs.size(), [&](size_t i) {
    const at::ThreadLocalStateGuard as_the_caller(state);
    outputs[i] = models_[i].forward(inputs[i]);
  });
  std::vector<at::Tensor> values;
  bool has_history = false;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    if (output.dim() == 0 || output.size(0) != inputs[i].size(0)) {
      throw Error(
          RUEDA_INVALID_ARGUMENT,
          "a replica's output has not a row a sample: let the model return one row a sample, and "
          "compute the loss outside of it");
    }
    values.push_back(output.detach());
    has_history |= output.requires_grad();
  }
  if (!are_on_cpu()) return JoinWithHistory(outputs);
  at::Tensor result = at::cat(values);
  if (!records || !has_history) return result;
  ++passes_;
  auto pass = c10::make_intrusive<Pass>();
  pass->replicas = self_;
  pass->inputs = std::move(inputs);
  pass->outputs = std::move(outputs);
  pass->joined = std::move(result);
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  return Join::apply(anchor, input, pass);
}

// Autograd goes through it to all replicas, each device's on a thread of its own.
at::Tensor Replicas::JoinWithHistory(const std::vector<at::Tensor>& outputs) const {
  std::vector<at::Tensor> values;
  for (const at::Tensor& output : outputs) values.push_back(output.to(devices_.front()));
  return at::cat(values);
}

void Replicas::Backward(const std::vector<at::Tensor>& outputs, const at::Tensor& gradient) {
  std::vector<int64_t> rows;
  for (const at::Tensor& output : outputs) rows.push_back(output.size(0));
  const std::vector<at::Tensor> gradients = gradient.split_with_sizes(rows);
  const bool holds = hold_ || --passes_ > 0;
  try {
    OnAll(outputs.size(), [&](size_t i) {
      std::optional<DistributedOptimizer::NoSync> hold;
      if (holds) hold.emplace(*threads_[i]->distributed);
      if (outputs[i].requires_grad()) torch::autograd::backward({outputs[i]}, {gradients[i]});
    });
  } catch (...) {
    DropAll();
    throw;
  }
}

// After an error of one of them: the others may have sent theirs.
void Replicas::DropAll() {
  OnAll(threads_.size(), [&](size_t i) {
    DistributedOptimizer& distributed = *threads_[i]->distributed;
    try {
      distributed.synchronize();
    } catch (const Error&) {  // the first says it
    }
    distributed.zero_grad();
  });
}

void Replicas::RunBackward(const at::Tensor& loss, bool hold) {
  hold_ = hold;
  std::vector<std::unique_ptr<DistributedOptimizer::NoSync>> holds;
  if (!are_on_cpu() && hold) {
    for (const auto& thread : threads_) {
      holds.push_back(std::make_unique<DistributedOptimizer::NoSync>(*thread->distributed));
    }
  }
  try {
    loss.backward();
  } catch (...) {
    holds.clear();
    if (!are_on_cpu()) DropAll();
    throw;
  }
  holds.clear();
  passes_ = 0;
  if (hold) AddToFirst();
}

// So that whoever zeroes the model's gradients, by the optimizer, say, zeroes all.
void Replicas::AddToFirst() {
  OnAll(threads_.size(), [&](size_t thread) {
    const at::NoGradGuard no_grad;
    const auto& to = threads_[0]->sgd->param_groups()[0].params();
    for (size_t i = thread; i < to.size(); i += threads_.size()) {
      at::Tensor& sum = to[i].mutable_grad();
      for (size_t replica = 1; replica < threads_.size(); ++replica) {
        const auto& from = threads_[replica]->sgd->param_groups()[0].params();
        at::Tensor gradient = std::exchange(from[i].mutable_grad(), at::Tensor());
        if (!gradient.defined()) continue;
        gradient = gradient.to(to[i].device());
        if (!sum.defined()) {
          sum = gradient;
        } else if (sum.is_sparse() && !gradient.is_sparse()) {
          sum = gradient + sum;
        } else {
          sum.add_(gradient);
        }
      }
    }
  });
}

// A replica that had no rows knows of no gradient whether it is sparse.
void Replicas::FillInSparse() {
  const at::NoGradGuard no_grad;
  const auto gradient = [&](size_t replica, size_t i) -> at::Tensor& {
    return threads_[replica]->sgd->param_groups()[0].params()[i].mutable_grad();
  };
  const size_t parameters = threads_[0]->sgd->param_groups()[0].params().size();
  for (size_t i = 0; i < parameters; ++i) {
    size_t with = 0;
    while (with < threads_.size() &&
           !(gradient(with, i).defined() && gradient(with, i).is_sparse())) {
      ++with;
    }
    if (with == threads_.size()) continue;
    for (size_t replica = 0; replica < threads_.size(); ++replica) {
      at::Tensor& own = gradient(replica, i);
      if (!own.defined()) own = at::zeros_like(gradient(with, i)).to(devices_[replica]);
    }
  }
}

void Replicas::Synchronize() {
  FillInSparse();
  try {
    OnAll(threads_.size(), [&](size_t i) {
      Thread& thread = *threads_[i];
      thread.distributed->synchronize();
      // The next passes add to the sum in the first one, and only there. All begin anew, also one
      // that will have no rows: else some would reduce, and wait for others that would not.
      const auto& parameters = thread.sgd->param_groups()[0].params();
      std::vector<at::Tensor> sums;
      for (const at::Tensor& parameter : parameters) sums.push_back(parameter.grad());
      thread.distributed->zero_grad();
      if (i > 0) return;
      for (size_t k = 0; k < sums.size(); ++k) parameters[k].mutable_grad() = sums[k];
    });
  } catch (...) {
    ZeroGrad();
    throw;
  }
}

void Replicas::ZeroGrad() {
  OnAll(threads_.size(), [&](size_t i) { threads_[i]->distributed->zero_grad(); });
}

}  // namespace rueda::libtorch
