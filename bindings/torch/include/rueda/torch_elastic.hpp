/// \file
/// Elastic jobs in LibTorch: a model and its optimizer survive lost ranks, and go to ranks that
/// come.
///
///     #include <rueda/torch_elastic.hpp>
///     namespace hvd = rueda::libtorch;
///
///     hvd::init();
///     Net model;
///     torch::optim::SGD sgd(model->parameters(), 0.01);
///     int step = 0;
///     hvd::elastic::State state(*model, sgd, step);
///     const bool wanted = hvd::elastic::run(state, [&] {
///       hvd::DistributedOptimizer optimizer(sgd, model->named_parameters());
///       for (; step < 1000; ++step) {
///         ...
///         optimizer.step();
///         if (step % 10 == 9) state.commit();
///       }
///     });
///     if (wanted) hvd::shutdown();
///
/// Make the DistributedOptimizer, and whatever else has operations under way, in the function: they
/// belong to one membership. With a strategy (strategy.hpp), a StrategyState makes it:
///
///     hvd::elastic::StrategyState state({.strategy = "fsdp"}, model, adam, step);
///     const bool wanted = hvd::elastic::run(state, [&] {
///       for (; step < 1000; ++step) {
///         hvd::Strategy& strategy = state.strategy();
///         strategy.zero_grad();
///         strategy.backward(torch::mse_loss(strategy.forward(x), y));
///         strategy.step();
///         if (step % 10 == 9) state.commit();
///       }
///     });
#ifndef RUEDA_TORCH_ELASTIC_HPP_
#define RUEDA_TORCH_ELASTIC_HPP_

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rueda/elastic.hpp"
#include "rueda/strategy.hpp"
#include "rueda/torch.hpp"
#include "rueda/training.hpp"

namespace rueda::libtorch {
class StrategyKeeper;
}  // namespace rueda::libtorch

namespace rueda::libtorch::elastic {

/// \addtogroup lt_elastic
/// @{

using rueda::elastic::HostsUpdated;
using rueda::elastic::membership_info;
using rueda::elastic::Own;
using rueda::elastic::Redundancy;
using rueda::elastic::run;
using rueda::elastic::Sharded;
using rueda::elastic::StateBase;

/// A model, its optimizer, and variables as of rueda::elastic::State. All of them outlive it. A
/// commit copies the parameters and buffers, and writes the optimizer's state into memory. The
/// optimizer is one that broadcast_optimizer_state knows.
class State : public StateBase {
 public:
  /// Keeps them as they are.
  template <typename... Values>
  State(torch::nn::Module& module, torch::optim::Optimizer& optimizer, Values&... values)
      : module_(module), optimizer_(optimizer), values_(values...) {
    Keep(/*with_earlier=*/false);
  }

  void save() override {
    values_.Gather(in_background());
    const bool with_earlier = values_.is_on_its_way();
    Keep(with_earlier);
    values_.KeepAll(with_earlier);
  }
  bool go_back() override {
    if (!values_.go_back()) return false;  // a save that fails drops theirs first
    copies_.GoBack();
    restore();
    return true;
  }

  /// Gradients are dropped: they were on their way when a rank was lost.
  void restore() override {
    const c10::NoGradGuard guard;
    const Copy& kept = copies_.last();
    if (SumOf(kept.tensors, kept.optimizer) != kept.sum) {
      rueda::detail::ThrowDamaged("the model or the optimizer");
    }
    const std::vector<at::Tensor> tensors = Tensors();
    for (size_t i = 0; i < tensors.size(); ++i) at::Tensor(tensors[i]).copy_(kept.tensors[i]);
    for (at::Tensor& parameter : module_.parameters()) parameter.mutable_grad().reset();
    std::istringstream stream(kept.optimizer);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer_.load(archive);
    values_.restore();
  }

  void sync(int source) override {
    broadcast_parameters(module_, source);
    broadcast_optimizer_state(optimizer_, source);
    check_replicas(module_, "rueda.elastic.check");
    check_replicas(optimizer_, "rueda.elastic.check_optimizer");
    values_.sync(source);
  }

  void before_change() override { values_.before_change(); }

 private:
  struct Copy {
    std::vector<at::Tensor> tensors;
    std::string optimizer;
    uint64_t sum = 0;
  };

  std::vector<at::Tensor> Tensors() const {
    std::vector<at::Tensor> tensors = module_.parameters();
    for (const at::Tensor& buffer : module_.buffers()) tensors.push_back(buffer);
    return tensors;
  }

  void Keep(bool with_earlier) {
    copies_.Keep(with_earlier, [this](Copy* copy) { Fill(copy); });
  }

  // All memory is there before anything is replaced.
  void Fill(Copy* copy) const {
    const c10::NoGradGuard guard;
    torch::serialize::OutputArchive archive;
    optimizer_.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    const std::vector<at::Tensor> tensors = Tensors();
    Copy next = {copy->tensors, stream.str()};
    next.sum = SumOf(tensors, next.optimizer);
    next.tensors.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      at::Tensor& kept = next.tensors[i];
      const bool fits = kept.defined() && kept.sizes() == tensors[i].sizes() &&
                        kept.options().type_equal(tensors[i].options());
      if (!fits) kept = at::empty_like(tensors[i]);
    }
    for (size_t i = 0; i < tensors.size(); ++i) next.tensors[i].copy_(tensors[i]);
    *copy = std::move(next);
  }

  static uint64_t SumOf(const std::vector<at::Tensor>& tensors, const std::string& optimizer) {
    return FingerprintOf(tensors) ^ rueda::detail::FingerprintOf(optimizer);
  }

  friend StrategyKeeper;
  // Of all that are defined. Of those on a device it is made there.
  RUEDA_TORCH_API static uint64_t FingerprintOf(const std::vector<at::Tensor>& tensors);

  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  rueda::elastic::State values_;
  rueda::detail::KeptCopies<Copy> copies_;
};

/// Options of a StrategyState.
struct StrategyStateOptions {
  /// As make_strategy has it.
  std::string strategy = "ddp";
  /// The process set is the world; `broadcast` is not looked at.
  StrategyOptions strategy_options = {};
  /// sharded, fsdp, pipeline: what may be lost of those that have something alone.
  Redundancy redundancy = Redundancy::kRank;
};

/// A model, its optimizer, the strategy that trains them, and variables as of
/// rueda::elastic::State. All but the strategy outlive it.
///
/// Each membership has a strategy of its own, which the state makes. What all ranks have alike is
/// kept as in State. What a rank has alone (the optimizer's state with sharded, fsdp and pipeline,
/// and with fsdp the parameters) a commit copies to where it outlives that rank, as of Sharded, and
/// another membership, of any number of ranks, shares it out anew. If all ranks of a host are lost
/// at once, and it is not told to survive that, all ranks throw RUEDA_DATA_LOSS.
///
/// A commit does what Strategy::finish does, but for fsdp's parameters, which stay distributed:
/// local_sgd, diloco, decentralized and async average then. What compression has lost is not kept.
/// If the model is used after `run`, let the function call strategy().finish() at its end.
/// Where a strategy does not work with a number of ranks, run throws RUEDA_INVALID_ARGUMENT, and
/// the job ends: keep to numbers that work by --min-np and --max-np.
class RUEDA_TORCH_API StrategyState : public StateBase {
 public:
  /// Keeps them as they are. RUEDA_INVALID_ARGUMENT: the optimizer is none that Strategy::save
  /// knows; there is no such strategy; the process set is another one than the world.
  template <typename... Values>
  StrategyState(const StrategyStateOptions& options, const Model& model,
                torch::optim::Optimizer& optimizer, Values&... values)
      : keeper_(MakeKeeper(options, model, optimizer)), values_(values...) {}

  /// That of the present membership: ask anew each time that `run` calls the function.
  /// RUEDA_FAILED_PRECONDITION: it has not called it yet.
  Strategy& strategy() const;

  /// Collective.
  void save() override;
  void restore() override;
  bool go_back() override;
  void sync(int source) override;
  void before_change() override;
  void reset() override;

 private:
  static std::shared_ptr<StrategyKeeper> MakeKeeper(const StrategyStateOptions& options,
                                                    const Model& model,
                                                    torch::optim::Optimizer& optimizer);

  std::shared_ptr<StrategyKeeper> keeper_;
  rueda::elastic::State values_;
};

/// A sampler for elastic jobs: when the ranks change, it distributes anew what has not been
/// processed in the epoch. No sample comes twice in an epoch, but for those that Remainder::kRepeat
/// repeats. Orders are as DistributedSampler's.
///
///     hvd::elastic::ElasticSampler sampler(data.size().value(), {.seed = 7});
///     hvd::elastic::State state(*model, sgd, sampler, epoch);
///     hvd::elastic::run(state, [&] {
///       for (; epoch < epochs; sampler.set_epoch(++epoch)) {
///         while (const auto batch = sampler.next(32)) {
///           ...
///           sampler.record_batch(32);
///           state.commit();
///         }
///       }
///     });
///
/// Copies share their state.
class RUEDA_TORCH_API ElasticSampler : public DistributedSampler {
 public:
  /// For a data set of `size` samples, for the ranks that there are whenever it distributes.
  /// `all_get_all`: each rank gets all samples, as the strategy `pipeline` wants it.
  explicit ElasticSampler(size_t size, DistributedSamplerOptions options = {},
                          bool all_get_all = false);

  /// Begins an epoch, of which nothing is processed.
  void set_epoch(size_t epoch);
  /// All ranks have processed one more batch, of up to `batch_size` samples each. They call it
  /// alike.
  void record_batch(size_t batch_size);
  /// How many samples, from the beginning of the epoch's order on, all ranks have processed.
  size_t processed() const;

  /// For State: the epoch, and what was processed.
  std::string to_bytes() const;
  /// For State: goes on from there, with the ranks that there are now.
  void from_bytes(std::string_view bytes);

 private:
  Part Own() const { return all_get_all_ ? Part(0, 1) : Part(global_process_set); }
  bool all_get_all_;
};

/// @}

}  // namespace rueda::libtorch::elastic

#endif  // RUEDA_TORCH_ELASTIC_HPP_
