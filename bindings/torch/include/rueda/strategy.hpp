/// \file
/// Ways to train one model on several ranks, behind one interface. A loop chooses by name.
///
///     #include <rueda/strategy.hpp>
///     #include <torch/torch.h>
///     namespace hvd = rueda::libtorch;
///
///     Net net;
///     torch::optim::Adam adam(net->parameters(), 1e-3);
///     auto strategy = hvd::make_strategy("sharded", net, adam);
///     for (const Batch& batch : this_ranks_batches) {
///       strategy->zero_grad();
///       strategy->backward(torch::mse_loss(strategy->forward(batch.x), batch.y));
///       strategy->step();
///     }
///     strategy->finish();
///     strategy->save("model.pt");
///
/// | name | what it does |
/// |---|---|
/// | ddp, horovod | averages the gradients while the backward pass computes them |
/// | dp, mirrored | splits each batch over a process's threads; each has a replica |
/// | ddp2 | dp in each process; the processes average their gradients |
/// | multi_worker | sums the gradients: for losses that average_loss() has scaled |
/// | bytegrad | ddp with gradients in 8 bits |
/// | qadam | Adam that sends its momentum in 8 bits once its variance is steady |
/// | sharded | ZeRO: each rank has the optimizer's state of its share, and updates that |
/// | fsdp | ZeRO-3: each rank has a share of the parameters too; modules are gathered |
/// | adasum | steps locally, and combines the steps by Adasum |
/// | local_sgd | steps locally; averages the parameters every `local_steps` steps |
/// | diloco | the same; an outer optimizer takes the averaged change for a gradient |
/// | decentralized | averages parameters, with all ranks or with another one in each step |
/// | low_precision_decentralized | averages parameters with both neighbors in a ring, in 8 bits |
/// | async | steps locally, and moves to the average when it arrives; no rank waits |
/// | pipeline | each rank has a part of the layers of a torch::nn::Sequential |
///
/// docs/guides/strategies.md says when to use which.
#ifndef RUEDA_STRATEGY_HPP_
#define RUEDA_STRATEGY_HPP_

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

/// \addtogroup lt_strategies
/// @{

/// Options of make_strategy. An option that only some strategies use names them.
struct StrategyOptions {
  /// The ranks that train together.
  ProcessSet process_set = global_process_set;
  /// The first part of the operations' names. Strategies that are in use at the same time need
  /// different names.
  std::string name = "strategy";
  /// Gives all ranks the parameters, buffers and optimizer state of the process set's first rank
  /// when the strategy is made. Without it, they must be equal already.
  bool broadcast = true;
  /// ddp: see DistributedOptimizerOptions.
  double gradient_predivide_factor = 1;
  /// ddp, multi_worker, sharded, fsdp: how to compress gradients, such as "int8" or "powersgd:4";
  /// see DistributedOptimizerOptions. What compression has lost so far belongs in a checkpoint.
  /// qadam: how to compress the momentum; "" means "int8".
  std::string compression;
  /// qadam: the first steps, in which it is plain Adam.
  int warmup_steps = 100;
  /// dp, ddp2, mirrored: the number of replicas in this process. Each has a thread.
  int replicas = 2;
  /// sharded. 1: each rank has whole gradients. 2: a gradient's memory is freed as soon as it is
  /// reduced, except for the rank's share.
  int zero_stage = 2;
  /// sharded, fsdp: parameters are grouped up to this many bytes. fsdp always groups the parameters
  /// of one module. With it, a rank has up to two such groups whole, and the gradients of one.
  int64_t bucket_bytes = int64_t{16} << 20;
  /// local_sgd, diloco: the number of steps between averages.
  int local_steps = 16;
  /// decentralized. "all": averages the parameters of all ranks. "shift_one": averages those of two
  /// ranks, another pair in each step. The number of ranks must be even, or the number of hosts
  /// where it is hierarchical.
  std::string peers = "all";
  /// decentralized with "shift_one", low_precision_decentralized: the ranks of a host average their
  /// parameters first. Then the hosts do what ranks do otherwise, each rank with its share. For the
  /// world's ranks, with the same number on each host.
  bool hierarchical = false;
  /// async: the least time between the starts of two averages.
  double average_interval_ms = 0;
  /// async: a step waits for an average that is this many steps old.
  int stale_steps_max = 100;
  /// pipeline: the number of parts of a batch that go through the stages one after another.
  int micro_batches = 4;
  /// diloco: the learning rate of the outer optimizer, which is SGD with Nesterov momentum (arXiv
  /// 2311.08105).
  double outer_lr = 0.7;
  /// diloco: the momentum of the outer optimizer.
  double outer_momentum = 0.9;
};

/// A module with its forward function. Made from a TORCH_MODULE or from a module's shared_ptr, of
/// any type.
class Model {
 public:
  /// From a TORCH_MODULE.
  template <typename Module>
  Model(const torch::nn::ModuleHolder<Module>& holder)  // NOLINT: implicit
      : Model(holder.ptr()) {}
  /// From a pointer. forward() throws RUEDA_INVALID_ARGUMENT if the module's own does not take one
  /// tensor and return one.
  template <std::derived_from<torch::nn::Module> Module>
  Model(std::shared_ptr<Module> module)  // NOLINT: implicit
      : module_(module),
        forward_([module](const at::Tensor& input) -> at::Tensor {
          if constexpr (requires {
                          { module->forward(input) } -> std::convertible_to<at::Tensor>;
                        }) {
            return module->forward(input);
          } else {
            throw Error(RUEDA_INVALID_ARGUMENT,
                        "the model's forward() does not take one tensor and return one: call it "
                        "directly");
          }
        }),
        clone_([module] {
          const auto copy = std::dynamic_pointer_cast<Module>(module->clone());
          if (copy == nullptr) {
            throw Error(RUEDA_INVALID_ARGUMENT,
                        "the model's clone() makes a module of another type: derive from "
                        "torch::nn::Cloneable");
          }
          return Model(copy);
        }) {}

  /// The module.
  torch::nn::Module& module() const { return *module_; }
  /// Calls the module's forward function.
  at::Tensor forward(const at::Tensor& input) const { return forward_(input); }
  /// Whether it was made from a null pointer.
  bool empty() const { return module_ == nullptr; }
  /// A copy with the same values. c10::Error: the module has no clone(); torch::nn::Cloneable
  /// provides it.
  Model clone() const { return clone_(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
  std::function<Model()> clone_;
};

/// One model and its optimizer, trained by the ranks of a process set. All these ranks must make
/// the same calls. Use model and optimizer directly for everything else: learning rates,
/// schedulers, frozen parameters, train() and eval(). The optimizer must outlive this object.
///
/// A batch belongs to this rank, and its loss is a mean over it. With batches of one size on all
/// ranks, the result is that of one process on all of them together, as far as the strategy
/// promises it.
///
/// Threads: for one thread at a time, with the context (rueda.h) that was current when this object
/// was made.
///
/// Errors: exceptions of type rueda::Error, as for DistributedOptimizer (torch.hpp). After an error
/// that is not a mistake of the caller, parameters may differ between ranks.
class Strategy {
 public:
  Strategy() = default;
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  /// The model's output for `input`, with a history unless torch::NoGradGuard forbids it. For
  /// models whose forward takes one tensor and returns one. Call others directly.
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  /// Runs a backward pass from `loss`, a scalar. With `last`, gradients are sent as soon as they
  /// are computed. Without it, they are added up, and more passes follow before the step.
  virtual void backward(const at::Tensor& loss, bool last = true) = 0;

  /// Waits until the gradients are those that step() will use. Call it before you clip or read
  /// gradients; otherwise step() does it.
  virtual void synchronize() = 0;

  /// Scales the gradients so that their joint L2 norm is at most `max_norm`, whichever rank has
  /// them. Returns the norm before. Synchronizes first.
  virtual double clip_grad_norm(double max_norm) = 0;

  /// Multiplies the gradients by `factor`, whichever rank has them. Returns whether all of them are
  /// finite, as a LossScaler (precision.hpp) needs it. All ranks get the same answer, except with
  /// strategies that step locally, where the answer is about this rank. Synchronizes first.
  virtual bool unscale(double factor) = 0;

  /// Waits for the gradients, then steps the optimizer.
  virtual void step() = 0;

  /// Call it instead of step(). Drops the gradients; the parameters only change by what the other
  /// ranks do. Where gradients are reduced, either all ranks skip a step or none does.
  virtual void skip_step() = 0;

  /// Clears the gradients, and the passes that were added up.
  virtual void zero_grad() = 0;

  /// Gives all ranks the same, whole parameters, until training goes on. Some strategies let
  /// parameters differ in between, and fsdp distributes them. Call it before you evaluate or save,
  /// and before you destroy the strategy if you use the model afterwards. Collective.
  virtual void finish() = 0;

  /// Writes parameters, buffers, and the optimizer's options and state to a file, whole. load()
  /// takes the file on any number of ranks and with any strategy, and Python's torch.load reads it.
  /// The process set's first rank writes the file, with its own buffers, under another name first:
  /// `path` is always the old file or the new one. Collective; does what finish does. Works for
  /// torch's SGD, Adam, AdamW, RMSprop and Adagrad; RUEDA_INVALID_ARGUMENT for others.
  /// RUEDA_INTERNAL on all ranks: the file can't be written.
  virtual void save(const std::string& path) = 0;
  /// Every rank reads the file. Collective. RUEDA_INVALID_ARGUMENT on all ranks, with nothing
  /// changed: one of them can't read it, or has another model or optimizer.
  virtual void load(const std::string& path) = 0;

  /// The strategy's name.
  virtual const std::string& name() const = 0;
  /// The optimizer that make_strategy was given.
  virtual torch::optim::Optimizer& optimizer() const = 0;
};

/// The sum of the losses, divided by the size of the global batch. Each replica scales its own
/// losses by this, and the gradients are summed: the result is the mean over the samples of all
/// ranks and replicas. For `mirrored` and `multi_worker`, like tf.nn.compute_average_loss. A
/// smaller last batch counts for less.
RUEDA_TORCH_API at::Tensor average_loss(const at::Tensor& losses, int64_t global_batch_size);

/// The names of all strategies.
RUEDA_TORCH_API std::vector<std::string> strategy_names();

/// Whether each rank has batches of its own with this strategy. `pipeline` is the exception: all
/// ranks call forward with the same batch, so give samplers Part(0, 1) on all of them
/// (training.hpp). RUEDA_INVALID_ARGUMENT: no strategy has this name.
RUEDA_TORCH_API bool has_own_batches(const std::string& name);

/// Makes a strategy. Collective over options.process_set. RUEDA_INVALID_ARGUMENT: no strategy has
/// this name (the message lists all names), it does not work with the model or the optimizer, an
/// option is out of range, or the ranks' models differ (then on all of them).
[[nodiscard]] RUEDA_TORCH_API std::unique_ptr<Strategy> make_strategy(
    const std::string& name, const Model& model, torch::optim::Optimizer& optimizer,
    const StrategyOptions& options = {});

/// @}

}  // namespace rueda::libtorch

#endif  // RUEDA_STRATEGY_HPP_
