// What all strategies share: the model, its optimizer, and how both are saved.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/torch/operation.h"
#include "rueda/strategy.hpp"

namespace rueda::libtorch {

struct OptimizerKind;

// What an optimizer remembers of a parameter.
struct ParameterState {
  bool empty() const { return numbers.empty() && tensors.empty(); }
  std::vector<std::pair<std::string, double>> numbers;      // by field
  std::vector<std::pair<std::string, at::Tensor>> tensors;  // by field; as large as the parameter
};

// What one rank alone has of some of a parameter's elements.
struct Piece {
  size_t parameter = 0;  // by place
  int64_t begin = 0;     // elements, in the order of memory
  int64_t count = 0;
  ParameterState state;  // tensors of one dimension
};

struct Parameter {
  std::string name;
  at::Tensor tensor;
  std::string suffix;   // of its operation's name in a group
  size_t group;         // of the optimizer
  bool trained;         // not frozen when the strategy was made
  at::ScalarType type;  // at that time
};

class StrategyKeeper;

class BaseStrategy : public Strategy {
  friend class StrategyKeeper;

 public:
  at::Tensor forward(const at::Tensor& input) override;
  double clip_grad_norm(double max_norm) override;
  bool unscale(double factor) override;
  void skip_step() override {
    synchronize();  // they may be on their way
    zero_grad();
  }
  void finish() override {}
  void save(const std::string& path) final;
  void load(const std::string& path) final;
  const std::string& name() const final { return name_; }
  torch::optim::Optimizer& optimizer() const final { return optimizer_; }

 protected:
  // Throws RUEDA_INVALID_ARGUMENT, on all ranks if they differ, unless all have the same model.
  BaseStrategy(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
               StrategyOptions options);

  // By place in parameters(); nothing for a parameter that the optimizer has not stepped.
  // Collective.
  virtual std::vector<ParameterState> GetState();
  virtual void SetState(const std::vector<ParameterState>& states);
  // Whether its operations are compressed: what they lose belongs into a checkpoint.
  virtual bool IsCompressed() const { return !options_.compression.empty(); }
  // Other tensors that belong into a checkpoint, by name, the same on all ranks. A strategy that is
  // given a file without them leaves them as they are.
  virtual NamedTensors Extras() { return {}; }
  // Everything is going to be changed from outside, equally on all ranks: ends what is under way.
  // Collective.
  virtual void OnLoading() {}
  // It has been.
  virtual void OnLoaded() {}

  // For elastic jobs. Collective: what all ranks have is the same on all, and what this rank alone
  // has is in its pieces.
  virtual void Settle() { finish(); }
  // Of the optimizer's state, from strategies that HavePieces.
  virtual std::vector<Piece> StatePieces() { return {}; }
  // Of any rank's: takes over what belongs to this one.
  virtual void TakeStates(const std::vector<Piece>&) {}
  // Of the parameters that no rank has whole; a field without a name.
  virtual std::vector<Piece> ValuePieces() { return {}; }
  virtual bool IsWhole(size_t /*parameter*/) const { return true; }

  [[noreturn]] void Refuse(const std::string& message) const;
  // Of the optimizer, in its order, with their names in the model; one of several names is its
  // first.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  NamedTensors NamedParameters() const;
  // Those that are not frozen.
  std::vector<at::Tensor> TrainedParameters() const;
  const StrategyOptions& options() const { return options_; }
  rueda_context* context() const { return context_; }
  int ranks() const { return ranks_; }
  // In the process set.
  int index() const { return index_; }
  int first_rank() const { return first_rank_; }
  // These throw FAILED_PRECONDITION when since the strategy was made the optimizer has got
  // parameters, or what CheckTypes looks for,
  void CheckParameters() const;
  // some have another type,
  void CheckTypes() const;
  // or some were frozen or unfrozen.
  void CheckFrozen() const;
  // What they would throw; null: nothing. To be thrown when the step is made: it may be this rank's
  // mistake alone, and the others wait for what it brings.
  std::exception_ptr Mistake() const;
  // In place; waits. `name`: without the strategy's. With suffixes a group, about whose members
  // ranks may come to differ: all of them are told so. Tensors on several devices are several
  // operations.
  void Allreduce(c10::ArrayRef<at::Tensor> tensors, const std::string& name, reduce_op op,
                 c10::ArrayRef<const char*> suffixes, const std::string& compressor = "");
  // Of those of parameters() that are chosen, over the ranks; one that has no gradient counts as
  // zeros, and one that no rank has a gradient for has none.
  void AverageGradients(const std::function<bool(const Parameter&)>& chosen);
  // Scales tensors that are on this rank alone by the L2 norm of all ranks' together, which it
  // returns, as clip_grad_norm does.
  double ClipTogether(c10::ArrayRef<at::Tensor> gradients, double max_norm);
  // Multiplies them by `factor`; whether they, and all ranks' together, are finite. The vote is an
  // operation of its own: of 1/N of the gradients a rank sees no other's infinities, and to look at
  // all N before they are reduced would take longer.
  bool UnscaleTogether(c10::ArrayRef<at::Tensor> gradients, double factor);
  // Throws, on all ranks alike, unless there is this compressor for the parameters' devices.
  void Probe(const std::string& compressor);
  // The same if some are not on the CPU, which has all: for a compressor that is not an option.
  void ProbeOnDevices(const std::string& compressor);
  // That of all parameters and buffers; refuses a model that is on several.
  at::Device OnlyDevice() const;
  std::string NameOf(const std::string& operation) const { return options_.name + "." + operation; }

 private:
  void FindParameters();
  void CheckOptions() const;
  void CheckSameFile(const std::string& path, uint64_t print);
  std::vector<std::string> GetLost();
  void SetLost(const std::vector<at::Tensor>& lost);
  const OptimizerKind& KindForFiles() const;
  void CheckThatRanksAgree(const std::string& mistake);
  void CheckCompression();
  // Throws the same error on all ranks if any has one. "": it has none.
  void Agree(const std::string& what, const std::string& error,
             rueda_status status = RUEDA_INVALID_ARGUMENT);

  const std::string name_;
  const Model model_;
  torch::optim::Optimizer& optimizer_;
  const StrategyOptions options_;
  rueda_context* const context_;
  int ranks_ = 0;
  int index_ = 0;
  int first_rank_ = 0;
  std::vector<Parameter> parameters_;
};

// Sets what an optimizer remembers of `parameter`, as it is in one of its groups.
void SetParameterState(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                       const ParameterState& state);
// Nothing when it remembers nothing. The tensors are its own.
ParameterState GetParameterState(torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

// What an optimizer's groups are set to, by group: numbers.
std::vector<ParameterState> GetOptions(torch::optim::Optimizer& optimizer);
void SetOptions(torch::optim::Optimizer& optimizer, const std::vector<ParameterState>& groups);

// Whether ranks have a part of the optimizer's state alone with the strategy of this name.
bool HasPieces(const std::string& name);

}  // namespace rueda::libtorch
