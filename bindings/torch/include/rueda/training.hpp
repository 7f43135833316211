/// \file
/// What a training loop on several ranks needs besides averaged gradients: batch norm over all
/// ranks' batches, samplers that distribute a data set, learning rates, metrics, and a check that
/// replicas are still equal. Each works alone, with DistributedOptimizer (torch.hpp) or with a
/// Strategy (strategy.hpp).
///
///     #include <rueda/training.hpp>
///     namespace hvd = rueda::libtorch;
///
///     hvd::DistributedSampler sampler(data.size().value(), {.seed = 7});
///     auto loader = torch::data::make_data_loader(data, sampler, batch_size);
///     hvd::WarmupSchedule warmup(sgd, 5 * steps_in_an_epoch);
///     hvd::ReplicaCheck check(1000);
///     for (size_t epoch = 0; epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) {
///         ...
///         optimizer.step();
///         warmup.step();
///         check.step(*model);
///       }
///       const auto metrics = hvd::average_metrics({{"loss", loss}}, samples_of_this_rank);
///     }
///
/// Functions that communicate block and work on the calling thread's current context. They are
/// collective: all ranks of the process set call them, in one order. Errors are exceptions of type
/// rueda::Error, as in torch.hpp. Objects are for one thread at a time.
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
/// \addtogroup lt_training
/// @{

/// Batch normalization (arXiv 1502.03167) over all ranks' batches together: mean and variance are
/// those that torch::nn::BatchNorm1d to 3d would compute from one batch that has all of them. It
/// replaces any of the three. Parameters and buffers have the same names, shapes and meaning, so
/// checkpoints of one work for the other.
///
/// **Input**: (N, C, ...) of 2 to 5 dimensions, with C as in the options, of a floating-point type.
/// Ranks may differ in all dimensions but C, and may have no samples (N = 0). Half-precision input
/// is computed in float32.
///
/// **Communication**: in training, a forward pass is one small allgather. On CUDA a second one
/// carries the counts, on the CPU. The backward pass is one allreduce if the input requires a
/// gradient, which it does on all ranks or on none. The gradients of weight and bias are this
/// rank's part; the optimizer reduces them like others. In eval() nothing is communicated: it uses
/// the running statistics, or this rank's batch if it has none.
///
/// **Errors**: RUEDA_INVALID_ARGUMENT on this rank: an input of another shape or type, or, in
/// training, on a device other than CPU and CUDA. RUEDA_INVALID_ARGUMENT on all ranks: they differ
/// in C, or together have fewer than two values per channel. RUEDA_UNIMPLEMENTED: second
/// derivatives.
///
/// A module has one forward pass in flight at a time in a process, and all ranks run all passes. So
/// dp, ddp2, mirrored and pipeline reject it.
///
/// All virtual functions are inline, because torch's templates over this class are not part of this
/// library.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// `name` names the operations. Without it, the name is "sync_batch_norm.<n>" for the nth module
  /// that this thread makes without a name. So all ranks must make these modules in the same order.
  RUEDA_TORCH_API explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm,
                                             std::string name = "",
                                             ProcessSet process_set = global_process_set);

  /// The result has the input's shape and type.
  RUEDA_TORCH_API at::Tensor forward(const at::Tensor& input);

  /// Prints one line with the features, eps and the name.
  void pretty_print(std::ostream& stream) const override {
    stream << "rueda::libtorch::SyncBatchNorm(" << options.num_features()
           << ", eps=" << options.eps() << ", name=" << name_ << ")";
  }

  /// The name of the operations.
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

/// Whose share of a data set: the calling rank's in a process set, or a given rank's.
class RUEDA_TORCH_API Part {
 public:
  /// RUEDA_INVALID_ARGUMENT: this rank is not in the process set.
  Part(ProcessSet process_set);  // NOLINT: implicit
  /// RUEDA_INVALID_ARGUMENT, unless 0 <= rank < ranks.
  Part(int rank, int ranks);
  /// Whose share it is.
  int rank() const { return rank_; }
  /// How many shares the data set has.
  int ranks() const { return ranks_; }

 private:
  int rank_;
  int ranks_;
};

/// What happens when the number of ranks does not divide the size of the data set.
enum class Remainder {
  /// The same number for all ranks: the first samples of the epoch come again at its end.
  kRepeat,
  /// The same number for all ranks: the last samples of the epoch are left out.
  kDrop,
  /// Each sample exactly once: some ranks have one more. For evaluation; in training only with
  /// join.
  kKeep,
};

/// Options of the samplers.
struct DistributedSamplerOptions {
  /// What to do with samples that don't divide by the ranks.
  Remainder remainder = Remainder::kRepeat;
  /// Another order in each epoch. Without it, the order of the data set.
  bool shuffle = true;
  /// The seed of the order. The same on all ranks.
  uint64_t seed = 0;
};

/// Distributes the indices 0 to size - 1. All ranks compute the same order from the seed and the
/// epoch; rank r gets the indices at r, r + ranks, r + 2 ranks... Does not communicate.
///
/// Copies share their state. So you can tell your sampler of a new epoch, and the data loader's
/// copy knows:
///
///     hvd::DistributedSampler sampler(size);
///     auto loader = torch::data::make_data_loader(data, sampler, options);
///     sampler.set_epoch(epoch);  // then iterate
class RUEDA_TORCH_API DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// For a data set of `size` samples.
  explicit DistributedSampler(size_t size, DistributedSamplerOptions options = {},
                              const Part& part = global_process_set);

  /// Begins an epoch, without the first `processed` samples of its order: those that all ranks have
  /// had before they were other ranks (elastic::ElasticSampler). Don't call it while a data loader
  /// iterates.
  void set_epoch(size_t epoch, size_t processed = 0);
  /// The current epoch.
  size_t epoch() const;
  /// How many indices this rank gets in an epoch.
  size_t count() const;

  /// Begins the epoch anew, for a data set of another size if one is given. A data loader calls it
  /// whenever it begins to iterate. Right after load, reset keeps the position, so that the loader
  /// goes on there.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// The next indices, up to `batch_size`; nothing at the epoch's end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  /// Saves the epoch and the position in it. Samples that a loader's workers have fetched ahead
  /// count as taken.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Restores what save wrote. RUEDA_INVALID_ARGUMENT, with nothing changed: it was saved with
  /// another size, number of ranks, seed or other options.
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  class RUEDA_TORCH_LOCAL Impl;
  explicit DistributedSampler(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  RUEDA_TORCH_LOCAL Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

/// Balances samples of known cost (such as a sentence's length): in each step all ranks get the
/// same number of samples of nearly the same cost, so no rank waits for the others. It sorts the
/// samples by cost and takes them in groups of one per rank. The order of the groups and the ranks
/// within a group are random. Which samples are repeated, dropped or left over is random too; those
/// left over come last. Bagua's LoadBalancingDistributedSampler does the same (arXiv 2107.01499).
///
/// Costs have any unit, are finite, and are the same on all ranks. In each epoch, up to
/// `random_level` times the range of all costs is added to each cost, so that groups differ between
/// epochs. At 0, the best balance, only samples of equal cost change places.
class RUEDA_TORCH_API LoadBalancingSampler : public DistributedSampler {
 public:
  /// One cost for each sample. RUEDA_INVALID_ARGUMENT: a cost or random_level is not finite,
  /// random_level is below 0, or reset is given a size other than the number of costs.
  explicit LoadBalancingSampler(std::vector<double> costs, double random_level = 0,
                                DistributedSamplerOptions options = {},
                                const Part& part = global_process_set);
  /// Calls `cost` once for each index, now.
  LoadBalancingSampler(size_t size, const std::function<double(size_t)>& cost,
                       double random_level = 0, DistributedSamplerOptions options = {},
                       const Part& part = global_process_set);
};

// Learning rates -------------------------------------------------------------------------------

/// Multiplies the learning rate of each of the optimizer's groups by `factor`: by size(), for
/// example, for the linear scaling rule of arXiv 1706.02677. Does not communicate.
/// RUEDA_INVALID_ARGUMENT: the factor is not finite or below 0.
RUEDA_TORCH_API void scale_learning_rate(torch::optim::Optimizer& optimizer, double factor);

/// Gradual warm-up (arXiv 1706.02677, 2.2). It begins with the optimizer's learning rates divided
/// by the number of ranks, and raises them in equal steps to the full rates. It sets the first
/// rates at once. Call step() after each step of the optimizer. After `steps` steps it leaves the
/// learning rates alone, so that another scheduler may take over. Does not communicate. The
/// optimizer is borrowed, with the groups that it has now, and must outlive this object.
class RUEDA_TORCH_API WarmupSchedule : public torch::optim::LRScheduler {
 public:
  /// Sets the first rates. `process_set` gives the number of ranks.
  WarmupSchedule(torch::optim::Optimizer& optimizer, unsigned steps,
                 ProcessSet process_set = global_process_set);
  /// Whether it has made its last change.
  bool done() const { return step_count_ >= steps_; }

 private:
  std::vector<double> get_lrs() override;
  RUEDA_TORCH_LOCAL std::vector<double> RatesAfter(unsigned steps) const;

  const unsigned steps_;
  const double start_;             // what the first rates are multiplied by
  const std::vector<double> lrs_;  // the last ones
};

// Metrics --------------------------------------------------------------------------------------

/// Averages the ranks' values, weighted by `count`: the number of samples behind each rank's
/// values. One operation for all values, with the same bits on all ranks. A rank whose count is 0
/// may have any values, NaN too. RUEDA_INVALID_ARGUMENT on all ranks: the keys differ (the message
/// names one), a count is negative or not finite, or all counts are 0.
RUEDA_TORCH_API std::map<std::string, double> average_metrics(
    const std::map<std::string, double>& metrics, double count = 1,
    const std::string& name = "average_metrics", ProcessSet process_set = global_process_set);

// Replicas -------------------------------------------------------------------------------------

/// Checks that all ranks have the same tensors, by name, type, shape and bits. (So NaNs are equal
/// if their bits are, and 0 and -0 are not.) It compares 64-bit fingerprints: it reads each tensor
/// once, and moves 8 bytes per rank if all is well. Skips undefined tensors.
///
/// RUEDA_FAILED_PRECONDITION on all ranks: "replicas differ: 'out.weight' on rank 2 (2 of 5
/// tensors)". The message names the ranks that the fewest others are equal to; of two ranks, the
/// second one.
RUEDA_TORCH_API void check_replicas(const NamedTensors& tensors,
                                    const std::string& name = "check_replicas",
                                    ProcessSet process_set = global_process_set);
/// Checks all parameters and buffers of a module.
RUEDA_TORCH_API void check_replicas(const torch::nn::Module& module,
                                    const std::string& name = "check_replicas",
                                    ProcessSet process_set = global_process_set);

/// Checks what an optimizer stores for each parameter, as `optimizer.group0.1.exp_avg`, and its
/// settings and step counters, together as `optimizer.settings`. Works for the optimizers that
/// broadcast_optimizer_state works for.
///
/// RUEDA_INVALID_ARGUMENT on all ranks: the optimizers differ in their type, or in their
/// parameters, groups or order; or the type is another one.
RUEDA_TORCH_API void check_replicas(torch::optim::Optimizer& optimizer,
                                    const std::string& name = "check_replicas",
                                    ProcessSet process_set = global_process_set);

/// Calls check_replicas every `every_n_steps` steps. All ranks must count the same steps.
class RUEDA_TORCH_API ReplicaCheck {
 public:
  /// RUEDA_INVALID_ARGUMENT: every_n_steps is below 1.
  explicit ReplicaCheck(int64_t every_n_steps, std::string name = "replica_check",
                        ProcessSet process_set = global_process_set);
  /// Counts a step, and checks the module if it is time.
  void step(const torch::nn::Module& module);

 private:
  const int64_t every_n_steps_;
  const std::string name_;
  const ProcessSet process_set_;
  int64_t steps_ = 0;
};

/// @}

}  // namespace rueda::libtorch

#endif  // RUEDA_TRAINING_HPP_
