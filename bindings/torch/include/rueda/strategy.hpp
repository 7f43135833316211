// Ways to train one model on several ranks, behind one small interface: a loop chooses by name.
//
//     #include <rueda/strategy.hpp>
//     #include <torch/torch.h>
//     namespace hvd = rueda::libtorch;
//
//     Net net;
//     torch::optim::Adam adam(net->parameters(), 1e-3);
//     auto strategy = hvd::make_strategy("sharded", net, adam);
//     for (const Batch& batch : this_ranks_batches) {
//       strategy->zero_grad();
//       strategy->backward(torch::mse_loss(strategy->forward(batch.x), batch.y));
//       strategy->step();
//     }
//     strategy->finish();
//     strategy->save("model.pt");
//
//   ddp, horovod    averages the gradients while the backward pass computes them
//   dp, mirrored    a process's threads share out each batch, with a replica of the model each
//   ddp2            dp in each process; the processes average their gradients
//   multi_worker    adds the gradients up: for losses that average_loss() has scaled
//   bytegrad        ddp with gradients in 8 bits
//   qadam           Adam whose momentum goes in 8 bits once its variance is steady
//   sharded         ZeRO: each rank has the optimizer's state of its share, and updates that
//   fsdp            ZeRO-3: each rank has a share of the parameters too; modules are gathered
//   adasum          steps by itself, and combines the steps by Adasum
//   local_sgd       steps by itself; every `local_steps` steps the parameters are averaged
//   diloco          the same; an outer optimizer takes the averaged change for a gradient
//   decentralized   averages parameters, with all ranks or with another one each step
//   low_precision_decentralized   with both neighbours in a ring, in 8 bits
//   async           steps by itself, and is pulled to the average as it comes; nobody waits
//   pipeline        each rank has a part of a torch::nn::Sequential's layers
//
// docs/guides/strategies.md says when to take which.
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

// What is not for all of them says for which.
struct StrategyOptions {
  // Whose ranks train together.
  ProcessSet process_set = global_process_set;
  // Begins the names of the operations. Strategies that are in use at the same time need different
  // ones.
  std::string name = "strategy";
  // Gives all ranks rank 0's (of the process set: its first rank's) parameters, buffers and
  // optimizer state when the strategy is made. Without it they must be equal already.
  bool broadcast = true;
  // ddp: see DistributedOptimizerOptions.
  double gradient_predivide_factor = 1;
  // ddp, multi_worker, sharded, fsdp: what makes gradients smaller on their way, such as "int8" or
  // "powersgd:4"; see DistributedOptimizerOptions. What is lost belongs to a checkpoint. qadam: the
  // momentum; "": "int8".
  std::string compression;
  // qadam: steps in which it is plain Adam.
  int warmup_steps = 100;
  // dp, ddp2, mirrored: how many replicas this process has; a thread each.
  int replicas = 2;
  // sharded. 1: each rank has whole gradients. 2: a gradient's memory is given back as soon as it
  // is reduced, but for the rank's share.
  int zero_stage = 2;
  // sharded, fsdp: parameters are taken together up to so many bytes; with fsdp those of one module
  // always, and a rank has up to two such units whole, and one's gradients.
  int64_t bucket_bytes = int64_t{16} << 20;
  // local_sgd, diloco: steps between averages.
  int local_steps = 16;
  // decentralized. "all": the average of all ranks' parameters. "shift_one": of two, another pair
  // each step; for even numbers of ranks, or of hosts where it is hierarchical.
  std::string peers = "all";
  // decentralized with "shift_one", low_precision_decentralized: a host's ranks average their
  // parameters first, and the hosts then do what ranks do without it, each rank with its share. For
  // the world's ranks, equally many on each host.
  bool hierarchical = false;
  // async: no average begins sooner after the one before.
  double average_interval_ms = 0;
  // async: a step waits for an average that has been under way for so many steps.
  int stale_steps_max = 100;
  // pipeline: parts of a batch that go through the stages one behind another.
  int micro_batches = 4;
  // diloco: of the outer optimizer, SGD with Nesterov's momentum (arXiv 2311.08105).
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
};

// A module and its forward function, of whatever type it is: a TORCH_MODULE, a module's shared_ptr.
class Model {
 public:
  template <typename Module>
  Model(const torch::nn::ModuleHolder<Module>& holder)  // NOLINT: implicit
      : Model(holder.ptr()) {}
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

  torch::nn::Module& module() const { return *module_; }
  at::Tensor forward(const at::Tensor& input) const { return forward_(input); }
  bool empty() const { return module_ == nullptr; }
  // Another one with the same values. c10::Error: the module has no clone(), which it gets from
  // torch::nn::Cloneable.
  Model clone() const { return clone_(); }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::function<at::Tensor(const at::Tensor&)> forward_;
  std::function<Model()> clone_;
};

// One model and its optimizer, in training on the ranks of a process set, which must all make the
// same calls. Both go on to be used for what is not here: learning rates, schedulers, frozen
// parameters, train() and eval(). The optimizer must outlive this object.
//
// A batch is this rank's own, and its loss a mean over it; with batches of one size on all ranks
// the result is that of one process on all of them together, as far as the strategy promises that.
//
// Threads: for one thread at a time, with the current context (rueda.h) that this was made with.
//
// Errors: exceptions of type rueda::Error as for DistributedOptimizer (torch.hpp); after one that
// is not the caller's own mistake parameters may differ from rank to rank.
class Strategy {
 public:
  Strategy() = default;
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // What the model makes of `input`, with a history unless torch::NoGradGuard says otherwise. For
  // models whose forward takes and returns one tensor; others may be called directly.
  virtual at::Tensor forward(const at::Tensor& input) = 0;

  // A backward pass from `loss`, a scalar. With `last` the gradients go on their way as soon as
  // they are there; without it they are added up, and more passes follow before the step.
  virtual void backward(const at::Tensor& loss, bool last = true) = 0;

  // Waits until the gradients are those that step() is going to take. For what comes between:
  // clipping, looking. step() does it otherwise.
  virtual void synchronize() = 0;

  // Scales the gradients so that all together have an L2 norm of at most `max_norm`, whichever rank
  // has them. Returns the norm that they had. Does what synchronize does.
  virtual double clip_grad_norm(double max_norm) = 0;

  // Multiplies the gradients by `factor`, whichever rank has them, and returns whether all of them
  // are finite: what a LossScaler (precision.hpp) asks. The same answer on all ranks, but for
  // strategies that step by themselves, where it is about this rank's. Does what synchronize does.
  virtual bool unscale(double factor) = 0;

  // Waits for the gradients, and lets the optimizer step.
  virtual void step() = 0;

  // Instead of step(): forgets the gradients and leaves the parameters to what the other ranks make
  // of them. Where gradients are reduced, all ranks skip or none.
  virtual void skip_step() = 0;

  // Forgets the gradients, and the passes that were added up.
  virtual void zero_grad() = 0;

  // Gives all ranks the same, whole parameters, where the strategy lets them differ in between or,
  // as fsdp, shares them out: those until training goes on. Before evaluating or saving, and before
  // the strategy goes if the model is used on. Collective.
  virtual void finish() = 0;

  // Writes parameters, buffers, the optimizer's options and its state to a file, whole, whatever
  // the strategy does with them: load() takes it on any number of ranks and with any strategy, and
  // Python's torch.load reads it. The process set's first rank writes it, its own buffers with it,
  // under another name at first: `path` is the old file or the new one. Collective; does what
  // finish does. For torch's SGD, Adam, AdamW, RMSprop and Adagrad; RUEDA_INVALID_ARGUMENT for
  // others. RUEDA_INTERNAL on all ranks: the file can't be written.
  virtual void save(const std::string& path) = 0;
  // Every rank reads the file. Collective. RUEDA_INVALID_ARGUMENT on all ranks, with nothing
  // changed: one of them can't read it, or has another model or optimizer.
  virtual void load(const std::string& path) = 0;

  virtual const std::string& name() const = 0;
  virtual torch::optim::Optimizer& optimizer() const = 0;
};

// The losses' sum, divided by the size of the global batch: what is left of a mean over all ranks'
// and replicas' samples when each scales its own, and gradients are added up. For `mirrored` and
// `multi_worker`, as tf.nn.compute_average_loss; a last batch that is smaller counts for less.
RUEDA_TORCH_API at::Tensor average_loss(const at::Tensor& losses, int64_t global_batch_size);

// The strategies' names.
RUEDA_TORCH_API std::vector<std::string> strategy_names();

// Whether each rank has batches of its own with this strategy. With `pipeline` it has not: all call
// forward with the same batch, so that a sampler is given Part(0, 1) on all of them (training.hpp).
// RUEDA_INVALID_ARGUMENT: there is no such strategy.
RUEDA_TORCH_API bool has_own_batches(const std::string& name);

// Collective over options.process_set. RUEDA_INVALID_ARGUMENT: there is no such strategy (the
// message has all names), it does not go with the model or the optimizer, an option is out
// of range, or the ranks' models differ (then on all of them).
[[nodiscard]] RUEDA_TORCH_API std::unique_ptr<Strategy> make_strategy(
    const std::string& name, const Model& model, torch::optim::Optimizer& optimizer,
    const StrategyOptions& options = {});

}  // namespace rueda::libtorch

#endif  // RUEDA_STRATEGY_HPP_
