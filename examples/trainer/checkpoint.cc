#include "examples/trainer/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "examples/trainer/files.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 2;
constexpr const char* kPrefix = "epoch-";

[[noreturn]] void Fail(const fs::path& path, const std::string& what) {
  throw std::runtime_error(path.string() + ": " + what);
}

// The number in "epoch-12.pt"; 0 for other names.
int64_t EpochOf(const fs::path& path) {
  const std::string stem = path.stem().string();
  if (path.extension() != ".pt" || !stem.starts_with(kPrefix)) return 0;
  int64_t epoch = 0;
  const char* const end = stem.data() + stem.size();
  const auto [at, error] = std::from_chars(stem.data() + std::string(kPrefix).size(), end, epoch);
  return error == std::errc() && at == end ? epoch : 0;
}

}  // namespace

std::string ProgressPath(const std::string& path) {
  return fs::path(path).replace_extension(".json").string();
}

std::string CheckpointPath(const std::string& directory, int64_t epoch) {
  return (fs::path(directory) / (kPrefix + std::to_string(epoch) + ".pt")).string();
}

std::string NewestCheckpoint(const std::string& directory) {
  const std::vector<int64_t> epochs = Checkpoints(directory);
  return epochs.empty() ? "" : CheckpointPath(directory, epochs.back());
}

std::vector<int64_t> Checkpoints(const std::string& directory) {
  std::vector<int64_t> epochs;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const int64_t epoch = EpochOf(entry.path());
    if (epoch > 0 && fs::exists(ProgressPath(entry.path().string()))) epochs.push_back(epoch);
  }
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

void RemoveCheckpoint(const std::string& path) {
  std::error_code error;  // gone already, or not ours to remove: it is only in the way
  fs::remove(path, error);
  fs::remove(ProgressPath(path), error);
}

void WriteProgress(const std::string& path, const Progress& progress) {
  const json all = {{"format", kFormat},           {"epoch", progress.epoch},
                    {"step", progress.step},       {"ranks", progress.ranks},
                    {"scalers", progress.scalers}, {"callbacks", progress.callbacks}};
  std::error_code error;
  fs::remove(path, error);  // an earlier one's, whose progress this is not
  // A path may be no UTF-8.
  WriteFile(ProgressPath(path), all.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

Progress ReadProgress(const std::string& path) {
  const std::string file = ProgressPath(path);
  if (path == file) Fail(path, "is what belongs to a checkpoint; give the file beside it, .pt");
  std::ifstream stream(file);
  if (!stream && !fs::exists(path)) Fail(path, "there is no such checkpoint, or directory");
  if (!stream) Fail(file, "can't be read; a trainer's checkpoint has it beside its .pt file");
  try {
    const json all = json::parse(stream);
    if (all.at("format") != kFormat)
      Fail(file, "has another format than " + std::to_string(kFormat));
    Progress progress = {all.at("epoch"), all.at("step"), all.at("ranks"), all.at("scalers"),
                         all.at("callbacks")};
    if (progress.epoch < 1 || progress.step < 0) Fail(file, "is damaged: it is of no epoch");
    return progress;
  } catch (const json::exception& error) {
    Fail(file, std::string("was not written by a trainer: ") + error.what());
  }
}

}  // namespace trainer
