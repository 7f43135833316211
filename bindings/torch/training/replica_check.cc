// Whether all ranks have the same tensors, and who does not.
#include <algorithm>
#include <cstring>
#include <map>

#include "bindings/torch/all_equal.h"
#include "bindings/torch/named_tensors.h"
#include "bindings/torch/training/present_ranks.h"
#include "rueda/rueda.hpp"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

constexpr size_t kNamed = 3;  // tensors in an error's text

struct Print {
  std::string name;
  uint64_t value = 0;
};

uint64_t FingerprintOf(const at::Tensor& tensor) {
  at::Tensor plain = tensor.detach();
  if (plain.layout() != at::kStrided) plain = plain.to_dense();
  plain = plain.cpu().contiguous();
  detail::Fingerprint print;
  print.Add(static_cast<uint64_t>(plain.scalar_type()));
  for (const int64_t size : plain.sizes()) print.Add(static_cast<uint64_t>(size));
  print.Add(plain.data_ptr(), plain.nbytes());
  return print.value();
}

std::vector<Print> FingerprintsOf(const NamedTensors& tensors) {
  std::vector<Print> prints;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined()) prints.push_back({name, FingerprintOf(tensor)});
  }
  return prints;
}

// Whatever their order is.
uint64_t Whole(const std::vector<Print>& prints) {
  uint64_t sum = 0;
  for (const Print& print : prints) {
    detail::Fingerprint one;
    one.Add(print.name.data(), print.name.size());
    one.Add(print.value);
    sum += one.value();
  }
  return sum;
}

// Each print, and its name with a NUL.
std::string Serialized(const std::vector<Print>& prints) {
  std::string text;
  for (const Print& print : prints) {
    text.append(reinterpret_cast<const char*>(&print.value), sizeof print.value);
    text.append(print.name.c_str(), print.name.size() + 1);
  }
  return text;
}

std::vector<Print> PrintsIn(const std::string& text) {
  std::vector<Print> prints;
  for (size_t at = 0; at < text.size();) {
    Print print;
    std::memcpy(&print.value, text.data() + at, sizeof print.value);
    print.name = text.c_str() + at + sizeof print.value;
    at += sizeof print.value + print.name.size() + 1;
    prints.push_back(std::move(print));
  }
  return prints;
}

// A tensor on all ranks, by index; no value where it is missing.
struct Row {
  std::string name;
  std::vector<std::optional<uint64_t>> values;
};

// In the order of the first rank's, then those that only others have.
std::vector<Row> RowsOf(const std::vector<std::string>& objects) {
  std::vector<Row> rows;
  std::map<std::string, size_t> places;
  for (size_t index = 0; index < objects.size(); ++index) {
    for (const Print& print : PrintsIn(objects[index])) {
      const auto [it, is_new] = places.emplace(print.name, rows.size());
      if (is_new) rows.push_back({print.name, {}});
      Row& row = rows[it->second];
      row.values.resize(objects.size());
      row.values[index] = row.values[index].value_or(0) + print.value;  // two of one name
    }
  }
  return rows;
}

// The indices whose value is not the one that most ranks have; of several such the first rank's.
std::vector<size_t> Outliers(const Row& row) {
  const auto count = [&](const std::optional<uint64_t>& value) {
    return std::count(row.values.begin(), row.values.end(), value);
  };
  const auto usual =
      *std::max_element(row.values.begin(), row.values.end(),
                        [&](const auto& a, const auto& b) { return count(a) < count(b); });
  std::vector<size_t> outliers;
  for (size_t i = 0; i < row.values.size(); ++i) {
    if (row.values[i] != usual) outliers.push_back(i);
  }
  return outliers;
}

std::string Describe(const Row& row, const std::vector<size_t>& outliers,
                     const std::vector<int>& ranks) {
  std::string text = "'" + row.name + "'";
  if (std::count(row.values.begin(), row.values.end(), std::nullopt) > 0) text += " (not on all)";
  text += outliers.size() == 1 ? " on rank " : " on ranks ";
  for (size_t i = 0; i < outliers.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[outliers[i]]);
  }
  return text;
}

[[noreturn]] void ThrowDifference(const std::vector<Row>& rows, const std::vector<int>& ranks) {
  std::string text;
  size_t different = 0;
  for (const Row& row : rows) {
    const std::vector<size_t> outliers = Outliers(row);
    if (outliers.empty()) continue;
    if (++different <= kNamed) {
      text += (different == 1 ? "" : "; ") + Describe(row, outliers, ranks);
    }
  }
  if (different > kNamed) text += "; ...";
  throw Error(RUEDA_FAILED_PRECONDITION, "replicas differ: " + text + " (" +
                                             std::to_string(different) + " of " +
                                             std::to_string(rows.size()) + " tensors)");
}

}  // namespace

void check_replicas(const NamedTensors& tensors, const std::string& name, ProcessSet process_set) {
  const std::vector<Print> prints = FingerprintsOf(tensors);
  if (AllEqual(Whole(prints), name, process_set)) return;
  // Rare: so only now by tensor.
  const libtorch::PresentRanks present =
      libtorch::AllgatherPresent(Serialized(prints), name + ".tensors", process_set);
  ThrowDifference(RowsOf(present.texts), present.ranks);
}

void check_replicas(const torch::nn::Module& module, const std::string& name,
                    ProcessSet process_set) {
  check_replicas(TensorsOf(module), name, process_set);
}

ReplicaCheck::ReplicaCheck(int64_t every_n_steps, std::string name, ProcessSet process_set)
    : every_n_steps_(every_n_steps), name_(std::move(name)), process_set_(process_set) {
  if (every_n_steps < 1) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "ReplicaCheck: every_n_steps is " + std::to_string(every_n_steps) + "; at least 1");
  }
}

void ReplicaCheck::step(const torch::nn::Module& module) {
  if (++steps_ % every_n_steps_ == 0) check_replicas(module, name_, process_set_);
}

}  // namespace rueda::libtorch
