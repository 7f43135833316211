// broadcast_optimizer_state, and check_replicas of an optimizer: what it is set to and remembers,
// as numbers and tensors. Field by field, and not in torch's archives: reading one can run code
// that came with it, and takes several copies of everything.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstring>

#include "bindings/torch/operation.h"
#include "bindings/torch/optimizer_fields.h"
#include "bindings/torch/training/present_ranks.h"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

namespace optim = torch::optim;

constexpr const char* kBroadcast = "broadcast_optimizer_state";
constexpr double kUndefined = -1;  // in place of a tensor's type

// Writes the fields down.
class Writer : public FieldVisitor {
 public:
  void Number(const char*, double& number) override { numbers.push_back(number); }
  void Tensor(const char* field, at::Tensor& tensor) override {
    numbers.push_back(tensor.defined() ? static_cast<double>(tensor.scalar_type()) : kUndefined);
    if (tensor.defined()) tensors.emplace_back(prefix + field, tensor);
  }

  std::string prefix;
  std::vector<double> numbers;
  NamedTensors tensors;
};

// Sets the fields to what a Writer has written. Tensors get memory, to be filled later.
class Reader : public FieldVisitor {
 public:
  explicit Reader(const double* numbers) : next_(numbers) {}
  void Number(const char*, double& number) override { number = *next_++; }
  void Tensor(const char* field, at::Tensor& tensor) override {
    tensor = at::Tensor();
    const double type = *next_++;
    if (type == kUndefined) return;
    // Not the parameter's: a model may have been converted since the first step.
    tensor = at::empty_like(parameter.detach(), static_cast<at::ScalarType>(type));
    tensors.emplace_back(prefix + field, tensor);
  }

  std::string prefix;
  at::Tensor parameter;
  NamedTensors tensors;

 private:
  const double* next_;
};

std::string Prefix(const std::string& name, size_t group, size_t parameter) {
  return name + ".group" + std::to_string(group) + "." + std::to_string(parameter) + ".";
}

// Parameters without state are written as if they had an empty one, so that ranks with equal forms
// have equally many numbers.
void Write(optim::Optimizer& optimizer, const OptimizerKind& kind, const std::string& name,
           Writer* writer) {
  auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    kind.show_options(groups[g].options(), *writer);
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      const auto it = optimizer.state().find(groups[g].params()[i].unsafeGetTensorImpl());
      bool has_state = it != optimizer.state().end();
      const auto empty = kind.new_state();
      writer->prefix = Prefix(name, g, i);
      (*writer)("has_state", has_state);
      kind.show_state(has_state ? *it->second : *empty, *writer);
    }
  }
}

struct Received {
  std::vector<std::unique_ptr<optim::OptimizerOptions>> options;  // by group
  std::vector<std::pair<void*, std::unique_ptr<optim::OptimizerParamState>>> states;
};

Received Read(optim::Optimizer& optimizer, const OptimizerKind& kind, Reader* reader) {
  Received received;
  auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    received.options.push_back(groups[g].options().clone());
    kind.show_options(*received.options.back(), *reader);
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      bool has_state = false;
      auto state = kind.new_state();
      reader->prefix = Prefix(kBroadcast, g, i);
      reader->parameter = groups[g].params()[i];
      (*reader)("has_state", has_state);
      kind.show_state(*state, *reader);
      if (!has_state) continue;
      received.states.emplace_back(reader->parameter.unsafeGetTensorImpl(), std::move(state));
    }
  }
  return received;
}

void Commit(Received received, const OptimizerKind& kind, optim::Optimizer* optimizer) {
  for (size_t g = 0; g < received.options.size(); ++g) {
    // Not replaced: the program may hold a reference.
    kind.assign_options(*received.options[g], optimizer->param_groups()[g].options());
  }
  optimizer->state().clear();
  for (auto& [parameter, state] : received.states) {
    optimizer->state()[parameter] = std::move(state);
  }
}

// What must be the same on all ranks: the type (-1: not known), and how many parameters each group
// has.
std::vector<int64_t> FormOf(const optim::Optimizer& optimizer) {
  std::vector<int64_t> form = {OptimizerKindIndex(optimizer)};
  for (const auto& group : optimizer.param_groups()) {
    form.push_back(static_cast<int64_t>(group.params().size()));
  }
  return form;
}

std::string Describe(int rank, const std::vector<int64_t>& form) {
  std::string text = "rank ";  // and not "rank " + ...: a warning of g++ 12, which is wrong
  text += std::to_string(rank) + " has ";
  text += form[0] < 0 ? std::string("none of ") + kOptimizerKinds
                      : OptimizerKindAt(static_cast<int>(form[0])).name;
  text += " with groups of";
  for (size_t i = 1; i < form.size(); ++i) text += " " + std::to_string(form[i]);
  return text + " parameters";
}

template <typename T>
at::Tensor ToTensor(const std::vector<T>& values) {
  at::Tensor tensor =
      at::empty({static_cast<int64_t>(values.size())}, c10::CppTypeToScalarType<T>::value);
  std::copy(values.begin(), values.end(), tensor.template mutable_data_ptr<T>());
  return tensor;
}

// Returns the kind that all ranks have that have not joined, in the same form; else throws the same
// error on all.
const OptimizerKind& AgreeOnKind(const optim::Optimizer& optimizer, const std::string& name,
                                 ProcessSet process_set) {
  const std::vector<int64_t> own = FormOf(optimizer);
  const size_t bytes = own.size() * sizeof(int64_t);
  const PresentRanks present = AllgatherPresent(
      std::string(reinterpret_cast<const char*>(own.data()), bytes), name + ".form", process_set);
  std::vector<int64_t> first;
  for (size_t i = 0; i < present.ranks.size(); ++i) {
    const std::string& text = present.texts[i];
    std::vector<int64_t> form(text.size() / sizeof(int64_t));
    std::memcpy(form.data(), text.data(), text.size());
    if (first.empty()) first = form;
    if (form == first && form[0] >= 0) continue;
    std::string message = name + ": ";
    if (form != first) message += Describe(present.ranks[0], first) + ", ";
    message += Describe(present.ranks[i], form);
    if (form[0] < 0) message += "; give what yours remembers to broadcast_parameters";
    throw Error(RUEDA_INVALID_ARGUMENT, message);
  }
  return OptimizerKindAt(static_cast<int>(first[0]));
}

}  // namespace

void broadcast_optimizer_state(optim::Optimizer& optimizer, int root_rank, ProcessSet process_set) {
  const OptimizerKind& kind = AgreeOnKind(optimizer, kBroadcast, process_set);
  Writer writer;
  Write(optimizer, kind, kBroadcast, &writer);
  at::Tensor numbers = ToTensor(writer.numbers);
  broadcast_(numbers, root_rank,
             {.name = std::string(kBroadcast) + ".numbers", .process_set = process_set});
  if (rank() == root_rank) return broadcast_parameters(writer.tensors, root_rank, process_set);
  Reader reader(numbers.const_data_ptr<double>());
  Received received = Read(optimizer, kind, &reader);
  broadcast_parameters(reader.tensors, root_rank, process_set);
  Commit(std::move(received), kind, &optimizer);
}

void check_replicas(optim::Optimizer& optimizer, const std::string& name, ProcessSet process_set) {
  const OptimizerKind& kind = AgreeOnKind(optimizer, name, process_set);
  Writer writer;
  Write(optimizer, kind, "optimizer", &writer);
  writer.tensors.emplace_back("optimizer.settings", ToTensor(writer.numbers));
  check_replicas(writer.tensors, name, process_set);
}

}  // namespace rueda::libtorch
