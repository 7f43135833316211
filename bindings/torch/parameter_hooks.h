// Tells when backward passes have computed gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch::autograd {
struct PostAccumulateGradHook;
}

namespace rueda::libtorch {

// Calls `on_gradient(i)` on the backward pass's thread each time that one has added to the gradient
// of parameters[i]. It must not throw. Destruction removes the hooks; not while a backward pass
// runs.
class ParameterHooks {
 public:
  // Throws RUEDA_INVALID_ARGUMENT, and installs nothing, when a parameter has such a hook already:
  // it can have one. `names`: of the parameters, for that.
  ParameterHooks(std::vector<at::Tensor> parameters, const std::vector<std::string>& names,
                 std::function<void(size_t)> on_gradient);
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

 private:
  const std::vector<at::Tensor> parameters_;
  const std::function<void(size_t)> on_gradient_;
  std::vector<torch::autograd::PostAccumulateGradHook*> hooks_;
};

}  // namespace rueda::libtorch
