#include "examples/trainer/callbacks/model_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "examples/trainer/checkpoint.h"
#include "examples/trainer/files.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

// The path from the root, without symbolic links.
std::string Whole(const std::string& directory) {
  return fs::weakly_canonical(directory).string();
}

}  // namespace

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options) : options_(std::move(options)) {
  if (options_.best >= 1 && !options_.directory.empty()) return;
  throw rueda::Error(RUEDA_INVALID_ARGUMENT,
                     "ModelCheckpoint: needs a directory, and best must be at least 1");
}

void ModelCheckpoint::OnCheck(Training& training) {
  training.CheckMetric(options_.monitor);
  if (training.rank != 0) return;
  CheckDirectory(options_.directory);
  const std::vector<int64_t> there = Checkpoints(options_.directory);
  if (there.empty() || Whole(options_.directory) == directory_before_) return;
  std::error_code error;  // there is no such file, for one
  const fs::path from = fs::path(training.resumed_from).parent_path();
  if (!training.resumed_from.empty() &&
      fs::equivalent(from.empty() ? "." : from, options_.directory, error)) {
    return;
  }
  throw rueda::Error(RUEDA_INVALID_ARGUMENT,
                     "ModelCheckpoint: " + options_.directory +
                         " has another training's checkpoints, up to epoch " +
                         std::to_string(there.back()) +
                         ": resume from them, remove them, or take another directory");
}

void ModelCheckpoint::OnBegin(Training& training) {
  const std::vector<int64_t> there = Checkpoints(options_.directory);
  // A checkpoint may be of another directory.
  std::erase_if(entries_, [&](const Entry& entry) {
    return std::find(there.begin(), there.end(), entry.epoch) == there.end();
  });
  if (training.rank != 0) return;
  MakeDirectory(options_.directory);
  // Later ones are going to be written anew; others that this training does not know any more were
  // on their way out when it was interrupted.
  const bool same = Whole(options_.directory) == directory_before_;
  going_.clear();
  for (const int64_t epoch : there) {
    const bool known = std::any_of(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.epoch == epoch; });
    if (epoch >= training.first_epoch || (same && !known)) going_.push_back(epoch);
  }
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

void ModelCheckpoint::OnEpoch(Training& training) {
  entries_.push_back({training.epoch, training.Metric(options_.monitor)});
  const std::vector<Entry> ranked = Ranked();
  std::vector<int64_t> kept = {training.epoch};
  for (size_t i = 0; i < ranked.size() && i < static_cast<size_t>(options_.best); ++i) {
    kept.push_back(ranked[i].epoch);
  }
  std::erase_if(entries_, [&](const Entry& entry) {
    const bool goes = std::find(kept.begin(), kept.end(), entry.epoch) == kept.end();
    if (goes) going_.push_back(entry.epoch);
    return goes;
  });
}

void ModelCheckpoint::OnCheckpoint(Training& training) {
  // The others go when this one is there: at any time there is one to go on from.
  training.Save(CheckpointPath(options_.directory, training.epoch));
  for (const int64_t epoch : std::exchange(going_, {})) {
    if (training.rank == 0 && epoch != training.epoch) {
      RemoveCheckpoint(CheckpointPath(options_.directory, epoch));
    }
  }
}

nlohmann::json ModelCheckpoint::SaveState() const {
  nlohmann::json epochs = nlohmann::json::array();
  for (const Entry& entry : entries_) {
    nlohmann::json value;  // null for NaN
    if (std::isfinite(entry.value)) value = entry.value;
    epochs.push_back({entry.epoch, value});
  }
  return {{"directory", Whole(options_.directory)}, {"epochs", epochs}};
}

void ModelCheckpoint::LoadState(const nlohmann::json& state) {
  directory_before_ = state.at("directory");
  entries_.clear();
  for (const nlohmann::json& entry : state.at("epochs")) {
    entries_.push_back({entry.at(0), entry.at(1).is_null()
                                         ? std::numeric_limits<double>::quiet_NaN()
                                         : entry.at(1).get<double>()});
  }
}

}  // namespace trainer
