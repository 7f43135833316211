// What torch's optimizers are set to and remember, field by field, for those who move it between
// ranks and files: torch offers it by type only.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <tuple>

namespace rueda::libtorch {

// Is shown every field of an optimizer's options, or of its state of one parameter, always in the
// same order.
class FieldVisitor {
 public:
  virtual ~FieldVisitor() = default;
  virtual void Number(const char* field, double& number) = 0;
  // May be undefined.
  virtual void Tensor(const char* field, at::Tensor& tensor) = 0;

  void operator()(const char* field, double& number) { Number(field, number); }
  void operator()(const char* field, at::Tensor& tensor) { Tensor(field, tensor); }
  void operator()(const char* field, int64_t& integer) { Convert(field, integer); }  // exact
  void operator()(const char* field, bool& flag) { Convert(field, flag); }
  void operator()(const char* first, const char* second, std::tuple<double, double>& pair) {
    Number(first, std::get<0>(pair));
    Number(second, std::get<1>(pair));
  }

 private:
  template <typename T>
  void Convert(const char* field, T& value) {
    auto number = static_cast<double>(value);
    Number(field, number);
    value = static_cast<T>(number);
  }
};

// A type of optimizer. All of them work element by element: what they do to a parameter's elements
// does not depend on which others are in the same tensor.
struct OptimizerKind {
  const char* name;
  bool (*is)(const torch::optim::Optimizer&);
  void (*show_options)(torch::optim::OptimizerOptions&, FieldVisitor&);
  void (*assign_options)(const torch::optim::OptimizerOptions& from,
                         torch::optim::OptimizerOptions& to);
  std::unique_ptr<torch::optim::OptimizerParamState> (*new_state)();
  void (*show_state)(torch::optim::OptimizerParamState&, FieldVisitor&);
};

// The names of the types that are known, for errors.
inline constexpr const char* kOptimizerKinds = "SGD, Adam, AdamW, RMSprop and Adagrad";
inline constexpr int kOptimizerKindCount = 5;

// By index, which is the same on all ranks.
const OptimizerKind& OptimizerKindAt(int index);
// The index of its type; -1: it is of another.
int OptimizerKindIndex(const torch::optim::Optimizer& optimizer);

}  // namespace rueda::libtorch
