// What a training needs besides its strategy's file to go on, in a file of JSON beside that.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace trainer {

struct Progress {
  int64_t epoch = 0;
  int64_t step = 0;
  int ranks = 0;
  nlohmann::json scalers;    // by rank; empty: there were none
  nlohmann::json callbacks;  // by name
};

// The file of an epoch in a directory, and of the newest epoch in it that is whole, "" if there is
// none.
std::string CheckpointPath(const std::string& directory, int64_t epoch);
std::string NewestCheckpoint(const std::string& directory);
// The epochs whose files are there, ascending.
std::vector<int64_t> Checkpoints(const std::string& directory);
// The file of JSON beside a checkpoint's.
std::string ProgressPath(const std::string& path);
// Removes both files.
void RemoveCheckpoint(const std::string& path);

// `path` is the strategy's file. Write removes one that is there, and is to come before the new
// one, so that whoever finds the one has the other. Both throw std::runtime_error, which says what
// is wrong with which file.
void WriteProgress(const std::string& path, const Progress& progress);
Progress ReadProgress(const std::string& path);

}  // namespace trainer
