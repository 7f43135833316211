#include "examples/trainer/callbacks/csv_log.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "examples/trainer/files.h"

namespace trainer {
namespace {

constexpr const char* kFirstColumns = "epoch,step";

}  // namespace

void CsvLog::OnCheck(Training& training) {
  columns_.clear();
  lines_.clear();
  if (training.rank != 0) return;
  CheckFile(path_);
  if (training.first_epoch == 1 || !std::filesystem::is_regular_file(path_)) return;
  std::ifstream stream(path_);
  std::string line;
  if (!std::getline(stream, line)) return;
  if (!line.starts_with(kFirstColumns)) {
    throw std::runtime_error(path_ + " is in the way: it is no log of a training");
  }
  std::istringstream names(line.substr(std::string(kFirstColumns).size()));
  std::getline(names, line, ',');  // the nothing before the first comma
  while (std::getline(names, line, ',')) columns_.push_back(line);
  while (std::getline(stream, line) && std::atoll(line.c_str()) < training.first_epoch) {
    lines_.push_back(line);
  }
}

void CsvLog::OnBegin(Training& training) {
  if (training.rank == 0) Write();
}

void CsvLog::OnEpoch(Training& training) {
  if (training.rank != 0) return;
  const size_t columns = columns_.size();
  for (const auto& [name, value] : training.metrics) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) {
      columns_.push_back(name);
      for (std::string& line : lines_) line += ",";
    }
  }
  std::string line = std::to_string(training.epoch) + "," + std::to_string(training.step);
  for (const std::string& name : columns_) {
    const auto it = training.metrics.find(name);
    char number[32] = ",";
    if (it != training.metrics.end()) std::snprintf(number, sizeof number, ",%.9g", it->second);
    line += number;
  }
  lines_.push_back(line);
  if (columns_.size() > columns) {
    Write();
  } else {
    AppendToFile(path_, line + "\n");
  }
}

void CsvLog::Write() const {
  std::string text;
  if (!columns_.empty()) {
    text = kFirstColumns;
    for (const std::string& name : columns_) text += "," + name;
    text += "\n";
  }
  for (const std::string& line : lines_) text += line + "\n";
  WriteFile(path_, text);
}

}  // namespace trainer
