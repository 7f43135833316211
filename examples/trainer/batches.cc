#include "examples/trainer/batches.h"

#include <string>
#include <vector>

namespace trainer {
namespace {

namespace hvd = rueda::libtorch;

size_t SamplesOf(const Batch& data, const TensorLoaderOptions& options) {
  if (options.batch_size < 1) {
    throw hvd::Error(
        RUEDA_INVALID_ARGUMENT,
        "TensorLoader: batch_size is " + std::to_string(options.batch_size) + "; at least 1");
  }
  const int64_t inputs = data.input.size(0);
  const int64_t targets = data.target.size(0);
  if (inputs != targets) {
    throw hvd::Error(RUEDA_INVALID_ARGUMENT, "TensorLoader: " + std::to_string(inputs) +
                                                 " inputs, and " + std::to_string(targets) +
                                                 " targets");
  }
  return static_cast<size_t>(inputs);
}

hvd::DistributedSampler MakeSampler(size_t samples, const TensorLoaderOptions& options,
                                    const hvd::Part& part) {
  return hvd::DistributedSampler(
      samples,
      {.remainder = options.train ? hvd::Remainder::kDrop : hvd::Remainder::kKeep,
       .shuffle = options.train,
       .seed = options.seed},
      part);
}

}  // namespace

TensorLoader::TensorLoader(Batch data, const TensorLoaderOptions& options)
    : data_(std::move(data)),
      options_(options),
      part_(hvd::global_process_set),
      sampler_(MakeSampler(SamplesOf(data_, options), options, part_)) {}

void TensorLoader::Deal(const hvd::Part& part) {
  part_ = part;
  sampler_ = MakeSampler(SamplesOf(data_, options_), options_, part);
}

void TensorLoader::Begin(int64_t epoch, int64_t processed) {
  sampler_.set_epoch(static_cast<size_t>(epoch), static_cast<size_t>(processed));
  processed_ = processed;
}

std::optional<Batch> TensorLoader::Next() {
  const auto indices = sampler_.next(static_cast<size_t>(options_.batch_size));
  if (!indices) return std::nullopt;
  if (options_.train && indices->size() < static_cast<size_t>(options_.batch_size)) {
    return std::nullopt;  // a mean over fewer would count for as much
  }
  processed_ += options_.batch_size * part_.ranks();
  const std::vector<int64_t> rows(indices->begin(), indices->end());
  const torch::Tensor pick = torch::tensor(rows);
  return Batch{data_.input.index_select(0, pick), data_.target.index_select(0, pick)};
}

int64_t TensorLoader::steps() const {
  const auto samples = static_cast<int64_t>(sampler_.count());
  return (samples + (options_.train ? 0 : options_.batch_size - 1)) / options_.batch_size;
}

}  // namespace trainer
