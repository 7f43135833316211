#include "bindings/torch/parameter_hooks.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <string>
#include <utility>

#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

class Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(const std::function<void(size_t)>* on_gradient, size_t index)
      : on_gradient_(on_gradient), index_(index) {}
  void operator()(const at::Tensor&) override { (*on_gradient_)(index_); }

 private:
  const std::function<void(size_t)>* const on_gradient_;
  const size_t index_;
};

}  // namespace

ParameterHooks::ParameterHooks(std::vector<at::Tensor> parameters,
                               const std::vector<std::string>& names,
                               std::function<void(size_t)> on_gradient)
    : parameters_(std::move(parameters)), on_gradient_(std::move(on_gradient)) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (torch::autograd::impl::post_acc_grad_hooks(parameters_[i]) == nullptr) continue;
    throw Error(RUEDA_INVALID_ARGUMENT, "parameter '" + names[i] +
                                            "' has a post-accumulate-grad hook already; is it in " +
                                            "another DistributedOptimizer or strategy?");
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto hook = std::make_unique<Hook>(&on_gradient_, i);
    hooks_.push_back(hook.get());
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i], std::move(hook));
  }
}

ParameterHooks::~ParameterHooks() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameters_[i]);
    if (hook.get() == hooks_[i]) hook.reset();
  }
}

}  // namespace rueda::libtorch
