// Learning rates, metrics, and whether replicas are equal.
#include "test/torch/training.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rueda/rueda.hpp"
#include "rueda/torch_elastic.hpp"
#include "rueda/training.hpp"
#include "test/torch/ranks.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;

std::vector<double> RatesOf(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

RANKS_TEST(LearningRate, WarmsUpToItsOwnFromAShareOfIt, 1, 3) {
  Net net;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->hidden->parameters(), std::make_unique<torch::optim::AdamOptions>(0.4));
  groups.emplace_back(net->out->parameters());
  torch::optim::Adam adam(groups, torch::optim::AdamOptions(0.1));
  hvd::scale_learning_rate(adam, 2);
  EXPECT_EQ(RatesOf(adam), (std::vector<double>{0.8, 0.2}));
  EXPECT_EQ(StatusOf([&] { hvd::scale_learning_rate(adam, NAN); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::scale_learning_rate(adam, -1); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(RatesOf(adam), (std::vector<double>{0.8, 0.2}));

  constexpr int kWarm = 4;
  hvd::WarmupSchedule schedule(adam, kWarm);
  for (int step = 0; step < kWarm; ++step) {
    EXPECT_FALSE(schedule.done());
    const double share = 1.0 / hvd::size() + (1 - 1.0 / hvd::size()) * step / kWarm;
    EXPECT_NEAR(RatesOf(adam)[0], 0.8 * share, 1e-12) << step;
    EXPECT_NEAR(RatesOf(adam)[1], 0.2 * share, 1e-12) << step;
    schedule.step();
  }
  EXPECT_TRUE(schedule.done());
  EXPECT_EQ(RatesOf(adam), (std::vector<double>{0.8, 0.2})) << "to the bit";
  hvd::scale_learning_rate(adam, 0.5);
  schedule.step();
  EXPECT_EQ(RatesOf(adam), (std::vector<double>{0.4, 0.1})) << "others' changes stay";
  hvd::WarmupSchedule none(adam, 0);
  EXPECT_TRUE(none.done());
  EXPECT_EQ(RatesOf(adam), (std::vector<double>{0.4, 0.1}));
}

RANKS_TEST(Metrics, AreAveragedByCount, 1, 2, 3) {
  const int ranks = hvd::size();
  const double mean = (ranks - 1) / 2.0;
  auto metrics = hvd::average_metrics({{"loss", hvd::rank()}, {"accuracy", 0.5}, {"", 1}});
  ASSERT_EQ(metrics.size(), 3u);
  EXPECT_DOUBLE_EQ(metrics["loss"], mean);
  EXPECT_DOUBLE_EQ(metrics["accuracy"], 0.5);
  EXPECT_DOUBLE_EQ(metrics[""], 1);
  // Rank r has r + 1 samples.
  double sum = 0, count = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += rank * (rank + 1), count += rank + 1;
  EXPECT_DOUBLE_EQ(hvd::average_metrics({{"loss", hvd::rank()}}, hvd::rank() + 1)["loss"],
                   sum / count);
  // One without samples has no mean.
  const bool has = hvd::rank() == 0;
  EXPECT_EQ(hvd::average_metrics({{"loss", has ? 3 : NAN}}, has ? 2 : 0)["loss"], 3);
  EXPECT_TRUE(hvd::average_metrics({}).empty());
  EXPECT_EQ(StatusOf([] { hvd::average_metrics({{"loss", 1}}, 0); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Metrics, OfOtherKeysAreAnErrorOnAllRanks, 2, 3) {
  std::string message;
  const auto average = [&](const std::map<std::string, double>& metrics, double count = 1) {
    return StatusOf([&] { hvd::average_metrics(metrics, count, "epoch"); }, &message);
  };
  const int last = hvd::size() - 1;
  const std::string rank = "rank " + std::to_string(last);
  EXPECT_EQ(average({{hvd::rank() == last ? "los" : "loss", 1}}), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(message, "epoch: the ranks' keys differ: rank 0 has 'loss' and " + rank + " has not");
  std::map<std::string, double> more = {{"a", 1}};
  if (hvd::rank() == last) more["b"] = 2;
  EXPECT_EQ(average(more), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(message, "epoch: the ranks' keys differ: " + rank + " has 'b' and rank 0 has not");
  EXPECT_EQ(average({{"a", 1}}, hvd::rank() == last ? -1 : 1), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("the count of " + rank), std::string::npos) << message;
  EXPECT_EQ(average({{"a", 1}}), RUEDA_OK);
}

// With a buffer, and a parameter that is not contiguous.
struct Mixed : torch::nn::Module {
  Mixed() {
    torch::manual_seed(3);
    net = register_module("net", Net());
    turned = register_parameter("turned", torch::randn({30, 40}).t());
    seen = register_buffer("seen", torch::arange(7));
    register_buffer("none", torch::Tensor());
  }
  Net net{nullptr};
  torch::Tensor turned, seen;
};

RANKS_TEST(Replicas, ThatAreEqualPass, 1, 2, 3) {
  const torch::NoGradGuard no_grad;
  Mixed model;
  hvd::check_replicas(model);
  // Equal by value: how they lie in memory is a rank's own business, and so is their order.
  const torch::Tensor laid_out = torch::randn({4, 6});
  const torch::Tensor turned = laid_out.t().contiguous().t();
  hvd::NamedTensors tensors = {{"a", hvd::rank() == 0 ? laid_out : turned},
                               {"b", torch::full({3}, NAN)}};
  if (hvd::rank() == 1) std::swap(tensors[0], tensors[1]);
  hvd::check_replicas(tensors);
  hvd::check_replicas(hvd::NamedTensors());
}

RANKS_TEST(Replicas, ThatDifferAreNamedOnAllRanks, 2, 3) {
  const torch::NoGradGuard no_grad;
  const int last = hvd::size() - 1;
  const std::string rank = " on rank " + std::to_string(last);
  // What rank `last` does to its model, and what everyone reads.
  const auto expect = [&](const std::function<void(Mixed&)>& change, const std::string& text) {
    Mixed model;
    if (hvd::rank() == last) change(model);
    std::string message;
    EXPECT_EQ(StatusOf([&] { hvd::check_replicas(model); }, &message), RUEDA_FAILED_PRECONDITION);
    EXPECT_EQ(message, "replicas differ: " + text);
  };
  const auto flip = [](const torch::Tensor& tensor, int64_t index, uint32_t bit) {
    tensor.view(-1).view(torch::kInt)[index].bitwise_xor_(static_cast<int64_t>(1) << bit);
  };
  expect([&](Mixed& model) { flip(model.net->out->weight, 40, 0); },
         "'net.out.weight'" + rank + " (1 of 6 tensors)");
  expect([&](Mixed& model) { model.net->hidden->bias[3] = NAN; },
         "'net.hidden.bias'" + rank + " (1 of 6 tensors)");
  expect([&](Mixed& model) { model.seen[6] = 9; }, "'seen'" + rank + " (1 of 6 tensors)");
  expect([&](Mixed& model) { model.turned[39][29] += 1e-3; },
         "'turned'" + rank + " (1 of 6 tensors)");
  expect([&](Mixed& model) { model.turned.neg_(); }, "'turned'" + rank + " (1 of 6 tensors)");
  expect(
      [&](Mixed& model) {
        model.turned.set_data(model.turned.reshape({30, 40}));
      },
      "'turned'" + rank + " (1 of 6 tensors)");
  expect(
      [&](Mixed& model) {
        for (const torch::Tensor& parameter : model.parameters()) parameter.add_(1);
      },
      "'turned'" + rank + "; 'net.hidden.weight'" + rank + "; 'net.hidden.bias'" + rank +
          "; ... (5 of 6 tensors)");
  expect([&](Mixed& model) { model.register_buffer("extra", torch::ones(1)); },
         "'extra' (not on all)" + rank + " (1 of 7 tensors)");
  // The majority is right, also against the first rank.
  Mixed model;
  if (hvd::rank() == 0) model.seen.add_(1);
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::check_replicas(model); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(message, std::string("replicas differ: 'seen' on rank ") +
                         (hvd::size() == 2 ? "1" : "0") + " (1 of 6 tensors)");
}

RANKS_TEST(Replicas, OptimizersThatDifferAreNamedOnAllRanks, 2, 3) {
  const int last = hvd::size() - 1;
  const std::string rank = " on rank " + std::to_string(last);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const torch::Tensor& parameter : net->parameters()) {
    parameter.mutable_grad() = torch::ones_like(parameter);
  }
  sgd.step();
  hvd::check_replicas(sgd);
  const auto text = [&] {
    std::string message;
    EXPECT_EQ(StatusOf([&] { hvd::check_replicas(sgd); }, &message), RUEDA_FAILED_PRECONDITION);
    return message;
  };
  auto& options = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
  if (hvd::rank() == last) options.lr(0.2);
  EXPECT_EQ(text(), "replicas differ: 'optimizer.settings'" + rank + " (1 of 5 tensors)");
  options.lr(0.1);
  hvd::check_replicas(sgd);
  auto& state = static_cast<torch::optim::SGDParamState&>(
      *sgd.state().at(net->parameters()[0].unsafeGetTensorImpl()));
  if (hvd::rank() == last) state.momentum_buffer().neg_();
  EXPECT_EQ(text(),
            "replicas differ: 'optimizer.group0.0.momentum_buffer'" + rank + " (1 of 5 tensors)");
  torch::optim::Adam adam(net->parameters());
  torch::optim::Optimizer& any =
      hvd::rank() == last ? static_cast<torch::optim::Optimizer&>(adam) : sgd;
  EXPECT_EQ(StatusOf([&] { hvd::check_replicas(any); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Replicas, OptimizersOfWhoHasNotJoinedAreChecked, 3) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  if (hvd::rank() < 2) hvd::check_replicas(sgd);
  rueda::join();
}

RANKS_TEST(Replicas, AreCheckedEveryNSteps, 2) {
  const torch::NoGradGuard no_grad;
  Mixed model;
  hvd::ReplicaCheck check(3);
  int caught = 0;
  for (int step = 1; step <= 7; ++step) {
    if (step == 4) model.turned.add_(hvd::rank());
    caught += StatusOf([&] { check.step(model); }) == RUEDA_FAILED_PRECONDITION ? step : 0;
  }
  EXPECT_EQ(caught, 6);
  EXPECT_EQ(StatusOf([] { hvd::ReplicaCheck(0); }), RUEDA_INVALID_ARGUMENT);
}

// What a state keeps of it can be seen when it is restored.
struct Peeked {
  std::string text;
  const char* kept = nullptr;
  std::string to_bytes() const { return text; }
  void from_bytes(std::string_view bytes) {
    text = bytes;
    kept = bytes.data();
  }
};

RANKS_TEST(ElasticState, DoesNotGoBackToWhatWasDamaged, 1) {
  int step = 1;
  Peeked words{"a text that is too long for a string to keep within itself"};
  rueda::elastic::State state(step, words);
  state.restore();
  *const_cast<char*>(words.kept) ^= 1;
  step = 2;
  EXPECT_EQ(StatusOf([&] { state.restore(); }), RUEDA_DATA_LOSS);
  EXPECT_EQ(step, 2) << "nothing has changed";
  state.commit();
  state.restore();
  EXPECT_EQ(step, 2);
}

RANKS_TEST(ElasticState, OfOneRankIsNotItsForkedChilds, 1) {
  rueda::elastic::Sharded<float> moments(1'000);
  rueda::elastic::State state(moments);
  state.save();
  const pid_t child = fork();
  if (child == 0) {
    _exit(StatusOf([&] { state.restore(); }) == RUEDA_FAILED_PRECONDITION ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  state.restore();
}

// What it is given, it spoils elsewhere, on one rank.
struct Spoiler {
  std::vector<int>* victim = nullptr;
  std::string to_bytes() const { return std::to_string(hvd::rank()); }
  void from_bytes(std::string_view) {
    if (hvd::rank() == 1) ++victim->back();
  }
};

RANKS_TEST(ElasticState, IsComparedWhenAllHaveIt, 2, 3) {
  int step = hvd::rank();
  std::vector<int> numbers = {1, 2};
  Spoiler spoiler{&numbers};
  rueda::elastic::State alike(step, numbers), state(step, numbers, spoiler);
  alike.sync(0);
  EXPECT_EQ(step, 0);
  std::string message;
  EXPECT_EQ(StatusOf([&] { state.sync(0); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(message,
            "elastic state: variable 1 of rank 1 is not as that of rank 0, though they have been "
            "synced");
}

// Knows where tensors on the CPU are.
class RecordingAllocator final : public c10::Allocator {
 public:
  RecordingAllocator() { c10::SetAllocator(c10::kCPU, this, 255); }
  ~RecordingAllocator() override { c10::SetAllocator(c10::kCPU, &allocator_, 255); }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = allocator_.allocate(bytes);
    blocks.emplace_back(data.get(), bytes);
    return data;
  }
  c10::DeleterFnPtr raw_deleter() const override { return allocator_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  std::vector<std::pair<void*, size_t>> blocks;

 private:
  c10::Allocator& allocator_ = *c10::GetAllocator(c10::kCPU);
};

RANKS_TEST(ElasticState, OfAModelDoesNotGoBackToWhatWasDamaged, 1) {
  for (const std::string strategy : {"", "ddp", "sharded"}) {
    Net net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const at::Tensor weight = net->hidden->weight;
    std::unique_ptr<hvd::elastic::StateBase> state;
    std::vector<std::pair<void*, size_t>> blocks;
    {
      RecordingAllocator allocator;
      if (strategy.empty()) {
        state = std::make_unique<hvd::elastic::State>(*net, sgd);
      } else {
        state = std::make_unique<hvd::elastic::StrategyState>(
            hvd::elastic::StrategyStateOptions{.strategy = strategy}, net, sgd);
      }
      blocks = allocator.blocks;
    }
    const auto go_back = [&] {
      state->restore();
      state->reset();
    };
    go_back();
    int damaged = 0;
    for (const auto& [memory, bytes] : blocks) {
      if (bytes != weight.nbytes() || std::memcmp(memory, weight.data_ptr(), bytes) != 0) continue;
      static_cast<char*>(memory)[bytes - 1] ^= 1;
      ++damaged;
    }
    ASSERT_EQ(damaged, 1);
    EXPECT_EQ(StatusOf(go_back), RUEDA_DATA_LOSS) << strategy;
  }
}

struct Unwilling {
  bool throws = false;
  std::string to_bytes() const {
    if (throws) throw std::runtime_error("as this test does");
    return "";
  }
  void from_bytes(std::string_view) {}
};

RANKS_TEST(ElasticState, OfTheCommitBeforeStaysWholeIfOneFails, 1) {
  for (const std::string strategy : {"", "ddp", "sharded"}) {
    SCOPED_TRACE(strategy);
    Net net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    int step = 1;
    hvd::elastic::Own<int> own(1);
    Unwilling unwilling;
    std::unique_ptr<hvd::elastic::StateBase> state;
    if (strategy.empty()) {
      state = std::make_unique<hvd::elastic::State>(*net, sgd, step, own, unwilling);
    } else {
      state = std::make_unique<hvd::elastic::StrategyState>(
          hvd::elastic::StrategyStateOptions{.strategy = strategy}, net, sgd, step, own, unwilling);
    }
    state->Follow();
    const at::Tensor before = net->hidden->weight.detach().clone();
    torch::nn::init::zeros_(net->hidden->weight);
    step = own.value = 2;
    unwilling.throws = true;
    EXPECT_THROW(state->commit(), std::runtime_error);
    state->restore();
    state->reset();
    EXPECT_TRUE(torch::equal(net->hidden->weight, before));
    EXPECT_EQ(step, 1);
    EXPECT_EQ(own.value, 1);
  }
}

// Each rank is a host of its own, to which the other sends.
RANKS_TEST(ElasticState, GoesBackToTheCommitThatAnotherHostHas, 2) {
  setenv("HOROVOD_HOSTNAME", ("host" + std::to_string(hvd::rank())).c_str(), 1);
  for (const std::string strategy : {"", "ddp", "sharded", "fsdp"}) {
    SCOPED_TRACE(strategy);
    Net net;
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1));
    int step = 0;
    hvd::elastic::Own<int> own(0, hvd::elastic::Redundancy::kHost);
    std::unique_ptr<hvd::elastic::StateBase> state;
    hvd::elastic::StrategyState* with_strategy = nullptr;
    if (strategy.empty()) {
      state = std::make_unique<hvd::elastic::State>(*net, adam, step, own);
    } else {
      auto made = std::make_unique<hvd::elastic::StrategyState>(
          hvd::elastic::StrategyStateOptions{.strategy = strategy,
                                             .redundancy = hvd::elastic::Redundancy::kHost},
          net, adam, step, own);
      with_strategy = made.get();
      state = std::move(made);
    }
    // The loss of a step, which tells of all steps before.
    const auto train = [&] {
      own.value += hvd::rank() + ++step;
      const auto [x, y] = Batch(step, 1);
      if (with_strategy == nullptr) {
        const at::Tensor loss = torch::mse_loss(net->forward(x), y);
        adam.zero_grad();
        loss.backward();
        adam.step();
        return loss.item<float>();
      }
      hvd::Strategy& with = with_strategy->strategy();
      with.zero_grad();
      const at::Tensor loss = torch::mse_loss(with.forward(x), y);
      with.backward(loss);
      with.step();
      return loss.item<float>();
    };
    EXPECT_FALSE(state->go_back());
    state->Follow();
    EXPECT_FALSE(state->go_back()) << "what follows a sync has arrived";
    train();
    train();
    state->commit();
    const float third = train(), fourth = train();
    state->commit();
    EXPECT_NE(train(), third);
    EXPECT_TRUE(state->go_back());
    EXPECT_FALSE(state->go_back());
    state->Follow();
    EXPECT_EQ(step, 2);
    EXPECT_EQ(own.value, 2 * hvd::rank() + 3);
    EXPECT_EQ(train(), third);
    EXPECT_EQ(train(), fourth);
  }
}

// Each rank is a host of its own, to which the other sends.
RANKS_TEST(ElasticState, WaitsForWhatItSendsIfTheCommitBeforeHasFailed, 2) {
  setenv("HOROVOD_HOSTNAME", ("host" + std::to_string(hvd::rank())).c_str(), 1);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  for (const std::string strategy : {"none", "", "ddp"}) {
    SCOPED_TRACE(strategy);
    hvd::elastic::Own<int> own(1, hvd::elastic::Redundancy::kHost);
    Unwilling unwilling;
    std::unique_ptr<hvd::elastic::StateBase> state;
    if (strategy == "none") {
      state = std::make_unique<rueda::elastic::State>(own, unwilling);
    } else if (strategy.empty()) {
      state = std::make_unique<hvd::elastic::State>(*net, sgd, own, unwilling);
    } else {
      state = std::make_unique<hvd::elastic::StrategyState>(
          hvd::elastic::StrategyStateOptions{.strategy = strategy}, net, sgd, own, unwilling);
    }
    state->Follow();
    state->commit();
    EXPECT_TRUE(own.is_on_its_way());
    unwilling.throws = hvd::rank() == 1;
    if (unwilling.throws) {
      EXPECT_THROW(state->commit(), std::runtime_error);
    } else {
      state->commit();
    }
    unwilling.throws = false;
    state->commit();
    EXPECT_FALSE(own.is_on_its_way());
    state->commit();
    EXPECT_TRUE(own.is_on_its_way());
  }
}

// When a commit has failed that had come behind the arrival of the one before.
RANKS_TEST(ElasticState, GoesBackAsAWholeOrNotAtAll, 2) {
  setenv("HOROVOD_HOSTNAME", ("host" + std::to_string(hvd::rank())).c_str(), 1);
  for (const std::string strategy : {"", "ddp"}) {
    SCOPED_TRACE(strategy);
    Net net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    int step = 0;
    hvd::elastic::Own<int> own(0, hvd::elastic::Redundancy::kHost);
    Unwilling unwilling;
    std::unique_ptr<hvd::elastic::StateBase> state;
    if (strategy.empty()) {
      state = std::make_unique<hvd::elastic::State>(*net, sgd, step, own, unwilling);
    } else {
      state = std::make_unique<hvd::elastic::StrategyState>(
          hvd::elastic::StrategyStateOptions{.strategy = strategy}, net, sgd, step, own, unwilling);
    }
    state->Follow();
    torch::nn::init::zeros_(net->hidden->weight);
    step = own.value = 1;
    state->commit();
    EXPECT_TRUE(own.is_on_its_way());
    torch::nn::init::ones_(net->hidden->weight);
    step = own.value = 2;
    unwilling.throws = true;
    EXPECT_THROW(state->commit(), std::runtime_error);
    EXPECT_FALSE(state->go_back());
    state->restore();
    state->reset();
    EXPECT_EQ(net->hidden->weight.abs().max().item<float>(), 0);
    EXPECT_EQ(step, 1);
    EXPECT_EQ(own.value, 1);
  }
}

// The first sync finds something lost that was on its way.
struct GoingBack : rueda::elastic::StateBase {
  bool loses = true, went_back = false;
  void save() override {}
  void restore() override {}
  void sync(int) override {
    if (!std::exchange(loses, false)) return;
    rueda::detail::PartMissingError error(RUEDA_DATA_LOSS, "as this test has it");
    error.was_on_its_way = true;
    throw error;
  }
  bool go_back() override { return went_back = true; }
};

RANKS_TEST(ElasticState, TellsTheLauncherOfNoFewerCommitsWhenItHasGoneBack, 1) {
  GoingBack state;
  state.commit();
  state.commit();
  state.Follow();
  EXPECT_TRUE(state.went_back);
  EXPECT_EQ(state.commits(), 2u);
}

uint64_t FingerprintOf(const std::vector<char>& bytes) {
  return rueda::detail::FingerprintOf({bytes.data(), bytes.size()});
}

TEST(Fingerprint, TellsSmallChangesApart) {
  std::set<uint64_t> seen;
  size_t made = 0;
  const auto add = [&](const std::vector<char>& bytes) {
    seen.insert(FingerprintOf(bytes));
    ++made;
  };
  // Zeros of any length, and one or two bits in them, wherever they are.
  for (size_t size = 0; size <= 200; ++size) {
    std::vector<char> bytes(size);
    add(bytes);
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      add(bytes);
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    }
  }
  std::vector<char> bytes(192);
  for (size_t a = 7; a < bytes.size(); a += 8) {
    for (size_t b = a + 8; b < bytes.size(); b += 8) {
      bytes[a] = bytes[b] = static_cast<char>(0x80);  // two signs
      add(bytes);
      bytes[a] = bytes[b] = 0;
    }
  }
  // Blocks and words that changed places.
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
  add(bytes);
  for (size_t a = 0; a < bytes.size(); a += 8) {
    for (size_t b = a + 8; b < bytes.size(); b += 8) {
      std::swap_ranges(&bytes[a], &bytes[a] + 8, &bytes[b]);
      add(bytes);
      std::swap_ranges(&bytes[a], &bytes[a] + 8, &bytes[b]);
    }
  }
  EXPECT_EQ(seen.size(), made);
  // On the average half of the bits change with one bit of the input.
  double changed = 0;
  const uint64_t before = FingerprintOf(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    changed += std::popcount(before ^ FingerprintOf(bytes));
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
  EXPECT_NEAR(changed / (8.0 * static_cast<double>(bytes.size())), 32, 2);
}

}  // namespace
