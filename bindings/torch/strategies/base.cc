#include "bindings/torch/strategies/base.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "bindings/torch/all_equal.h"
#include "bindings/torch/device.h"
#include "bindings/torch/named_tensors.h"
#include "bindings/torch/optimizer_fields.h"
#include "rueda/rueda.hpp"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

// What ranks must have alike: of the options, a line each.
std::string Describe(const StrategyOptions& options) {
  std::ostringstream text;
  text << "\nbroadcast " << options.broadcast << "\ngradient_predivide_factor "
       << options.gradient_predivide_factor << "\ncompression '" << options.compression
       << "'\nwarmup_steps " << options.warmup_steps << "\nzero_stage " << options.zero_stage
       << "\nbucket_bytes " << options.bucket_bytes << "\nlocal_steps " << options.local_steps
       << "\npeers '" << options.peers << "'\nhierarchical " << options.hierarchical
       << "\nmicro_batches " << options.micro_batches << "\nouter_lr " << options.outer_lr
       << "\nouter_momentum " << options.outer_momentum;
  return text.str();
}

// Of the optimizer.
std::string Describe(const Parameter& parameter) {
  return "\n'" + parameter.name + "' in group " + std::to_string(parameter.group) +
         " of the optimizer" + (parameter.trained ? "" : ", frozen");
}

// Of the model.
std::string Describe(const std::string& name, const at::Tensor& tensor) {
  std::string text = "\n'" + name + "' (" + at::toString(tensor.scalar_type());
  // Without the number, which is each rank's own.
  if (!tensor.is_cpu()) text += " on " + c10::DeviceTypeName(tensor.device().type(), true);
  for (const int64_t size : tensor.sizes()) text += " " + std::to_string(size);
  if (tensor.layout() == at::kStrided && !tensor.is_contiguous()) {
    text += ", strides";
    for (const int64_t stride : tensor.strides()) text += " " + std::to_string(stride);
  }
  return text + ")";
}

double SquaresOf(c10::ArrayRef<at::Tensor> gradients) {
  double squares = 0;
  std::vector<at::Tensor> norms;  // on a device: read together, as each reading waits for it
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
    const at::Tensor norm = values.norm(2, at::kDouble);
    if (!norm.is_cpu()) {
      norms.push_back(norm);
      continue;
    }
    squares += norm.item<double>() * norm.item<double>();
  }
  for (const std::vector<size_t>& places : ByDevice(norms)) {
    std::vector<at::Tensor> own;
    for (const size_t i : places) own.push_back(norms[i]);
    squares += at::stack(own).square_().sum().item<double>();
  }
  return squares;
}

// Scales gradients whose norm is `norm`, which it returns.
double Clip(c10::ArrayRef<at::Tensor> gradients, double norm, double max_norm) {
  if (!(max_norm >= 0)) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "clip_grad_norm: max_norm is " + std::to_string(max_norm) + "; at least 0");
  }
  const double factor = max_norm / (norm + 1e-6);  // as torch::nn::utils::clip_grad_norm_
  if (factor < 1) {
    for (const at::Tensor& gradient : gradients) at::Tensor(gradient).mul_(factor);
  }
  return norm;
}

// Multiplies what is defined of them by `factor`; whether it is finite. One pass over the memory.
bool Unscale(c10::ArrayRef<at::Tensor> gradients, double factor) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    all.push_back(gradient.is_sparse() ? gradient._values() : gradient);
  }
  bool finite = true;
  for (const std::vector<size_t>& places : ByDevice(all)) {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(all[places.front()].device());
    at::Tensor not_finite = at::zeros({1}, options);
    const at::Tensor by = at::full({1}, factor, options);
    std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
    for (const size_t i : places) by_type[all[i].scalar_type()].push_back(all[i]);
    for (const auto& [type, values] : by_type) {
      at::_amp_foreach_non_finite_check_and_unscale_(values, not_finite, by);
    }
    finite &= not_finite.item<float>() == 0;
  }
  return finite;
}

}  // namespace

BaseStrategy::BaseStrategy(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
                           StrategyOptions options)
    : name_(std::move(name)),
      model_(model),
      optimizer_(optimizer),
      options_(std::move(options)),
      context_(CurrentContext()) {
  if (model_.empty()) Refuse("the model is empty");
  ranks_ = rueda_process_set_size(context_, options_.process_set.id);
  index_ = rueda_process_set_rank(context_, options_.process_set.id);
  if (index_ < 0) {
    Refuse("this rank is not in process set " + std::to_string(options_.process_set.id));
  }
  size_t count = 0;
  detail::Check(rueda_process_set_ranks(context_, options_.process_set.id, &first_rank_, 1, &count),
                context_);
  std::string mistake;
  try {
    FindParameters();
    CheckOptions();
  } catch (const Error& error) {
    mistake = error.what();
  }
  CheckThatRanksAgree(mistake);
  CheckCompression();
  if (!options_.broadcast) return;
  broadcast_parameters(model_.module(), first_rank_, options_.process_set);
  if (OptimizerKindIndex(optimizer) >= 0) {
    broadcast_optimizer_state(optimizer, first_rank_, options_.process_set);
  }
}

void BaseStrategy::Refuse(const std::string& message) const {
  throw Error(RUEDA_INVALID_ARGUMENT, "strategy " + name_ + ": " + message);
}

// Those that may differ from rank to rank: others are the same, and wrong, on all.
void BaseStrategy::CheckOptions() const {
  if (options_.replicas < 1) {
    Refuse("replicas is " + std::to_string(options_.replicas) + "; at least 1");
  }
  if (!(options_.average_interval_ms >= 0)) Refuse("average_interval_ms must be at least 0");
  if (options_.stale_steps_max < 1) Refuse("stale_steps_max must be at least 1");
  // In those a process runs a part of the model, or several replicas, and not in every step all.
  static const std::unordered_set<std::string> splitters = {"dp", "ddp2", "mirrored", "pipeline"};
  if (!splitters.contains(name_)) return;
  for (const auto& item : model_.module().named_modules()) {
    if (dynamic_cast<const SyncBatchNormImpl*>(item.value().get()) == nullptr) continue;
    Refuse("'" + item.key() +
           "' is a SyncBatchNorm, whose forward pass waits for the other ranks', and not all of "
           "them make one here; use BatchNorm, or a strategy in which each rank runs the model");
  }
}

void BaseStrategy::FindParameters() {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer_) != nullptr) {
    Refuse("LBFGS evaluates the loss itself, and looks at all parameters together");
  }
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : model_.module().named_parameters()) {
    names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::unordered_set<const c10::TensorImpl*> found;
  for (size_t group = 0; group < optimizer_.param_groups().size(); ++group) {
    for (const at::Tensor& tensor : optimizer_.param_groups()[group].params()) {
      const auto it = names.find(tensor.unsafeGetTensorImpl());
      if (it == names.end()) {
        Refuse("parameter " + std::to_string(found.size()) +
               " of the optimizer is none of the model's");
      }
      if (!found.insert(it->first).second) Refuse("the optimizer has '" + it->second + "' twice");
      if (!tensor.is_cpu() && !tensor.is_cuda()) {
        Refuse("'" + it->second + "' is on " + tensor.device().str() +
               "; a model trains on the CPU or on CUDA");
      }
      parameters_.push_back({it->second, tensor, "." + it->second, group, tensor.requires_grad(),
                             tensor.scalar_type()});
    }
  }
  if (parameters_.empty()) Refuse("the optimizer has no parameters");
}

void BaseStrategy::CheckParameters() const {
  size_t count = 0;
  for (const auto& group : optimizer_.param_groups()) count += group.params().size();
  if (count == parameters_.size()) return CheckTypes();
  throw Error(RUEDA_FAILED_PRECONDITION, "strategy " + name_ + ": the optimizer has " +
                                             std::to_string(count) + " parameters, and had " +
                                             std::to_string(parameters_.size()) +
                                             " when the strategy was made: make it again");
}

void BaseStrategy::CheckTypes() const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.scalar_type() == parameter.type) continue;
    throw Error(RUEDA_FAILED_PRECONDITION,
                "strategy " + name_ + ": '" + parameter.name + "' is of " +
                    at::toString(parameter.tensor.scalar_type()) + ", and was of " +
                    at::toString(parameter.type) + " when the strategy was made: make it again");
  }
}

void BaseStrategy::CheckFrozen() const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad() == parameter.trained) continue;
    throw Error(RUEDA_FAILED_PRECONDITION, "strategy " + name_ + ": '" + parameter.name + "' was " +
                                               (parameter.trained ? "frozen" : "unfrozen") +
                                               " after the strategy was made: make it again");
  }
}

std::exception_ptr BaseStrategy::Mistake() const {
  try {
    CheckParameters();
    CheckFrozen();
  } catch (const Error&) {
    return std::current_exception();
  }
  return nullptr;
}

void BaseStrategy::Agree(const std::string& what, const std::string& error, rueda_status status) {
  const std::string name = NameOf(what);
  std::vector<int64_t> sizes(static_cast<size_t>(ranks_));
  detail::Bytes bytes;
  detail::Check(rueda_allgather_bytes(context_, options_.process_set.id, name.c_str(), error.data(),
                                      error.size(), &bytes.result, sizes.data()),
                context_);
  const char* next = bytes.data();
  for (const int64_t size : sizes) {
    if (size > 0) {
      throw Error(status,
                  "strategy " + name_ + ": " + std::string(next, static_cast<size_t>(size)));
    }
    next += size;
  }
}

void BaseStrategy::CheckCompression() {
  if (options_.compression.empty()) return;
  static const std::unordered_set<std::string> takers = {"ddp",     "horovod", "multi_worker",
                                                         "sharded", "fsdp",    "qadam"};
  if (!takers.contains(name_)) {
    Refuse("takes no compression; ddp, multi_worker, sharded, fsdp and qadam do");
  }
  Probe(options_.compression);
}

// By a small operation: the library knows what there is.
void BaseStrategy::Probe(const std::string& compressor) {
  std::vector<at::Tensor> probes;
  for (const at::Tensor& parameter : TrainedParameters()) {
    const bool is_new = std::none_of(probes.begin(), probes.end(), [&](const at::Tensor& probe) {
      return probe.device() == parameter.device();
    });
    if (is_new) probes.push_back(at::zeros({1}, parameter.options().dtype(at::kFloat)));
  }
  if (probes.empty()) probes.push_back(at::zeros({1}, at::kFloat));
  for (const at::Tensor& probe : probes) {
    try {
      Allreduce(probe, "compression", Average, {}, compressor);
    } catch (const Error& error) {
      if (error.status() == RUEDA_INVALID_ARGUMENT) Refuse(error.what());
      if (error.status() != RUEDA_UNIMPLEMENTED) throw;
      throw Error(RUEDA_UNIMPLEMENTED, "strategy " + name_ + ": " + error.what());
    }
  }
}

void BaseStrategy::ProbeOnDevices(const std::string& compressor) {
  for (const at::Tensor& parameter : TrainedParameters()) {
    if (!parameter.is_cpu()) return Probe(compressor);
  }
}

at::Device BaseStrategy::OnlyDevice() const {
  const at::Device device = parameters_.front().tensor.device();
  for (const auto& [name, tensor] : TensorsOf(model_.module())) {
    if (!tensor.defined() || tensor.device() == device) continue;
    Refuse("is for models on one device; '" + name + "' is on " + DeviceName(tensor.device()) +
           ", and '" + parameters_.front().name + "' on " + DeviceName(device));
  }
  return device;
}

// `mistake`: why this rank can't go on. "": it can.
void BaseStrategy::CheckThatRanksAgree(const std::string& mistake) {
  const int kind = OptimizerKindIndex(optimizer_);
  std::string mine = name_ + " with " + (kind < 0 ? "an optimizer" : OptimizerKindAt(kind).name) +
                     Describe(options_);
  for (const Parameter& parameter : parameters_) mine += Describe(parameter);
  for (const auto& [tensor_name, tensor] : TensorsOf(model_.module())) {
    if (tensor.defined()) mine += Describe(tensor_name, tensor);
  }
  mine += "\n";
  if (!mistake.empty()) mine = mistake;
  detail::Fingerprint print;
  print.Add(mine.data(), mine.size());
  if (AllEqual(print.value(), NameOf("fingerprint"), options_.process_set)) {
    if (!mistake.empty()) throw Error(RUEDA_INVALID_ARGUMENT, mistake);
    return;
  }
  const std::string expected = broadcast_object(
      mine, first_rank_, {.name = NameOf("model"), .process_set = options_.process_set});
  std::string error;
  if (!mistake.empty()) {
    error = "rank " + std::to_string(rueda_rank(context_)) + " has refused it: " + mistake;
  } else if (mine != expected) {
    const auto at = std::mismatch(mine.begin(), mine.end(), expected.begin(), expected.end());
    const auto line = [](const std::string& text, size_t place) {
      const size_t begin = place == 0 ? 0 : text.rfind('\n', place - 1) + 1;
      if (begin >= text.size()) return std::string("nothing");
      return text.substr(begin, text.find('\n', begin) - begin);
    };
    const size_t place = static_cast<size_t>(at.first - mine.begin());
    error = "the ranks differ: rank " + std::to_string(rueda_rank(context_)) + " has " +
            line(mine, place) + " where rank " + std::to_string(first_rank_) + " has " +
            line(expected, place);
  }
  Agree("agree", error);
}

NamedTensors BaseStrategy::NamedParameters() const {
  NamedTensors named;
  for (const Parameter& parameter : parameters_) {
    named.emplace_back(parameter.name, parameter.tensor);
  }
  return named;
}

std::vector<at::Tensor> BaseStrategy::TrainedParameters() const {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.requires_grad()) tensors.push_back(parameter.tensor);
  }
  return tensors;
}

void BaseStrategy::Allreduce(c10::ArrayRef<at::Tensor> tensors, const std::string& name,
                             reduce_op op, c10::ArrayRef<const char*> suffixes,
                             const std::string& compressor) {
  std::string whole = NameOf(name);
  for (const std::vector<size_t>& places : ByDevice(tensors)) {
    std::vector<at::Tensor> group;
    std::vector<const char*> names;
    for (const size_t i : places) {
      group.push_back(tensors[i]);
      if (!suffixes.empty()) names.push_back(suffixes[i]);
    }
    if (!names.empty()) {
      // A group has its first member's name: ranks that have others must meet all the same.
      group.insert(group.begin(), at::ones({1}, group.front().options()));
      names.insert(names.begin(), " begins");
    }
    Operation::Execute(context_, {.kind = RUEDA_ALLREDUCE,
                                  .tensors = group,
                                  .in_place = true,
                                  .grouped = true,
                                  .name = whole,
                                  .process_set = options_.process_set,
                                  .op = op,
                                  .suffixes = names,
                                  .compressor = compressor});
    whole += " elsewhere";
  }
}

void BaseStrategy::AverageGradients(const std::function<bool(const Parameter&)>& chosen) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<const char*> suffixes;
  std::vector<const Parameter*> theirs;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.tensor.requires_grad() || !chosen(parameter)) continue;
    theirs.push_back(&parameter);
    suffixes.push_back(parameter.suffix.c_str());
  }
  if (theirs.empty()) return;
  // Of each the share of the ranks that have one.
  at::Tensor used = at::zeros({static_cast<int64_t>(theirs.size())}, at::kFloat);
  for (size_t i = 0; i < theirs.size(); ++i) {
    at::Tensor& gradient = theirs[i]->tensor.mutable_grad();
    used.mutable_data_ptr<float>()[i] = gradient.defined() ? 1 : 0;
    if (!gradient.defined()) gradient = at::zeros_like(theirs[i]->tensor);
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    gradients.push_back(gradient);
  }
  gradients.push_back(used);
  suffixes.push_back(" used");
  Allreduce(gradients, "gradient", Average, suffixes);
  for (size_t i = 0; i < theirs.size(); ++i) {
    if (used.const_data_ptr<float>()[i] == 0) theirs[i]->tensor.mutable_grad().reset();
  }
}

at::Tensor BaseStrategy::forward(const at::Tensor& input) {
  return model_.forward(input);
}

double BaseStrategy::clip_grad_norm(double max_norm) {
  synchronize();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters_) {
    if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
  }
  return Clip(gradients, std::sqrt(SquaresOf(gradients)), max_norm);
}

bool BaseStrategy::unscale(double factor) {
  synchronize();
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters_) gradients.push_back(parameter.tensor.grad());
  return Unscale(gradients, factor);
}

bool BaseStrategy::UnscaleTogether(c10::ArrayRef<at::Tensor> gradients, double factor) {
  at::Tensor bad = at::full({1}, Unscale(gradients, factor) ? 0 : 1, at::kFloat);
  Allreduce(bad, "not finite", Max, {});
  return bad.item<float>() == 0;
}

double BaseStrategy::ClipTogether(c10::ArrayRef<at::Tensor> gradients, double max_norm) {
  const at::NoGradGuard no_grad;
  at::Tensor sum = at::scalar_tensor(SquaresOf(gradients), at::kDouble).reshape({1});
  Allreduce(sum, "norm", Sum, {});
  return Clip(gradients, std::sqrt(sum.item<double>()), max_norm);
}

}  // namespace rueda::libtorch
