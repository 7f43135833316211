// Where a trainer's batches come from.
#pragma once

#include <torch/types.h>
#include <rueda/training.hpp>

#include <cstdint>
#include <optional>

namespace trainer {

// The first dimension of both counts samples.
struct Batch {
  torch::Tensor input, target;
};

// This rank's batches of each epoch. For one thread at a time.
class Loader {
 public:
  virtual ~Loader() = default;
  // Before a training: the batches are to be of this part of the samples; until then they are of
  // this rank's. All ranks get the same, whole part with a strategy that wants it so.
  virtual void Deal(const rueda::libtorch::Part& part) = 0;
  // Begins an epoch, in an order of its own: the same whenever this epoch is begun. From 1 on.
  // Without the first `processed` samples of that order: all ranks together have had them.
  virtual void Begin(int64_t epoch, int64_t processed) = 0;
  // Nothing at the epoch's end.
  virtual std::optional<Batch> Next() = 0;
  // Batches in an epoch, or in what is left of it. In training the same on all ranks.
  virtual int64_t steps() const = 0;
  // Of the epoch's order: what all ranks have had when each has had as many batches as this one.
  virtual int64_t processed() const = 0;
};

struct TensorLoaderOptions {
  int64_t batch_size = 32;
  // Of each rank as many full batches as all have, in an order that changes with the epoch; without
  // it, each sample once on one of the ranks, for evaluating.
  bool train = true;
  uint64_t seed = 0;
};

// Batches of a data set that is in memory, of which each rank gets its part.
class TensorLoader : public Loader {
 public:
  // Both have as many rows; the tensors are shared, not copied. RUEDA_INVALID_ARGUMENT: they have
  // not, or batch_size is below 1.
  TensorLoader(Batch data, const TensorLoaderOptions& options);
  void Deal(const rueda::libtorch::Part& part) override;
  void Begin(int64_t epoch, int64_t processed) override;
  std::optional<Batch> Next() override;
  int64_t steps() const override;
  int64_t processed() const override { return processed_; }

 private:
  const Batch data_;
  const TensorLoaderOptions options_;
  rueda::libtorch::Part part_;
  rueda::libtorch::DistributedSampler sampler_;
  int64_t processed_ = 0;
};

}  // namespace trainer
