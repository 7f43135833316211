#include "examples/trainer/trainer.h"

#include <rueda/run.hpp>
#include <rueda/training.hpp>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>

#include "examples/trainer/checkpoint.h"
#include "examples/trainer/files.h"

namespace trainer {
namespace {

namespace hvd = rueda::libtorch;
using nlohmann::json;

[[noreturn]] void Refuse(const std::string& message) {
  throw hvd::Error(RUEDA_INVALID_ARGUMENT, "trainer: " + message);
}

torch::ScalarType TypeOf(const std::string& precision) {
  if (precision == "32") return torch::kFloat;
  if (precision == "bf16") return torch::kBFloat16;
  if (precision == "16") return torch::kHalf;
  Refuse("there is no precision '" + precision + "'; there are 32, bf16, 16");
}

bool IsCuda(const std::string& device) {
  if (device == "cpu" || device == "cuda") return device == "cuda";
  Refuse("there is no device '" + device + "'; there are cpu, cuda");
}

torch::Device DeviceOf(const std::string& device) {
  return hvd::local_device(IsCuda(device) ? torch::kCUDA : torch::kCPU);
}

void PutOn(torch::Device device, torch::nn::Module& module) {
  bool is_there = true;
  for (const torch::Tensor& tensor : module.parameters()) is_there &= tensor.device() == device;
  for (const torch::Tensor& tensor : module.buffers()) is_there &= tensor.device() == device;
  if (!is_there) module.to(device);
}

void CheckDevices(int devices) {
  if (devices == 0 || devices == hvd::size()) return;
  throw hvd::Error(RUEDA_FAILED_PRECONDITION,
                   "trainer: devices is " + std::to_string(devices) + ", and the job has " +
                       std::to_string(hvd::size()) + (hvd::size() == 1 ? " rank" : " ranks") +
                       ": start it with ruedarun -np " + std::to_string(devices) +
                       ", or without a launcher in Trainer::Run, or set "
                       "devices to 0");
}

// Throws on all ranks what `fn` throws on one of them.
void Together(const std::string& what, const std::function<void()>& fn) {
  std::string error;
  try {
    fn();
  } catch (const std::exception& caught) {
    error = caught.what();
    if (error.empty()) error = "an error without a text";
  }
  const std::vector<std::string> errors = hvd::allgather_object(error, {.name = "trainer." + what});
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const bool on_all = std::set<std::string>(errors.begin(), errors.end()).size() == 1;
    throw hvd::Error(RUEDA_INVALID_ARGUMENT,
                     errors[rank] + (on_all ? "" : " (rank " + std::to_string(rank) + ")"));
  }
}

// What stands between commas, where two lists differ first.
std::pair<std::string, std::string> FirstDifference(const std::string& a, const std::string& b) {
  const auto item = [](const std::string& text, size_t begin) {
    return begin < text.size() ? text.substr(begin, text.find(", ", begin) - begin)
                               : "nothing more";
  };
  const size_t at =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const size_t comma = at == 0 ? std::string::npos : a.rfind(", ", at - 1);
  const size_t begin = comma == std::string::npos ? 0 : comma + 2;
  return {item(a, begin), item(b, begin)};
}

// Refuses what is not the same on all ranks.
void Agree(const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = hvd::allgather_object(mine, {.name = "trainer." + what});
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [first, other] = FirstDifference(all[0], all[rank]);
    Refuse("the ranks differ: rank 0 has " + first + "; rank " + std::to_string(rank) + " has " +
           other);
  }
}

// With all digits that tell it from others.
std::string Exact(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

void CheckThatRanksAgree(const TrainerOptions& options, const FitArguments& arguments) {
  const hvd::LossScalerOptions& scaler = options.loss_scaler;
  std::string mine = "device " + options.device + ", strategy " + options.strategy +
                     ", precision " + options.precision + ", scale " + Exact(scaler.initial_scale) +
                     ", growth_factor " + Exact(scaler.growth_factor) + ", backoff_factor " +
                     Exact(scaler.backoff_factor) + ", growth_interval " +
                     std::to_string(scaler.growth_interval) + ", max_epochs " +
                     std::to_string(options.max_epochs) + ", max_norm " + Exact(options.max_norm) +
                     ", seed " + std::to_string(options.seed) + ", resume '" + options.resume +
                     "', " + std::to_string(arguments.train.steps()) + " batches an epoch, " +
                     (arguments.learning_rate ? "a" : "no") + " learning-rate schedule, " +
                     (arguments.validation == nullptr ? "no " : "") + "validation, metrics";
  for (const auto& [name, function] : arguments.metrics) mine += " '" + name + "'";
  mine += ", callbacks";
  for (const auto& callback : arguments.callbacks) mine += " '" + callback->name() + "'";
  Agree("options", mine);
}

// While it lives, the modules' modes may be changed: it puts each one's back.
class KeepsModes {
 public:
  explicit KeepsModes(const torch::nn::Module& module) {
    for (const auto& each : module.modules()) modes_.emplace_back(each, each->is_training());
  }
  // The outer ones first, as they set the inner ones'.
  ~KeepsModes() {
    for (const auto& [module, training] : modes_) {
      if (module->is_training() != training) module->train(training);
    }
  }
  KeepsModes(const KeepsModes&) = delete;
  KeepsModes& operator=(const KeepsModes&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

// Means over the samples of this rank's batches.
class Means {
 public:
  // With these names, also if there is no batch: all ranks have the same.
  explicit Means(const std::map<std::string, Function>& functions) {
    for (const auto& [name, function] : functions) sums_[name] = 0;
  }
  void Add(const std::string& name, const torch::Tensor& mean, int64_t samples) {
    const auto count = static_cast<double>(samples);
    if (mean.is_cpu()) {
      sums_[name] += mean.item<double>() * count;
      return;
    }
    // To read it now would be to wait for the device.
    torch::Tensor& sum = on_device_[name];
    const torch::Tensor term = mean.detach().to(torch::kDouble) * count;
    sum = sum.defined() ? sum + term : term;
  }
  void Count(int64_t samples) { samples_ += static_cast<double>(samples); }
  double samples() const { return samples_; }
  Metrics Get() const {
    Metrics means = sums_;
    for (const auto& [name, sum] : on_device_) means[name] += sum.item<double>();
    for (auto& [name, value] : means) value = samples_ > 0 ? value / samples_ : 0;
    return means;
  }

 private:
  Metrics sums_;
  std::map<std::string, torch::Tensor> on_device_;
  double samples_ = 0;
};

// One call of Fit.
class Fitting : public Training {
 public:
  Fitting(const Trainer& trainer, const FitArguments& arguments)
      : trainer_(trainer),
        options_(trainer.options()),
        arguments_(arguments),
        type_(TypeOf(options_.precision)),
        device_(DeviceOf(options_.device)) {
    rank = hvd::rank();
    ranks = hvd::size();
    validates = arguments.validation != nullptr;
    max_epochs = options_.max_epochs;
    if (hvd::has_own_batches(options_.strategy)) {
      arguments.train.Deal(hvd::global_process_set);
    } else {
      arguments.train.Deal(hvd::Part(0, 1));
    }
    steps_in_epoch = arguments.train.steps();
    Check();
    PutOn(device_, arguments.model.module());
    strategy_ = hvd::make_strategy(options_.strategy, arguments.model, arguments.optimizer,
                                   options_.strategy_options);
    if (type_ == torch::kHalf) scaler_.emplace(options_.loss_scaler);
    for (auto& group : arguments.optimizer.param_groups()) {
      rates_.push_back(group.options().get_lr());
    }
    if (!options_.resume.empty()) Load();
    first_epoch = epoch + 1;
  }

  FitResult Train() {
    const auto start = std::chrono::steady_clock::now();
    ForEach("OnCheck", &Callback::OnCheck);
    ForEach("OnBegin", &Callback::OnBegin);
    bool stopped = AnyoneStops();  // it may have come to its end before
    while (!stopped && epoch < max_epochs) {
      ++epoch;
      TrainEpoch();
      stopped = AnyoneStops() && epoch < max_epochs;
    }
    if (epoch < first_epoch) strategy_->finish();  // no epoch has done it
    ForEach("OnEnd", &Callback::OnEnd);
    for (size_t group = 0; arguments_.learning_rate && group < rates_.size(); ++group) {
      arguments_.optimizer.param_groups()[group].options().set_lr(rates_[group]);
    }
    return {epoch, step,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
            stopped, metrics};
  }

  hvd::Strategy& strategy() override { return *strategy_; }

  void Save(const std::string& path) override {
    Progress progress{epoch, step, ranks, json::array(), json::object()};
    if (scaler_) {
      const hvd::LossScaler::State& state = scaler_->state();
      const json mine = {state.scale, state.finite_steps, state.skipped_steps};
      for (const std::string& text :
           hvd::allgather_object(mine.dump(), {.name = "trainer.scalers"})) {
        progress.scalers.push_back(json::parse(text));
      }
    }
    Together("save", [&] {
      if (rank != 0) return;
      for (const auto& callback : arguments_.callbacks) {
        json state = callback->SaveState();
        if (!state.is_null()) progress.callbacks[callback->name()] = std::move(state);
      }
      WriteProgress(path, progress);
    });
    strategy_->save(path);
  }

 private:
  void Check() const {
    if (!arguments_.loss) Refuse("there is no loss function");
    CheckDevices(options_.devices);
    CheckThatRanksAgree(options_, arguments_);
    if (steps_in_epoch < 1) Refuse("an epoch has no batch: the data are fewer than a batch a rank");
    if (arguments_.validation != nullptr) {
      const torch::Tensor steps = torch::tensor(arguments_.validation->steps(), torch::kLong);
      if (hvd::allreduce(steps, {.name = "trainer.validation", .op = hvd::Sum}).item<int64_t>() ==
          0) {
        Refuse("the validation loader has no batch on any rank");
      }
    }
    std::set<std::string> names;
    for (const auto& callback : arguments_.callbacks) {
      if (!names.insert(callback->name()).second) {
        Refuse("two callbacks are called '" + callback->name() + "'");
      }
    }
  }

  // Each by itself: the next one's may be collective.
  void ForEach(const std::string& what, void (Callback::*function)(Training&)) {
    for (const auto& callback : arguments_.callbacks) {
      Together(what, [&] { ((*callback).*function)(*this); });
    }
  }

  void Load() {
    std::string path;
    Together("resume", [&] {
      if (rank != 0) return;
      path = options_.resume;
      if (std::filesystem::is_directory(path)) path = NewestCheckpoint(path);
      if (path.empty()) {
        throw std::runtime_error(options_.resume + " has no checkpoint to resume from");
      }
    });
    // Each host may have a directory of that name.
    resumed_from = path = hvd::broadcast_object(path, 0, {.name = "trainer.resumed_from"});
    Progress progress;
    std::string mine;
    Together("progress", [&] {
      progress = ReadProgress(path);
      if (progress.ranks != ranks) {
        throw std::runtime_error(path + " is of a training on " + std::to_string(progress.ranks) +
                                 " ranks, which can go on as it was on as many; here are " +
                                 std::to_string(ranks) +
                                 ". For its parameters alone there is LoadParameters");
      }
      char digests[64];
      std::snprintf(digests, sizeof digests, "%016" PRIx64 " and %016" PRIx64, Digest(path),
                    Digest(ProgressPath(path)));
      mine = path + " of epoch " + std::to_string(progress.epoch) + " and step " +
             std::to_string(progress.step) + " with the digests " + digests;
    });
    Agree("checkpoint", mine);
    Together("states", [&] {
      try {
        for (const auto& callback : arguments_.callbacks) {
          const auto it = progress.callbacks.find(callback->name());
          if (it != progress.callbacks.end()) callback->LoadState(*it);
        }
        if (!scaler_ || progress.scalers.empty()) return;
        const json& state = progress.scalers.at(static_cast<size_t>(rank));
        scaler_->set_state({state.at(0), state.at(1), state.at(2)});
      } catch (const json::exception& error) {
        throw std::runtime_error(ProgressPath(path) +
                                 " is damaged, or of another trainer: " + error.what());
      }
    });
    strategy_->load(path);
    epoch = progress.epoch;
    step = progress.step;
  }

  void TrainEpoch() {
    // By epoch, so that a training that goes on draws what an uninterrupted one would have drawn.
    torch::manual_seed(options_.seed + 1'000'003 * static_cast<uint64_t>(epoch) +
                       7'919 * static_cast<uint64_t>(rank));
    arguments_.train.Begin(epoch);
    Means means({{"loss", arguments_.loss}});
    for (int64_t i = 0; i < steps_in_epoch; ++i) {
      const std::optional<Batch> batch = arguments_.train.Next();
      if (!batch) Refuse("batch " + std::to_string(i + 1) + " of the epoch is missing");
      Step({batch->input.to(device_), batch->target.to(device_)}, &means);
      ++step;
      for (const auto& callback : arguments_.callbacks) callback->OnStep(*this);
    }
    strategy_->finish();
    Metrics own = means.Get();
    if (scaler_) own["loss_scale"] = scaler_->scale();
    metrics = hvd::average_metrics(own, means.samples(), "trainer.metrics");
    if (arguments_.validation != nullptr) {
      for (const auto& [name, value] : trainer_.Evaluate(arguments_.model, *arguments_.validation,
                                                         arguments_.loss, arguments_.metrics)) {
        metrics["val_" + name] = value;
      }
    }
    ForEach("OnMetrics", &Callback::OnMetrics);
    ForEach("OnEpoch", &Callback::OnEpoch);
    ForEach("OnCheckpoint", &Callback::OnCheckpoint);
  }

  void Step(const Batch& batch, Means* means) {
    for (size_t group = 0; arguments_.learning_rate && group < rates_.size(); ++group) {
      arguments_.optimizer.param_groups()[group].options().set_lr(rates_[group] *
                                                                  arguments_.learning_rate(step));
    }
    strategy_->zero_grad();
    torch::Tensor loss;
    {
      const hvd::Autocast autocast(type_);
      loss = arguments_.loss(strategy_->forward(batch.input), batch.target);
    }
    strategy_->backward(scaler_ ? scaler_->scale(loss) : loss);
    if (options_.max_norm > 0) {
      if (scaler_) (void)scaler_->unscale(*strategy_);
      (void)strategy_->clip_grad_norm(options_.max_norm);
    }
    if (scaler_) {
      (void)scaler_->step(*strategy_);
    } else {
      strategy_->step();
    }
    means->Add("loss", loss, batch.input.size(0));
    means->Count(batch.input.size(0));
  }

  bool AnyoneStops() {
    const torch::Tensor stops = torch::tensor(stop_ ? 1 : 0, torch::kInt);
    return hvd::allreduce(stops, {.name = "trainer.stop", .op = hvd::Max}).item<int>() != 0;
  }

  const Trainer& trainer_;
  const TrainerOptions& options_;
  const FitArguments& arguments_;
  const torch::ScalarType type_;
  const torch::Device device_;
  std::unique_ptr<hvd::Strategy> strategy_;
  std::optional<hvd::LossScaler> scaler_;
  std::vector<double> rates_;  // of the optimizer's groups, before the schedule
};

}  // namespace

double Training::Metric(const std::string& name) const {
  const auto it = metrics.find(name);
  if (it != metrics.end()) return it->second;
  std::string known;
  for (const auto& [other, value] : metrics) known += (known.empty() ? "" : ", ") + other;
  Refuse("there is no metric '" + name + "'; there are " + known);
}

void Training::CheckMetric(const std::string& name) const {
  if (validates || !name.starts_with("val_")) return;
  Refuse("there isn't going to be a metric '" + name + "', as there is no validation loader");
}

Trainer::Trainer(TrainerOptions options) : options_(std::move(options)) {
  if (options_.devices < 0) Refuse("devices is " + std::to_string(options_.devices));
  if (options_.max_epochs < 0) Refuse("max_epochs is " + std::to_string(options_.max_epochs));
  if (!(options_.max_norm >= 0)) Refuse("max_norm is below 0");
  (void)IsCuda(options_.device);
  (void)TypeOf(options_.precision);
  (void)hvd::has_own_batches(options_.strategy);
}

int Trainer::Run(const std::function<int()>& fn) const {
  const auto check = [&] {
    CheckDevices(options_.devices);
    (void)DeviceOf(options_.device);
  };
  const auto on_rank = [&] {
    check();
    torch::manual_seed(options_.seed);
    return fn();
  };
  hvd::init();
  if (options_.devices > 1 && hvd::size() == 1 && std::getenv("RUEDA_RANK") == nullptr) {
    hvd::shutdown();
    const std::vector<int> statuses = rueda::run(on_rank, options_.devices);
    return *std::max_element(statuses.begin(), statuses.end());
  }
  try {
    check();
  } catch (const std::exception&) {
    // Nothing has begun: the others are refused alike, and must not take this rank for lost.
    try {
      hvd::shutdown();
    } catch (const hvd::Error&) {
    }
    throw;
  }
  const int status = on_rank();
  hvd::shutdown();
  return status;
}

FitResult Trainer::Fit(const FitArguments& arguments) const {
  return Fitting(*this, arguments).Train();
}

Metrics Trainer::Evaluate(const hvd::Model& model, Loader& loader, const Function& loss,
                          const std::map<std::string, Function>& metrics) const {
  std::map<std::string, Function> functions = metrics;
  functions["loss"] = loss;
  const KeepsModes modes(model.module());
  model.module().eval();
  const torch::Device device = DeviceOf(options_.device);
  PutOn(device, model.module());
  Means means(functions);
  {
    const torch::NoGradGuard no_grad;
    const hvd::Autocast autocast(TypeOf(options_.precision));
    loader.Begin(1);
    while (const std::optional<Batch> batch = loader.Next()) {
      const torch::Tensor output = model.forward(batch->input.to(device));
      const torch::Tensor target = batch->target.to(device);
      const int64_t samples = batch->input.size(0);
      for (const auto& [name, function] : functions) {
        means.Add(name, function(output, target), samples);
      }
      means.Count(samples);
    }
  }
  return hvd::average_metrics(means.Get(), means.samples(), "trainer.evaluate");
}

}  // namespace trainer
