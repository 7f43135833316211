#include "examples/trainer/trainer.h"

#include <rueda/run.hpp>
#include <rueda/torch_elastic.hpp>
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
#include <utility>

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
  std::string mine =
      "device " + options.device + ", strategy " + options.strategy + ", precision " +
      options.precision + ", scale " + Exact(scaler.initial_scale) + ", growth_factor " +
      Exact(scaler.growth_factor) + ", backoff_factor " + Exact(scaler.backoff_factor) +
      ", growth_interval " + std::to_string(scaler.growth_interval) + ", max_epochs " +
      std::to_string(options.max_epochs) + ", max_norm " + Exact(options.max_norm) + ", seed " +
      std::to_string(options.seed) + ", elastic " + std::to_string(options.elastic) +
      ", commit_steps " + std::to_string(options.commit_steps) + ", resume '" + options.resume +
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

// Means over the samples of this rank's batches, and of all ranks' as often as they are collected.
class Means {
 public:
  // With these names, also if there is no batch: all ranks have the same. `all`: what was collected
  // before.
  explicit Means(const std::map<std::string, Function>& functions, Metrics all = {},
                 double all_samples = 0)
      : all_(std::move(all)), all_samples_(all_samples) {
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
  // Adds those of all ranks since the last time, and begins anew. Collective.
  void Collect() {
    const Metrics since = hvd::average_metrics(Get(), samples_, "trainer.metrics");
    const double samples = hvd::allreduce(torch::tensor(samples_, torch::kDouble),
                                          {.name = "trainer.samples", .op = hvd::Sum})
                               .item<double>();
    for (const auto& [name, mean] : since) {
      all_[name] = (all_[name] * all_samples_ + mean * samples) / (all_samples_ + samples);
    }
    all_samples_ += samples;
    samples_ = 0;
    for (auto& [name, sum] : sums_) sum = 0;
    on_device_.clear();
  }
  const Metrics& all() const { return all_; }
  double all_samples() const { return all_samples_; }

 private:
  Metrics all_;
  double all_samples_;
  Metrics sums_;
  std::map<std::string, torch::Tensor> on_device_;
  double samples_ = 0;
};

// The learning rates of the optimizer's groups before the schedule: there again when it goes.
class KeepsRates {
 public:
  explicit KeepsRates(const FitArguments& arguments)
      : optimizer_(arguments.optimizer), scheduled_(arguments.learning_rate != nullptr) {
    for (auto& group : optimizer_.param_groups()) rates_.push_back(group.options().get_lr());
  }
  void Scale(double factor) const {
    if (!scheduled_) return;
    for (size_t group = 0; group < rates_.size(); ++group) {
      optimizer_.param_groups()[group].options().set_lr(rates_[group] * factor);
    }
  }

 private:
  torch::optim::Optimizer& optimizer_;
  const bool scheduled_;
  std::vector<double> rates_;
};

// Of all that JSON can't write, too.
json ToJson(const Metrics& metrics) {
  json all = json::object();
  for (const auto& [name, value] : metrics) all[name] = Exact(value);
  return all;
}

Metrics ToMetrics(const json& all) {
  Metrics metrics;
  for (const auto& [name, value] : all.items()) {
    metrics[name] = std::strtod(value.get<std::string>().c_str(), nullptr);
  }
  return metrics;
}

// What an elastic training has besides the model, and who makes its strategies.
struct Elastic {
  hvd::elastic::StrategyState& state;
  std::string& progress;  // JSON, as of the last commit; "": there was none
};

// One call of Fit; of an elastic one, what it does in one membership.
class Fitting : public Training {
 public:
  Fitting(const Trainer& trainer, const FitArguments& arguments, const KeepsRates& rates,
          Elastic* elastic = nullptr)
      : trainer_(trainer),
        options_(trainer.options()),
        arguments_(arguments),
        rates_(rates),
        elastic_(elastic),
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
    // It was made when the ranks were others.
    if (elastic_ != nullptr && validates) arguments.validation->Deal(hvd::global_process_set);
    steps_in_epoch = arguments.train.steps();
    Check();
    PutOn(device_, arguments.model.module());
    if (elastic_ == nullptr) {
      own_strategy_ = hvd::make_strategy(options_.strategy, arguments.model, arguments.optimizer,
                                         options_.strategy_options);
    }
    if (type_ == torch::kHalf) scaler_.emplace(options_.loss_scaler);
    if (elastic_ != nullptr && !elastic_->progress.empty()) {
      GoOn();
    } else if (!options_.resume.empty()) {
      Load();
    }
    first_epoch = epoch + 1;
  }

  FitResult Train() {
    const auto start = std::chrono::steady_clock::now();
    ForEach("OnCheck", &Callback::OnCheck);
    ForEach("OnBegin", &Callback::OnBegin);
    if (elastic_ != nullptr && elastic_->progress.empty()) Commit();
    bool stopped = AnyoneStops();  // it may have come to its end before
    while (!stopped && epoch < max_epochs) {
      ++epoch;
      TrainEpoch();
      stopped = AnyoneStops() && epoch < max_epochs;
    }
    // No epoch has done it, or a commit has come after it.
    if (elastic_ != nullptr || epoch < first_epoch) strategy().finish();
    ForEach("OnEnd", &Callback::OnEnd);
    rates_.Scale(1);
    return {epoch, step,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
            stopped, metrics};
  }

  hvd::Strategy& strategy() override {
    return elastic_ != nullptr ? elastic_->state.strategy() : *own_strategy_;
  }

  void Save(const std::string& path) override {
    Progress progress{epoch, step, ranks, GetScalers(), json::object()};
    Together("save", [&] {
      if (rank != 0) return;
      progress.callbacks = GetCallbacks();
      WriteProgress(path, progress);
    });
    strategy().save(path);
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

  // By rank; empty without one. Collective.
  json GetScalers() const {
    json scalers = json::array();
    if (!scaler_) return scalers;
    const hvd::LossScaler::State& state = scaler_->state();
    const json mine = {state.scale, state.finite_steps, state.skipped_steps};
    for (const std::string& text :
         hvd::allgather_object(mine.dump(), {.name = "trainer.scalers"})) {
      scalers.push_back(json::parse(text));
    }
    return scalers;
  }
  // One of the same number in another membership, or else the first one's: all are alike where
  // gradients are reduced.
  void SetScaler(const json& scalers) {
    if (!scaler_ || scalers.empty()) return;
    const size_t mine = static_cast<size_t>(rank) < scalers.size() ? static_cast<size_t>(rank) : 0;
    const json& state = scalers.at(mine);
    scaler_->set_state({state.at(0), state.at(1), state.at(2)});
  }
  json GetCallbacks() const {
    json states = json::object();
    for (const auto& callback : arguments_.callbacks) {
      json state = callback->SaveState();
      if (!state.is_null()) states[callback->name()] = std::move(state);
    }
    return states;
  }
  void SetCallbacks(const json& states) {
    for (const auto& callback : arguments_.callbacks) {
      const auto it = states.find(callback->name());
      if (it != states.end()) callback->LoadState(*it);
    }
  }

  // `means`: of an epoch that has not ended.
  void Commit(const Means* means = nullptr) {
    json all = {{"epoch", epoch - (means != nullptr ? 1 : 0)},
                {"step", step},
                {"processed", means != nullptr ? arguments_.train.processed() : 0},
                {"metrics", ToJson(metrics)},
                {"means", means != nullptr ? ToJson(means->all()) : json::object()},
                {"samples", means != nullptr ? means->all_samples() : 0},
                {"scalers", GetScalers()}};
    Together("commit", [&] {
      if (rank == 0) all["callbacks"] = GetCallbacks();
    });
    // A path may be no UTF-8.
    elastic_->progress = hvd::broadcast_object(
        all.dump(-1, ' ', false, json::error_handler_t::replace), 0, {.name = "trainer.progress"});
    elastic_->state.commit();
  }

  // As of the last commit, by other ranks perhaps.
  void GoOn() {
    Together("progress", [&] {
      const json all = json::parse(elastic_->progress);
      epoch = all.at("epoch");
      step = all.at("step");
      processed_ = all.at("processed");
      metrics = ToMetrics(all.at("metrics"));
      means_before_ = ToMetrics(all.at("means"));
      samples_before_ = all.at("samples");
      SetScaler(all.at("scalers"));
      SetCallbacks(all.at("callbacks"));
    });
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
      if (progress.ranks != ranks && elastic_ == nullptr) {
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
        SetCallbacks(progress.callbacks);
        SetScaler(progress.scalers);
      } catch (const json::exception& error) {
        throw std::runtime_error(ProgressPath(path) +
                                 " is damaged, or of another trainer: " + error.what());
      }
    });
    strategy().load(path);
    epoch = progress.epoch;
    step = progress.step;
  }

  void TrainEpoch() {
    // By epoch, so that a training that goes on draws what an uninterrupted one would have drawn.
    const int64_t before = std::exchange(processed_, 0);
    torch::manual_seed(options_.seed + 1'000'003 * static_cast<uint64_t>(epoch) +
                       7'919 * static_cast<uint64_t>(rank) +
                       104'729 * static_cast<uint64_t>(before));
    arguments_.train.Begin(epoch, before);
    const int64_t steps = arguments_.train.steps();
    Means means({{"loss", arguments_.loss}}, std::exchange(means_before_, {}),
                std::exchange(samples_before_, 0));
    for (int64_t i = 0; i < steps; ++i) {
      const std::optional<Batch> batch = arguments_.train.Next();
      if (!batch) Refuse("batch " + std::to_string(i + 1) + " of the epoch is missing");
      Step({batch->input.to(device_), batch->target.to(device_)}, &means);
      ++step;
      for (const auto& callback : arguments_.callbacks) callback->OnStep(*this);
      if (elastic_ == nullptr || step % options_.commit_steps != 0 || i + 1 == steps) continue;
      means.Collect();
      Commit(&means);
    }
    strategy().finish();
    if (elastic_ != nullptr) {
      if (steps > 0) means.Collect();
      metrics = means.all();
      if (scaler_) metrics["loss_scale"] = scaler_->scale();
    } else {
      Metrics own = means.Get();
      if (scaler_) own["loss_scale"] = scaler_->scale();
      metrics = hvd::average_metrics(own, means.samples(), "trainer.metrics");
    }
    if (arguments_.validation != nullptr) {
      for (const auto& [name, value] : trainer_.Evaluate(arguments_.model, *arguments_.validation,
                                                         arguments_.loss, arguments_.metrics)) {
        metrics["val_" + name] = value;
      }
    }
    ForEach("OnMetrics", &Callback::OnMetrics);
    ForEach("OnEpoch", &Callback::OnEpoch);
    ForEach("OnCheckpoint", &Callback::OnCheckpoint);
    if (elastic_ != nullptr) Commit();
  }

  void Step(const Batch& batch, Means* means) {
    hvd::Strategy& strategy = this->strategy();
    if (arguments_.learning_rate) rates_.Scale(arguments_.learning_rate(step));
    strategy.zero_grad();
    torch::Tensor loss;
    {
      const hvd::Autocast autocast(type_);
      loss = arguments_.loss(strategy.forward(batch.input), batch.target);
    }
    strategy.backward(scaler_ ? scaler_->scale(loss) : loss);
    if (options_.max_norm > 0) {
      if (scaler_) (void)scaler_->unscale(strategy);
      (void)strategy.clip_grad_norm(options_.max_norm);
    }
    if (scaler_) {
      (void)scaler_->step(strategy);
    } else {
      strategy.step();
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
  const KeepsRates& rates_;
  Elastic* const elastic_;  // null: it is not
  const torch::ScalarType type_;
  const torch::Device device_;
  std::unique_ptr<hvd::Strategy> own_strategy_;  // unless it is elastic
  std::optional<hvd::LossScaler> scaler_;
  // Of the next epoch, what was done before this membership.
  int64_t processed_ = 0;
  Metrics means_before_;
  double samples_before_ = 0;
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
  if (options_.commit_steps < 1) Refuse("commit_steps is below 1");
  if (options_.elastic && options_.devices != 0) {
    Refuse("an elastic training has as many ranks as ruedarun --min-np gives it: leave devices 0");
  }
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
  int status = 0;
  try {
    status = on_rank();
  } catch (const Dismissed&) {
    return 0;
  }
  hvd::shutdown();
  return status;
}

FitResult Trainer::Fit(const FitArguments& arguments) const {
  const KeepsRates rates(arguments);
  if (!options_.elastic) return Fitting(*this, arguments, rates).Train();
  PutOn(DeviceOf(options_.device), arguments.model.module());
  std::string progress;
  hvd::elastic::StrategyState state(
      {.strategy = options_.strategy, .strategy_options = options_.strategy_options},
      arguments.model, arguments.optimizer, progress);
  FitResult result;
  const auto start = std::chrono::steady_clock::now();
  const bool wanted = hvd::elastic::run(state, [&] {
    Elastic elastic{state, progress};
    result = Fitting(*this, arguments, rates, &elastic).Train();
  });
  if (!wanted) throw Dismissed();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
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
    loader.Begin(1, 0);
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
