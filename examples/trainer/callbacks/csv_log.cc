#include "examples/trainer/callbacks/csv_log.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "examples/trainer/files.h"

namespace trainer {

void CsvLog::Write(const std::string& text) {
  std::ofstream stream(path_, std::ios::app);
  stream << text;
  stream.flush();
  if (!stream) throw std::runtime_error(path_ + " can't be written: " + std::strerror(errno));
}

void CsvLog::OnBegin(Training& training) {
  if (training.rank != 0) return;
  std::string kept;
  std::ifstream stream(path_);
  for (std::string line; training.first_epoch > 1 && std::getline(stream, line);) {
    if (header_.empty()) {
      if (!line.starts_with("epoch,step,")) {
        throw std::runtime_error(path_ + " is in the way: it is no log of a training");
      }
      header_ = line + "\n";
    } else if (std::atoll(line.c_str()) >= training.first_epoch) {
      break;
    }
    kept += line + "\n";
  }
  WriteFile(path_, kept);
}

void CsvLog::OnEpoch(Training& training) {
  if (training.rank != 0) return;
  std::string header = "epoch,step";
  std::string line = std::to_string(training.epoch) + "," + std::to_string(training.step);
  for (const auto& [name, value] : training.metrics) {
    header += "," + name;
    char number[32];
    std::snprintf(number, sizeof number, ",%.9g", value);
    line += number;
  }
  header += "\n";
  if (header_.empty()) {
    header_ = header;
    line = header + line;
  } else if (header != header_) {
    throw rueda::Error(RUEDA_INVALID_ARGUMENT,
                       path_ + " has the columns " + header_ + "and the metrics are " + header);
  }
  Write(line + "\n");
}

}  // namespace trainer
