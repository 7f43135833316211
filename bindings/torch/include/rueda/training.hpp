// What a training loop on several ranks needs beside averaged gradients: batch norm over all ranks'
// batches, samplers that deal out a data set, learning rates, metrics, and a check that replicas
// are still equal. Each can be used by itself, with DistributedOptimizer (torch.hpp) or with a
// Strategy (strategy.hpp).
//
//     #include <rueda/training.hpp>
//     namespace hvd = rueda::libtorch;
//
//     hvd::DistributedSampler sampler(data.size().value(), {.seed = 7});
//     auto loader = torch::data::make_data_loader(data, sampler, batch_size);
//     hvd::WarmupSchedule warmup(sgd, 5 * steps_in_an_epoch);
//     hvd::ReplicaCheck check(1000);
//     for (size_t epoch = 0; epoch < epochs; ++epoch) {
//       sampler.set_epoch(epoch);
//       for (auto& batch : *loader) {
//         ...
//         optimizer.step();
//         warmup.step();
//         check.step(*model);
//       }
//       const auto metrics = hvd::average_metrics({{"loss", loss}}, samples_of_this_rank);
//     }
//
// Everything that communicates blocks, works on the calling thread's current context, and is
// collective: all ranks of the process set call it, in one order. Errors are exceptions of type
// rueda::Error as in torch.hpp. Objects are for one thread at a time.
#ifndef RUEDA_TRAINING_HPP_
#define RUEDA_TRAINING_HPP_

#include <torch/data/samplers/base.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "rueda/torch.hpp"

namespace rueda::libtorch {

// Batch norm -----------------------------------------------------------------------------------

// Batch normalisation (arXiv 1502.03167) with the mean and variance of all ranks' batches together:
// what torch::nn::BatchNorm1d to 3d make of one batch that has all of them. Takes the place of any
// of the three: parameters and buffers have the same names, shapes and meaning, so that checkpoints
// of one are checkpoints of the other.
//
// Input: (N, C, ...) of 2 to 5 dimensions, C as in the options, of a floating-point type. Ranks may
// differ in all dimensions but C, and have nothing (N = 0). Half-precision input is computed in
// float32.
//
// In training a forward pass is one small allgather, named as below; on CUDA there is another one
// beside it, of the counts, on the CPU. So is the backward pass, as one allreduce, if the input
// requires a gradient, which is for all ranks or none. Gradients of weight and bias are this rank's
// part, for the optimizer to reduce as others. In eval() nothing is communicated: the running
// statistics are used, or this rank's batch if there are none.
//
// RUEDA_INVALID_ARGUMENT: an input of another shape or type, or in training on neither CPU nor CUDA
// (on this rank); ranks that differ in C, or have not two values per channel all together (on all).
// RUEDA_UNIMPLEMENTED: second derivatives.
//
// One module has one forward pass under way at a time, in a process, and all ranks make all of
// them: so dp, ddp2, mirrored and pipeline refuse it.
//
// Its virtual functions are all inline: torch's templates over it are no part of this library.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  // `name` names the operations. Without one it is "sync_batch_norm.<n>" for the nth that this
  // thread makes without: so that all ranks make them in one order.
  RUEDA_TORCH_API explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm,
                                             std::string name = "",
                                             ProcessSet process_set = global_process_set);

  // Of the input's shape and type.
  RUEDA_TORCH_API at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override {
    stream << "rueda::libtorch::SyncBatchNorm(" << options.num_features()
           << ", eps=" << options.eps() << ", name=" << name_ << ")";
  }

  const std::string& operation_name() const { return name_; }

 protected:
  void _check_input_dim(const at::Tensor& input) override { CheckInput(input); }

 private:
  RUEDA_TORCH_API void CheckInput(const at::Tensor& input) const;
  RUEDA_TORCH_LOCAL void UpdateRunning(const at::Tensor& mean, const at::Tensor& var, double count);

  std::string name_;
  ProcessSet process_set_;
};
TORCH_MODULE(SyncBatchNorm);

// Samplers -------------------------------------------------------------------------------------

// Whose share of a data set is wanted: the calling rank's in a process set, or a given one's.
class RUEDA_TORCH_API Part {
 public:
  // RUEDA_INVALID_ARGUMENT: this rank is not in it.
  Part(ProcessSet process_set);  // NOLINT: implicit
  // RUEDA_INVALID_ARGUMENT, unless 0 <= rank < ranks.
  Part(int rank, int ranks);
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

 private:
  int rank_;
  int ranks_;
};

// What becomes of a data set that does not divide by the ranks.
enum class Remainder {
  kRepeat,  // equally many for all: the first ones of the epoch come again at its end
  kDrop,    // equally many for all: the last ones of the epoch are left out
  // Each exactly once: some ranks have one more. For evaluating; in training with join only.
  kKeep,
};

struct DistributedSamplerOptions {
  Remainder remainder = Remainder::kRepeat;
  // Another order in each epoch. Without it the data set's own.
  bool shuffle = true;
  // The same on all ranks.
  uint64_t seed = 0;
};

// Deals out the indices 0 to size - 1: rank r gets those at r, r + ranks, r + 2 ranks... of an
// order that all ranks compute alike from the seed and the epoch. Does not communicate.
//
// Copies share everything. So the one that a program keeps tells the one that its data loader keeps
// of a new epoch:
//
//     hvd::DistributedSampler sampler(size);
//     auto loader = torch::data::make_data_loader(data, sampler, options);
//     sampler.set_epoch(epoch);  // then iterate
class RUEDA_TORCH_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit DistributedSampler(size_t size, DistributedSamplerOptions options = {},
                              const Part& part = global_process_set);

  // Begins an epoch. Not while a data loader iterates.
  void set_epoch(size_t epoch);
  size_t epoch() const;
  // How many indices this rank gets in an epoch.
  size_t count() const;

  // Begins the epoch anew, of a data set of another size if one is given. A data loader does that
  // whenever it begins to iterate; right after load this keeps the place, so that the loader goes
  // on there.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  // The next indices, up to `batch_size`; nothing at the epoch's end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  // The epoch and the place in it; what a loader's workers have fetched ahead counts as taken.
  void save(torch::serialize::OutputArchive& archive) const override;
  // RUEDA_INVALID_ARGUMENT, with nothing changed: it was saved with another size, number of ranks,
  // seed or other options.
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  class RUEDA_TORCH_LOCAL Impl;
  explicit DistributedSampler(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

// Deals out samples of known cost (a sentence's length, say) so that in each step all ranks get
// equally many of nearly the same cost, and none waits for the others. The samples are sorted by
// cost and taken in groups of as many as there are ranks; the groups come in any order, and a
// group's samples go to any ranks. What is repeated, dropped or left over (then it comes last) is
// chosen by chance. As Bagua's LoadBalancingDistributedSampler does it (arXiv 2107.01499).
//
// Costs are of any unit, finite, and the same on all ranks. `random_level`: each epoch adds up to
// so many times the range of all costs to each one, so that groups differ from epoch to epoch; at
// 0, the best balance, only those of equal cost change places.
class RUEDA_TORCH_API LoadBalancingSampler : public DistributedSampler {
 public:
  // One cost for each sample. RUEDA_INVALID_ARGUMENT: a cost or random_level is not finite, or the
  // latter below 0; or a reset to another size than the number of costs.
  explicit LoadBalancingSampler(std::vector<double> costs, double random_level = 0,
                                DistributedSamplerOptions options = {},
                                const Part& part = global_process_set);
  // Calls `cost` once for each index, now.
  LoadBalancingSampler(size_t size, const std::function<double(size_t)>& cost,
                       double random_level = 0, DistributedSamplerOptions options = {},
                       const Part& part = global_process_set);
};

// Learning rates -------------------------------------------------------------------------------

// Multiplies the learning rate of each of the optimizer's groups: by size(), for the linear scaling
// rule of arXiv 1706.02677, say. Does not communicate. RUEDA_INVALID_ARGUMENT: a factor that is not
// finite or below 0.
RUEDA_TORCH_API void scale_learning_rate(torch::optim::Optimizer& optimizer, double factor);

// Gradual warm-up (arXiv 1706.02677, 2.2): from the learning rates that the optimizer has when this
// is made, divided by the number of ranks, in equal steps to those rates. Sets the first ones at
// once; call step() after each of the optimizer's. After `steps` of them it leaves the learning
// rates alone, so that another scheduler may take over. Does not communicate. The optimizer is
// borrowed, with the groups it has now, and must outlive this.
class RUEDA_TORCH_API WarmupSchedule : public torch::optim::LRScheduler {
 public:
  WarmupSchedule(torch::optim::Optimizer& optimizer, unsigned steps,
                 ProcessSet process_set = global_process_set);
  // Whether it has made its last change.
  bool done() const { return step_count_ >= steps_; }

 private:
  std::vector<double> get_lrs() override;
  RUEDA_TORCH_LOCAL std::vector<double> RatesAfter(unsigned steps) const;

  const unsigned steps_;
  const double start_;             // what the first rates are multiplied by
  const std::vector<double> lrs_;  // the last ones
};

// Metrics --------------------------------------------------------------------------------------

// The ranks' values, averaged with the weights `count`: how many samples each rank's are about. One
// operation for all of them; the same bits on all ranks. A rank whose count is 0 may have any
// values, NaN too. RUEDA_INVALID_ARGUMENT, on all ranks: they differ in the keys (the message names
// one), a count is negative or not finite, or all are 0.
RUEDA_TORCH_API std::map<std::string, double> average_metrics(
    const std::map<std::string, double>& metrics, double count = 1,
    const std::string& name = "average_metrics", ProcessSet process_set = global_process_set);

// Replicas -------------------------------------------------------------------------------------

// Checks that all ranks have the same tensors, by name, type, shape and bits (so NaNs are equal if
// their bits are, and 0 and -0 are not), by 64-bit fingerprints: reads each tensor once, and moves
// 8 bytes a rank if all is well. Undefined tensors are passed over.
//
// RUEDA_FAILED_PRECONDITION, on all ranks: "replicas differ: 'out.weight' on rank 2 (2 of 5
// tensors)". Those ranks are named that the fewest are equal to: of two ranks the second one.
RUEDA_TORCH_API void check_replicas(const NamedTensors& tensors,
                                    const std::string& name = "check_replicas",
                                    ProcessSet process_set = global_process_set);
// All parameters and buffers of a module.
RUEDA_TORCH_API void check_replicas(const torch::nn::Module& module,
                                    const std::string& name = "check_replicas",
                                    ProcessSet process_set = global_process_set);

// The same every so many steps, which all ranks count alike.
class RUEDA_TORCH_API ReplicaCheck {
 public:
  // RUEDA_INVALID_ARGUMENT: every_n_steps is below 1.
  explicit ReplicaCheck(int64_t every_n_steps, std::string name = "replica_check",
                        ProcessSet process_set = global_process_set);
  void step(const torch::nn::Module& module);

 private:
  const int64_t every_n_steps_;
  const std::string name_;
  const ProcessSet process_set_;
  int64_t steps_ = 0;
};

}  // namespace rueda::libtorch

#endif  // RUEDA_TRAINING_HPP_
