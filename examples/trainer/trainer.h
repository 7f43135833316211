// A trainer: the loop around a model, on as many ranks as one likes, with what one wants of it.
//
//     #include "examples/trainer/trainer.h"
//
//     int main() {
//       trainer::Trainer trainer({.devices = 2, .strategy = "sharded", .precision = "bf16"});
//       return trainer.Run([&] {
//         Net net;
//         torch::optim::SGD sgd(net->parameters(), 0.1);
//         trainer::TensorLoader train(data, {.batch_size = 32}), test(rest, {.train = false});
//         trainer.Fit({.model = net, .optimizer = sgd, .train = train, .validation = &test,
//                      .loss = [](auto& output, auto& target) { return mse_loss(output, target); },
//                      .callbacks = {std::make_shared<trainer::EarlyStopping>()}});
//         return 0;
//       });
//     }
//
// docs/guides/trainer.md says more.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <rueda/precision.hpp>
#include <rueda/strategy.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "examples/trainer/batches.h"
#include "examples/trainer/callback.h"

namespace trainer {

// The same on all ranks.
struct TrainerOptions {
  // How many ranks. 0: as many as a launcher has started, one without. Above 1 and without a
  // launcher the trainer starts them, on this host.
  int devices = 0;
  // Where each rank trains: "cpu"; "cuda", the device that is the rank's (hvd::local_device).
  std::string device = "cpu";
  // docs/guides/strategies.md has them, and the options.
  std::string strategy = "ddp";
  rueda::libtorch::StrategyOptions strategy_options = {};
  // "32"; "bf16", "16": the forward pass in bfloat16, in float16 with scaled losses.
  std::string precision = "32";
  rueda::libtorch::LossScalerOptions loss_scaler = {};
  int64_t max_epochs = 10;
  // Above 0: what gradients are clipped to, by the norm of all together.
  double max_norm = 0;
  // Of all that is random. The same seed, ranks and options give the same bits; but not with dp,
  // ddp2 and mirrored if layers draw random numbers (dropout): a process's replicas share torch's
  // generator, and come to it in any order.
  uint64_t seed = 0;
  // Goes on when ranks are lost or come, in a job that `ruedarun --min-np` has started: see
  // rueda/torch_elastic.hpp. With it `devices` is 0.
  bool elastic = false;
  // elastic: commits after so many steps, and at the end of each epoch. A lost rank costs the
  // others what they have done since.
  int64_t commit_steps = 100;
  // A file that ModelCheckpoint has written, or its directory, for what rank 0 finds to be the
  // newest one in it: the training goes on there. All ranks read it. "": begins anew.
  std::string resume;
};

// Thrown by an elastic Fit: this process is not wanted any more, as its host is taken away. Run
// catches it; a program without Run ends with status 0, and does not call shutdown().
struct Dismissed : std::exception {
  const char* what() const noexcept override { return "this process is not wanted any more"; }
};

// A scalar; a mean over the samples.
using Function =
    std::function<torch::Tensor(const torch::Tensor& output, const torch::Tensor& target)>;

// What is borrowed must outlive the call.
struct FitArguments {
  rueda::libtorch::Model model;
  torch::optim::Optimizer& optimizer;
  Loader& train;
  Loader* validation = nullptr;  // after each epoch; "val_loss" and "val_" and the metrics' names
  Function loss;                 // "loss"
  std::map<std::string, Function> metrics = {};
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  // What the optimizer's learning rates are multiplied by in a step, which are counted from 0 over
  // all epochs; those that it had are put back at the end. Without it they are left alone, but for
  // a checkpoint's, which are those it was written with.
  std::function<double(int64_t step)> learning_rate = {};
};

struct FitResult {
  int64_t epochs = 0;  // the last that ended, earlier runs' included
  int64_t steps = 0;
  double seconds = 0;    // of this run
  bool stopped = false;  // before max_epochs
  Metrics metrics = {};  // of the last epoch, if there was one
};

class Trainer {
 public:
  // RUEDA_INVALID_ARGUMENT: an option is out of range.
  explicit Trainer(TrainerOptions options);

  // Calls `fn` on each rank, with Rueda initialized and torch seeded, and returns the largest of
  // what it returns: in this process, if a launcher has started it or there is one rank only; else
  // in new ones, as rueda::run (run.hpp) does it, where each comes through main() to this call.
  // RUEDA_FAILED_PRECONDITION: a launcher has started another number of ranks than `devices`, or
  // there is no CUDA device.
  int Run(const std::function<int()>& fn) const;

  // Trains. Collective, with Rueda initialized: in Run(), or after init(). Puts the model on the
  // device, if it is not there, and batches; the optimizer has its parameters, and has not stepped
  // yet. The model is afterwards what the training has made of it, on all ranks. It trains in the
  // modes that its modules are in: those in eval() stay so. Callbacks remember: another Fit takes
  // new ones. RUEDA_INVALID_ARGUMENT, on all ranks: they differ in options, callbacks, their number
  // of batches or the checkpoint's bytes; no rank has a batch of the validation loader; the
  // checkpoint can't be read, or is another number of ranks' (an elastic one takes it all the
  // same); a callback has thrown something, on one rank perhaps.
  FitResult Fit(const FitArguments& arguments) const;

  // "loss" and the metrics over all ranks' batches together; each rank's part of the samples may
  // be of any size. Parameters, gradients and the modules' modes stay as they are, but that the
  // model is put on the device. Collective.
  Metrics Evaluate(const rueda::libtorch::Model& model, Loader& loader, const Function& loss,
                   const std::map<std::string, Function>& metrics) const;

  const TrainerOptions& options() const { return options_; }

 private:
  const TrainerOptions options_;
};

}  // namespace trainer
