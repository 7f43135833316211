#include "examples/trainer/callbacks/model_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "examples/trainer/checkpoint.h"

namespace trainer {

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  if (options_.best >= 1 && !options_.directory.empty()) return;
  throw rueda::Error(RUEDA_INVALID_ARGUMENT,
                     "ModelCheckpoint: needs a directory, and best must be at least 1");
}

void ModelCheckpoint::OnBegin(Training& training) {
  const std::vector<int64_t> there = Checkpoints(options_.directory);
  // A checkpoint may be of another directory.
  std::erase_if(entries_, [&](const Entry& entry) {
    return std::find(there.begin(), there.end(), entry.epoch) == there.end();
  });
  if (training.rank != 0) return;
  std::filesystem::create_directories(options_.directory);
  if (training.first_epoch == 1 && !there.empty()) {
    throw rueda::Error(RUEDA_INVALID_ARGUMENT,
                       "ModelCheckpoint: " + options_.directory +
                           " has another training's checkpoints, up to epoch " +
                           std::to_string(there.back()) +
                           ": resume from them, remove them, or take another directory");
  }
  later_.assign(std::upper_bound(there.begin(), there.end(), training.first_epoch - 1),
                there.end());
}

std::vector<ModelCheckpoint::Entry> ModelCheckpoint::Ranked() const {
  std::vector<Entry> ranked = entries_;
  std::stable_sort(ranked.begin(), ranked.end(), [this](const Entry& a, const Entry& b) {
    if (std::isnan(b.value)) return !std::isnan(a.value);
    return IsBetter(a.value, b.value, options_.mode);
  });
  return ranked;
}

std::string ModelCheckpoint::best_path() const {
  return entries_.empty() ? "" : CheckpointPath(options_.directory, Ranked().front().epoch);
}

void ModelCheckpoint::OnCheckpoint(Training& training) {
  entries_.push_back({training.epoch, training.Metric(options_.monitor)});
  const std::vector<Entry> ranked = Ranked();
  std::vector<int64_t> kept = {training.epoch};
  for (size_t i = 0; i < ranked.size() && i < static_cast<size_t>(options_.best); ++i) {
    kept.push_back(ranked[i].epoch);
  }
  const auto goes = [&](const Entry& entry) {
    return std::find(kept.begin(), kept.end(), entry.epoch) == kept.end();
  };
  const std::vector<Entry> before = entries_;
  std::erase_if(entries_, goes);
  // The others go when this one is there: at any time there is one to go on from.
  training.Save(CheckpointPath(options_.directory, training.epoch));
  if (training.rank != 0) return;
  for (const Entry& entry : before) {
    if (goes(entry)) RemoveCheckpoint(CheckpointPath(options_.directory, entry.epoch));
  }
  for (const int64_t epoch : std::exchange(later_, {})) {
    if (epoch != training.epoch) RemoveCheckpoint(CheckpointPath(options_.directory, epoch));
  }
}

nlohmann::json ModelCheckpoint::SaveState() const {
  nlohmann::json state = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    nlohmann::json value;  // null for NaN
    if (std::isfinite(entry.value)) value = entry.value;
    state.push_back({entry.epoch, value});
  }
  return state;
}

void ModelCheckpoint::LoadState(const nlohmann::json& state) {
  entries_.clear();
  for (const nlohmann::json& entry : state) {
    entries_.push_back({entry.at(0), entry.at(1).is_null()
                                         ? std::numeric_limits<double>::quiet_NaN()
                                         : entry.at(1).get<double>()});
  }
}

}  // namespace trainer
