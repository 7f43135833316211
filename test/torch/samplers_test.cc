// Samplers: what ranks get together, and how even it is.
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <sstream>

#include "rueda/torch_elastic.hpp"
#include "rueda/training.hpp"
#include "test/torch/ranks.h"

namespace hvd = rueda::libtorch;

namespace {

using namespace rueda::test;
using Indices = std::vector<size_t>;

// All that is left of the epoch.
Indices Take(hvd::DistributedSampler& sampler, size_t batch_size = 3) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_LE(batch->size(), batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

std::vector<Indices> TakeAll(size_t size, int ranks, const hvd::DistributedSamplerOptions& options,
                             size_t epoch = 0) {
  std::vector<Indices> all;
  for (int rank = 0; rank < ranks; ++rank) {
    hvd::DistributedSampler sampler(size, options, {rank, ranks});
    sampler.set_epoch(epoch);
    all.push_back(Take(sampler));
    EXPECT_EQ(all.back().size(), sampler.count());
  }
  return all;
}

// How often each index is there.
std::vector<int> CountsOf(const std::vector<Indices>& all, size_t size) {
  std::vector<int> counts(size);
  for (const Indices& indices : all) {
    for (const size_t index : indices) ++counts.at(index);
  }
  return counts;
}

void CheckShares(size_t size, int ranks, hvd::Remainder remainder, bool shuffle) {
  SCOPED_TRACE(testing::Message() << size << " samples, " << ranks << " ranks, remainder "
                                  << static_cast<int>(remainder) << ", shuffle " << shuffle);
  const std::vector<Indices> all =
      TakeAll(size, ranks, {.remainder = remainder, .shuffle = shuffle, .seed = 5});
  const std::vector<int> counts = CountsOf(all, size);
  const auto [low, high] = std::minmax_element(counts.begin(), counts.end());
  const size_t n = static_cast<size_t>(ranks);
  for (size_t rank = 0; rank < n; ++rank) {
    size_t expected = size / n + (rank < size % n);
    if (remainder == hvd::Remainder::kRepeat) expected = (size + n - 1) / n;
    if (remainder == hvd::Remainder::kDrop) expected = size / n;
    EXPECT_EQ(all[rank].size(), expected) << rank;
  }
  if (size == 0) return;
  if (remainder == hvd::Remainder::kKeep) {
    EXPECT_EQ(*high, 1);
  }
  if (remainder != hvd::Remainder::kDrop) {
    EXPECT_GE(*low, 1);
  }
  if (remainder == hvd::Remainder::kDrop) {
    EXPECT_LE(*high, 1);
  }
  if (remainder == hvd::Remainder::kRepeat && size >= n) {
    EXPECT_LE(*high, 2);
    EXPECT_EQ(std::count(counts.begin(), counts.end(), 2), (n - size % n) % n);
  }
  if (shuffle) return;
  for (size_t rank = 0; rank < n; ++rank) {
    for (size_t i = 0; i < all[rank].size(); ++i) {
      EXPECT_EQ(all[rank][i], (rank + i * n) % size) << "repeated from the beginning";
    }
  }
}

TEST(DistributedSampler, RanksTogetherGetExactlyWhatTheModeSays) {
  for (const size_t size : {0, 1, 7, 8, 100}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const auto remainder :
           {hvd::Remainder::kRepeat, hvd::Remainder::kDrop, hvd::Remainder::kKeep}) {
        for (const bool shuffle : {false, true}) CheckShares(size, ranks, remainder, shuffle);
      }
    }
  }
}

TEST(DistributedSampler, AnEpochsOrderIsOfItsSeedAndNumber) {
  const auto order = [](uint64_t seed, size_t epoch) {
    return TakeAll(100, 2, {.seed = seed}, epoch);
  };
  EXPECT_EQ(order(1, 3), order(1, 3));
  EXPECT_NE(order(1, 3), order(1, 4));
  EXPECT_NE(order(1, 3), order(2, 3));
  EXPECT_NE(order(1, 2), order(2, 1));
  // Which samples are dropped changes too.
  std::set<size_t> dropped;
  for (size_t epoch = 0; epoch < 30; ++epoch) {
    const std::vector<int> counts =
        CountsOf(TakeAll(7, 3, {.remainder = hvd::Remainder::kDrop}, epoch), 7);
    dropped.insert(
        static_cast<size_t>(std::find(counts.begin(), counts.end(), 0) - counts.begin()));
  }
  EXPECT_EQ(dropped.size(), 7u);
  // Every sample comes to every rank.
  std::set<size_t> seen;
  for (size_t epoch = 0; epoch < 30; ++epoch) {
    const Indices first = TakeAll(8, 4, {}, epoch)[0];
    seen.insert(first.begin(), first.end());
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(DistributedSampler, ResetBeginsAnewAndCopiesShareTheEpoch) {
  hvd::DistributedSampler sampler(20, {}, {1, 2});
  hvd::DistributedSampler copy = sampler;
  const Indices first = Take(sampler);
  EXPECT_TRUE(Take(copy).empty());
  copy.reset();
  EXPECT_EQ(Take(sampler), first);
  sampler.set_epoch(1);
  EXPECT_EQ(copy.epoch(), 1u);
  EXPECT_NE(Take(copy), first);
  copy.reset(8);
  EXPECT_EQ(sampler.count(), 4u);
  EXPECT_EQ(copy.epoch(), 1u);
}

TEST(DistributedSampler, ALoadedOneGoesOnWhereItWasSaved) {
  hvd::DistributedSampler sampler(20, {.seed = 3}, {0, 2});
  sampler.set_epoch(4);
  (void)sampler.next(3);
  std::stringstream file;
  {
    torch::serialize::OutputArchive archive;
    sampler.save(archive);
    archive.save_to(file);
  }
  const Indices rest = Take(sampler);
  EXPECT_EQ(rest.size(), 7u);
  const auto load = [&](hvd::DistributedSampler& into) {
    torch::serialize::InputArchive archive;
    file.seekg(0);
    archive.load_from(file);
    into.load(archive);
  };
  hvd::DistributedSampler again(20, {.seed = 3}, {0, 2});
  load(again);
  again.reset();  // as a data loader does it
  EXPECT_EQ(again.epoch(), 4u);
  EXPECT_EQ(Take(again), rest);
  again.reset();
  EXPECT_EQ(Take(again).size(), 10u);
  hvd::DistributedSampler other(20, {.seed = 3}, {0, 3});
  std::string message;
  EXPECT_EQ(StatusOf([&] { load(other); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("2 ranks"), std::string::npos) << message;
  EXPECT_EQ(other.epoch(), 0u);
  EXPECT_EQ(StatusOf([] { hvd::DistributedSampler(8, {}, {2, 2}); }), RUEDA_INVALID_ARGUMENT);
}

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  explicit Numbers(size_t count) : count_(count) {}
  torch::data::Example<> get(size_t index) override {
    return {torch::full({1}, static_cast<int64_t>(index)), torch::zeros({1})};
  }
  std::optional<size_t> size() const override { return count_; }
  size_t count_;
};

RANKS_TEST(DistributedSampler, DataLoadersOfAllRanksReadEachSampleOnce, 2, 3) {
  const hvd::DistributedSamplerOptions options = {.remainder = hvd::Remainder::kKeep, .seed = 1};
  hvd::DistributedSampler sampler(50, options);
  auto loader =
      torch::data::make_data_loader(Numbers(50).map(torch::data::transforms::Stack<>()), sampler,
                                    torch::data::DataLoaderOptions().batch_size(4).workers(1));
  torch::Tensor before;
  for (size_t epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    std::vector<torch::Tensor> parts;
    for (const auto& batch : *loader) parts.push_back(batch.data);
    const torch::Tensor own = torch::cat(parts);
    const torch::Tensor all = hvd::allgather(own.reshape({-1}), {.name = "indices"});
    EXPECT_TRUE(std::get<0>(all.sort()).equal(torch::arange(50)));
    if (epoch > 0) {
      EXPECT_FALSE(all.equal(before)) << "the loader was told of the epoch";
    }
    before = all;
  }
  const hvd::ProcessSet first = hvd::add_process_set({0});
  const auto part = StatusOf([&] { EXPECT_EQ(hvd::DistributedSampler(8, {}, first).count(), 8u); });
  EXPECT_EQ(part, hvd::rank() == 0 ? RUEDA_OK : RUEDA_INVALID_ARGUMENT);
}

// The mean over the steps of how much longer the most expensive rank's batch takes than the mean.
template <typename Sampler>
double Imbalance(std::vector<Sampler> samplers, const std::vector<double>& costs,
                 size_t batch_size) {
  double sum = 0;
  int steps = 0;
  for (;; ++steps) {
    std::vector<double> by_rank;
    for (Sampler& sampler : samplers) {
      const auto batch = sampler.next(batch_size);
      if (!batch.has_value()) return sum / steps;
      by_rank.push_back(0);
      for (const size_t index : *batch) by_rank.back() += costs[index];
    }
    sum += *std::max_element(by_rank.begin(), by_rank.end()) * by_rank.size() /
           std::accumulate(by_rank.begin(), by_rank.end(), 0.0);
  }
}

std::vector<double> SkewedCosts(size_t size) {
  torch::manual_seed(1);
  const torch::Tensor costs = torch::randn({static_cast<int64_t>(size)}, torch::kDouble).exp();
  return {costs.data_ptr<double>(), costs.data_ptr<double>() + size};
}

template <typename... Rest>
std::vector<hvd::LoadBalancingSampler> Balanced(int ranks, const std::vector<double>& costs,
                                                const Rest&... rest) {
  std::vector<hvd::LoadBalancingSampler> samplers;
  for (int rank = 0; rank < ranks; ++rank) {
    samplers.emplace_back(costs, rest..., hvd::Part(rank, ranks));
  }
  return samplers;
}

TEST(LoadBalancingSampler, RanksBatchesCostAboutTheSameInEachStep) {
  const std::vector<double> costs = SkewedCosts(1000);
  for (const size_t batch_size : {1, 8}) {
    std::vector<hvd::DistributedSampler> plain;
    for (int rank = 0; rank < 4; ++rank) {
      plain.emplace_back(costs.size(), hvd::DistributedSamplerOptions(), hvd::Part(rank, 4));
    }
    const hvd::DistributedSamplerOptions options;
    const double without = Imbalance(plain, costs, batch_size) - 1;
    const double with = Imbalance(Balanced(4, costs, 0.0, options), costs, batch_size) - 1;
    const double noisy = Imbalance(Balanced(4, costs, 0.05, options), costs, batch_size) - 1;
    EXPECT_GT(without, batch_size == 1 ? 0.5 : 0.2);
    EXPECT_LT(with, without / 20) << batch_size;
    EXPECT_LT(with, noisy);
    EXPECT_LT(noisy, without) << batch_size;
  }
}

TEST(LoadBalancingSampler, NoRankAlwaysHasTheMostExpensiveSamples) {
  const std::vector<double> costs = SkewedCosts(1000);
  std::set<size_t> most_expensive;
  for (size_t epoch = 0; epoch < 40; ++epoch) {
    std::vector<double> totals;
    for (auto& sampler : Balanced(4, costs, 0.0, hvd::DistributedSamplerOptions())) {
      sampler.set_epoch(epoch);
      totals.push_back(0);
      for (const size_t index : Take(sampler)) totals.back() += costs[index];
    }
    most_expensive.insert(
        static_cast<size_t>(std::max_element(totals.begin(), totals.end()) - totals.begin()));
  }
  EXPECT_EQ(most_expensive.size(), 4u);
}

TEST(LoadBalancingSampler, EverySampleComesOnceAndEpochsDiffer) {
  for (const size_t size : {0, 1, 7, 8, 100}) {
    for (const int ranks : {1, 3, 4}) {
      const std::vector<double> costs = SkewedCosts(size);
      std::vector<std::vector<Indices>> epochs;
      for (const size_t epoch : {0, 1, 0}) {
        std::vector<Indices> all;
        for (auto& sampler : Balanced(
                 ranks, costs, 0.1,
                 hvd::DistributedSamplerOptions{.remainder = hvd::Remainder::kKeep, .seed = 2})) {
          sampler.set_epoch(epoch);
          all.push_back(Take(sampler));
        }
        EXPECT_EQ(CountsOf(all, size), std::vector<int>(size, 1)) << size << " " << ranks;
        const auto [few, many] = std::minmax_element(
            all.begin(), all.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
        EXPECT_LE(many->size() - few->size(), 1u);
        epochs.push_back(all);
      }
      EXPECT_EQ(epochs[0], epochs[2]);
      if (size == 100) {
        EXPECT_NE(epochs[0], epochs[1]);
      }
    }
  }
  // Dropping and repeating: equally many for all.
  for (const auto remainder : {hvd::Remainder::kRepeat, hvd::Remainder::kDrop}) {
    for (auto& sampler :
         Balanced(3, SkewedCosts(7), 0.0, hvd::DistributedSamplerOptions{.remainder = remainder})) {
      EXPECT_EQ(Take(sampler).size(), remainder == hvd::Remainder::kDrop ? 2u : 3u);
    }
  }
}

TEST(LoadBalancingSampler, CostsMayBeAFunctionAndMustBeNumbers) {
  const std::vector<double> costs = SkewedCosts(30);
  hvd::LoadBalancingSampler listed(costs, 0, {}, {1, 3});
  hvd::LoadBalancingSampler called(30, [&](size_t index) { return costs[index]; }, 0, {}, {1, 3});
  EXPECT_EQ(Take(listed), Take(called));
  EXPECT_EQ(StatusOf([&] { listed.reset(31); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([] {
              hvd::LoadBalancingSampler({1, NAN}, 0, {}, {0, 1});
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([] {
              hvd::LoadBalancingSampler({1, 2}, -1, {}, {0, 1});
            }),
            RUEDA_INVALID_ARGUMENT);
}

// What all ranks have taken, in any order.
Indices OfAllRanks(const Indices& own) {
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof own[0]);
  Indices all;
  for (const std::string& theirs : hvd::allgather_object(bytes)) {
    Indices indices(theirs.size() / sizeof(size_t));
    std::memcpy(indices.data(), theirs.data(), theirs.size());
    all.insert(all.end(), indices.begin(), indices.end());
  }
  return all;
}

RANKS_TEST(ElasticSampler, WhatIsNotProcessedIsDealtOutAnew, 1, 2, 3) {
  const auto ranks = static_cast<size_t>(hvd::size());
  const size_t size = 50;
  hvd::elastic::ElasticSampler before(size, {.seed = 7});
  before.set_epoch(3);
  Indices own;
  for (int batch = 0; batch < 3; ++batch) {
    const Indices taken = *before.next(2);
    if (batch == 2) break;  // lost before it was recorded
    own.insert(own.end(), taken.begin(), taken.end());
    before.record_batch(2);
  }
  EXPECT_EQ(before.processed(), 4 * ranks);
  hvd::elastic::ElasticSampler after(size, {.seed = 7});
  after.from_bytes(before.to_bytes());
  EXPECT_EQ(after.epoch(), 3u);
  EXPECT_EQ(after.processed(), 4 * ranks);
  after.reset();  // as a data loader does
  while (const auto taken = after.next(5)) {
    own.insert(own.end(), taken->begin(), taken->end());
    after.record_batch(5);
  }
  EXPECT_EQ(after.processed(), size);
  const Indices all = OfAllRanks(own);
  EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), size) << "each sample";
  const size_t repeated = (ranks - (size - 4 * ranks) % ranks) % ranks;
  EXPECT_EQ(all.size(), size + repeated) << "once, but for those that make shares equal";
  after.set_epoch(4);
  EXPECT_EQ(after.processed(), 0u);
  EXPECT_EQ(after.count(), (size + ranks - 1) / ranks);
}

TEST(DistributedSampler, WhatWasProcessedIsLeftOutForAnyNumberOfRanks) {
  const Indices order = TakeAll(20, 1, {.seed = 5}, 2)[0];
  for (const int ranks : {1, 2, 3, 4}) {
    for (const hvd::Remainder remainder : {hvd::Remainder::kKeep, hvd::Remainder::kDrop}) {
      std::multiset<size_t> rest;
      for (int rank = 0; rank < ranks; ++rank) {
        hvd::DistributedSampler sampler(20, {.remainder = remainder, .seed = 5}, {rank, ranks});
        sampler.set_epoch(2, 9);
        const Indices own = Take(sampler);
        rest.insert(own.begin(), own.end());
      }
      const size_t dropped =
          remainder == hvd::Remainder::kDrop ? 11 % static_cast<size_t>(ranks) : 0;
      EXPECT_EQ(rest, std::multiset<size_t>(order.begin() + 9,
                                            order.end() - static_cast<ptrdiff_t>(dropped)))
          << ranks;
    }
  }
}

}  // namespace
