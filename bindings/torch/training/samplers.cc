// Samplers that deal out a data set to ranks. Nothing here communicates: what ranks have alike they
// compute alike, so with a generator and a way to draw numbers that no library may change.
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "bindings/torch/operation.h"
#include "rueda/rueda.hpp"
#include "rueda/torch_elastic.hpp"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

class Chance {
 public:
  Chance(uint64_t seed, uint64_t epoch) {
    detail::Fingerprint both;
    both.Add(seed);
    both.Add(epoch);
    generator_.seed(both.value());
  }
  // Below `limit`, which is not 0.
  size_t Below(size_t limit) {
    return static_cast<size_t>((static_cast<unsigned __int128>(generator_()) * limit) >> 64);
  }
  // At least 0, below 1.
  double Fraction() { return static_cast<double>(generator_() >> 11) * 0x1p-53; }
  template <typename Iterator>
  void Shuffle(Iterator begin, Iterator end) {
    for (size_t left = static_cast<size_t>(end - begin); left > 1; --left) {
      std::swap(begin[left - 1], begin[Below(left)]);
    }
  }

 private:
  std::mt19937_64 generator_;  // as the standard prescribes it, number by number
};

}  // namespace

Part::Part(ProcessSet process_set) : rank_(process_set.rank()), ranks_(process_set.size()) {
  if (rank_ < 0) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "sampler: this rank is not in process set " + std::to_string(process_set.id));
  }
}

Part::Part(int rank, int ranks) : rank_(rank), ranks_(ranks) {
  if (rank < 0 || rank >= ranks) {
    throw Error(RUEDA_INVALID_ARGUMENT, "sampler: there is no rank " + std::to_string(rank) +
                                            " of " + std::to_string(ranks));
  }
}

// What copies of a sampler share.
class DistributedSampler::Impl {
 public:
  Impl(size_t size, DistributedSamplerOptions options, const Part& part)
      : options_(options), part_(part), size_(size) {
    Begin(0);
  }
  Impl(std::vector<double> costs, double random_level, DistributedSamplerOptions options,
       const Part& part)
      : options_(options),
        part_(part),
        costs_(std::move(costs)),
        random_level_(random_level),
        by_cost_(true),
        size_(costs_.size()) {
    for (const double cost : costs_) {
      if (!std::isfinite(cost)) {
        throw Error(RUEDA_INVALID_ARGUMENT, "LoadBalancingSampler: a cost is not finite");
      }
    }
    if (!std::isfinite(random_level) || random_level < 0) {
      throw Error(RUEDA_INVALID_ARGUMENT,
                  "LoadBalancingSampler: random_level is " + std::to_string(random_level));
    }
    Begin(0);
  }

  // Without the first `processed` of its order.
  void Begin(size_t epoch, size_t processed = 0) {
    epoch_ = epoch;
    place_ = taken_ = 0;
    begin_ = processed_ = std::min(processed, size_);
    loaded_ = false;
    const std::vector<size_t> order = Order();
    own_.clear();
    for (auto i = static_cast<size_t>(part_.rank()); i < order.size(); i += ranks()) {
      own_.push_back(order[i]);
    }
  }

  void Reset(std::optional<size_t> new_size) {
    if (new_size.has_value()) {
      if (by_cost_ && *new_size != size_) {
        throw Error(RUEDA_INVALID_ARGUMENT, "LoadBalancingSampler: reset to " +
                                                std::to_string(*new_size) + " samples, with " +
                                                std::to_string(size_) + " costs");
      }
      size_ = *new_size;
    } else if (loaded_ || place_ == 0) {
      loaded_ = false;
      return;
    }
    Begin(epoch_, processed_);
  }

  std::optional<std::vector<size_t>> Next(size_t batch_size) {
    const size_t count = std::min(batch_size, own_.size() - place_);
    if (count == 0) return std::nullopt;
    const auto begin = own_.begin() + static_cast<std::ptrdiff_t>(place_);
    place_ += count;
    return std::vector<size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
  }

  void Save(torch::serialize::OutputArchive& archive) const {
    archive.write("identity", Identity());
    archive.write("epoch", static_cast<int64_t>(epoch_));
    archive.write("place", static_cast<int64_t>(place_));
    if (begin_ > 0) archive.write("begin", static_cast<int64_t>(begin_));
  }

  void Load(torch::serialize::InputArchive& archive) {
    c10::IValue identity, epoch, place, begin = int64_t{0};
    archive.read("identity", identity);
    archive.read("epoch", epoch);
    archive.read("place", place);
    (void)archive.try_read("begin", begin);
    if (identity.toStringRef() != Identity()) {
      throw Error(RUEDA_INVALID_ARGUMENT, "sampler: it was saved as (" + identity.toStringRef() +
                                              "), and this is (" + Identity() + ")");
    }
    Begin(static_cast<size_t>(epoch.toInt()), static_cast<size_t>(begin.toInt()));
    place_ = std::min(static_cast<size_t>(place.toInt()), own_.size());
    loaded_ = true;
  }

  // Of this epoch, with other ranks from here on.
  void Deal(const Part& part, size_t epoch, size_t processed) {
    part_ = part;
    Begin(epoch, processed);
  }
  void RecordBatch(size_t batch_size) {
    taken_ = std::min(taken_ + batch_size, own_.size());
    // What is dealt out no more belongs to the last ones.
    processed_ = taken_ == own_.size() ? size_ : std::min(begin_ + taken_ * ranks(), size_);
  }

  size_t epoch() const { return epoch_; }
  size_t count() const { return own_.size(); }
  size_t processed() const { return processed_; }

 private:
  size_t ranks() const { return static_cast<size_t>(part_.ranks()); }

  // What the place is worth nothing without.
  std::string Identity() const {
    return std::to_string(size_) + " samples, " + std::to_string(ranks()) + " ranks, seed " +
           std::to_string(options_.seed) + ", shuffle " + std::to_string(options_.shuffle) +
           ", remainder " + std::to_string(static_cast<int>(options_.remainder)) +
           (by_cost_ ? ", by cost with " + std::to_string(random_level_) : "");
  }

  // Of all ranks, one sample of each after the other.
  std::vector<size_t> Order() const {
    Chance chance(options_.seed, epoch_);
    std::vector<size_t> order(size_);
    std::iota(order.begin(), order.end(), size_t{0});
    if (options_.shuffle) chance.Shuffle(order.begin(), order.end());
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(begin_));
    const size_t rest = order.size() % ranks();
    if (rest > 0 && options_.remainder == Remainder::kDrop) order.resize(order.size() - rest);
    if (rest > 0 && options_.remainder == Remainder::kRepeat) {
      for (size_t i = 0; i < ranks() - rest; ++i) order.push_back(order[i]);
    }
    if (by_cost_) Balance(chance, order);
    return order;
  }

  // Those that make no whole group stay at the end.
  void Balance(Chance& chance, std::vector<size_t>& order) const {
    if (order.empty()) return;
    const auto [low, high] = std::minmax_element(costs_.begin(), costs_.end());
    const double range = random_level_ * (*high - *low);
    std::vector<double> costs = costs_;
    for (double& cost : costs) cost += range * chance.Fraction();
    const size_t groups = order.size() / ranks();
    // Stable: among equal ones it was chance that put them in order.
    std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(groups * ranks()),
                     [&](size_t a, size_t b) { return costs[a] < costs[b]; });
    if (!options_.shuffle) return;
    std::vector<size_t> places(groups);
    std::iota(places.begin(), places.end(), size_t{0});
    chance.Shuffle(places.begin(), places.end());
    std::vector<size_t> dealt;
    for (const size_t place : places) {
      const auto group = order.begin() + static_cast<std::ptrdiff_t>(place * ranks());
      dealt.insert(dealt.end(), group, group + static_cast<std::ptrdiff_t>(ranks()));
      // Else the last rank would always have the most expensive one.
      chance.Shuffle(dealt.end() - static_cast<std::ptrdiff_t>(ranks()), dealt.end());
    }
    std::copy(dealt.begin(), dealt.end(), order.begin());
  }

  const DistributedSamplerOptions options_;
  Part part_;
  const std::vector<double> costs_;
  const double random_level_ = 0;
  const bool by_cost_ = false;

  size_t size_;
  size_t epoch_ = 0;
  std::vector<size_t> own_;  // this rank's, in the epoch's order
  size_t place_ = 0;         // how many of them were taken
  bool loaded_ = false;      // and nothing was begun since
  // ElasticSampler:
  size_t begin_ = 0;      // so much of the order is not dealt out
  size_t taken_ = 0;      // of own_, as recorded
  size_t processed_ = 0;  // of the order
};

DistributedSampler::DistributedSampler(size_t size, DistributedSamplerOptions options,
                                       const Part& part)
    : impl_(std::make_shared<Impl>(size, options, part)) {}

void DistributedSampler::set_epoch(size_t epoch, size_t processed) {
  impl_->Begin(epoch, processed);
}

size_t DistributedSampler::epoch() const {
  return impl_->epoch();
}

size_t DistributedSampler::count() const {
  return impl_->count();
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  impl_->Reset(new_size);
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  return impl_->Next(batch_size);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  impl_->Save(archive);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  impl_->Load(archive);
}

namespace {

std::vector<double> CostsOf(size_t size, const std::function<double(size_t)>& cost) {
  std::vector<double> costs;
  for (size_t i = 0; i < size; ++i) costs.push_back(cost(i));
  return costs;
}

}  // namespace

LoadBalancingSampler::LoadBalancingSampler(std::vector<double> costs, double random_level,
                                           DistributedSamplerOptions options, const Part& part)
    : DistributedSampler(std::make_shared<Impl>(std::move(costs), random_level, options, part)) {}

LoadBalancingSampler::LoadBalancingSampler(size_t size, const std::function<double(size_t)>& cost,
                                           double random_level, DistributedSamplerOptions options,
                                           const Part& part)
    : LoadBalancingSampler(CostsOf(size, cost), random_level, options, part) {}

namespace elastic {

ElasticSampler::ElasticSampler(size_t size, DistributedSamplerOptions options, bool all_get_all)
    : DistributedSampler(size, options, all_get_all ? Part(0, 1) : Part(global_process_set)),
      all_get_all_(all_get_all) {}

void ElasticSampler::set_epoch(size_t epoch) {
  impl().Deal(Own(), epoch, 0);
}

void ElasticSampler::record_batch(size_t batch_size) {
  impl().RecordBatch(batch_size);
}

size_t ElasticSampler::processed() const {
  return impl().processed();
}

std::string ElasticSampler::to_bytes() const {
  std::string bytes;
  detail::AppendNumber(impl().epoch(), &bytes);
  detail::AppendNumber(impl().processed(), &bytes);
  return bytes;
}

void ElasticSampler::from_bytes(std::string_view bytes) {
  const size_t epoch = detail::TakeNumber(&bytes);
  impl().Deal(Own(), epoch, detail::TakeNumber(&bytes));
}

}  // namespace elastic

}  // namespace rueda::libtorch
