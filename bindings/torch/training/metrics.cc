// Metrics of all ranks, averaged.
#include <cmath>
#include <cstring>

#include "bindings/torch/operation.h"
#include "bindings/torch/training/present_ranks.h"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

using Metrics = std::map<std::string, double>;

struct RankMetrics {
  double count = 0;
  Metrics metrics;
};

void Append(double number, std::string* text) {
  text->append(reinterpret_cast<const char*>(&number), sizeof number);
}

double TakeNumber(const std::string& text, size_t* at) {
  double number = 0;
  std::memcpy(&number, text.data() + *at, sizeof number);
  *at += sizeof number;
  return number;
}

// The count, then each value, its key's length, and the key.
std::string Serialized(const Metrics& metrics, double count) {
  std::string text;
  Append(count, &text);
  for (const auto& [key, value] : metrics) {
    Append(value, &text);
    Append(static_cast<double>(key.size()), &text);
    text += key;
  }
  return text;
}

RankMetrics Parsed(const std::string& text) {
  RankMetrics parsed;
  size_t at = 0;
  parsed.count = TakeNumber(text, &at);
  while (at < text.size()) {
    const double value = TakeNumber(text, &at);
    const auto length = static_cast<size_t>(TakeNumber(text, &at));
    parsed.metrics[text.substr(at, length)] = value;
    at += length;
  }
  return parsed;
}

[[noreturn]] void Refuse(const std::string& name, const std::string& message) {
  throw Error(RUEDA_INVALID_ARGUMENT, name + ": " + message);
}

// Throws if the metrics of rank `has` have a key that those of rank `lacks` have not.
void CheckKeys(const Metrics& of, int has, const Metrics& in, int lacks, const std::string& name) {
  for (const auto& [key, value] : of) {
    if (in.contains(key)) continue;
    Refuse(name, "the ranks' keys differ: rank " + std::to_string(has) + " has '" + key +
                     "' and rank " + std::to_string(lacks) + " has not");
  }
}

void Check(const std::vector<RankMetrics>& all, const std::vector<int>& ranks,
           const std::string& name) {
  double total = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!std::isfinite(all[i].count) || all[i].count < 0) {
      Refuse(name, "the count of rank " + std::to_string(ranks[i]) + " is " +
                       std::to_string(all[i].count));
    }
    total += all[i].count;
    CheckKeys(all[0].metrics, ranks[0], all[i].metrics, ranks[i], name);
    CheckKeys(all[i].metrics, ranks[i], all[0].metrics, ranks[0], name);
  }
  if (total == 0) Refuse(name, "the counts of all ranks are 0");
}

}  // namespace

Metrics average_metrics(const Metrics& metrics, double count, const std::string& name,
                        ProcessSet process_set) {
  // As bytes rather than in a tensor: so one operation compares the keys, too.
  const libtorch::PresentRanks present =
      libtorch::AllgatherPresent(Serialized(metrics, count), name, process_set);
  std::vector<RankMetrics> all;
  for (const std::string& text : present.texts) all.push_back(Parsed(text));
  Check(all, present.ranks, name);
  double total = 0;
  for (const RankMetrics& one : all) total += one.count;
  Metrics average;
  for (const auto& [key, own] : metrics) {
    double& sum = average[key];
    for (const RankMetrics& one : all) {
      if (one.count > 0) sum += one.metrics.at(key) * (one.count / total);
    }
  }
  return average;
}

}  // namespace rueda::libtorch
