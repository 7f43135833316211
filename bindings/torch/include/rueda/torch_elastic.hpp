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
/// belong to one membership.
#ifndef RUEDA_TORCH_ELASTIC_HPP_
#define RUEDA_TORCH_ELASTIC_HPP_

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "rueda/elastic.hpp"
#include "rueda/torch.hpp"

namespace rueda::libtorch::elastic {

/// \addtogroup lt_elastic
/// @{

using rueda::elastic::HostsUpdated;
using rueda::elastic::membership_info;
using rueda::elastic::run;
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
    Keep();
  }

  void save() override {
    Keep();
    values_.save();
  }

  /// Gradients are dropped: they were on their way when a rank was lost.
  void restore() override {
    const c10::NoGradGuard guard;
    const std::vector<at::Tensor> tensors = Tensors();
    for (size_t i = 0; i < tensors.size(); ++i) at::Tensor(tensors[i]).copy_(kept_[i]);
    for (at::Tensor& parameter : module_.parameters()) parameter.mutable_grad().reset();
    std::istringstream stream(kept_optimizer_);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    optimizer_.load(archive);
    values_.restore();
  }

  void sync(int source) override {
    broadcast_parameters(module_, source);
    broadcast_optimizer_state(optimizer_, source);
    values_.sync(source);
  }

 private:
  std::vector<at::Tensor> Tensors() const {
    std::vector<at::Tensor> tensors = module_.parameters();
    for (const at::Tensor& buffer : module_.buffers()) tensors.push_back(buffer);
    return tensors;
  }

  void Keep() {
    const c10::NoGradGuard guard;
    const std::vector<at::Tensor> tensors = Tensors();
    kept_.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (kept_[i].defined() && kept_[i].sizes() == tensors[i].sizes()) {
        kept_[i].copy_(tensors[i]);
      } else {
        kept_[i] = tensors[i].detach().clone();
      }
    }
    torch::serialize::OutputArchive archive;
    optimizer_.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    kept_optimizer_ = stream.str();
  }

  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  rueda::elastic::State values_;
  std::vector<at::Tensor> kept_;
  std::string kept_optimizer_;
};

/// @}

}  // namespace rueda::libtorch::elastic

#endif  // RUEDA_TORCH_ELASTIC_HPP_
