// Strategies' files: one dictionary of plain types and tensors, in torch's format.
//
//     {"format": 1, "model": {name: tensor}, "optimizer": kind, "groups": [{field: number}],
//      "state": {parameter's name: {field: number or tensor}}, "strategy": {name: tensor}}
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <caffe2/serialize/inline_container.h>
#include <fcntl.h>
#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "bindings/torch/named_tensors.h"
#include "bindings/torch/optimizer_fields.h"
#include "bindings/torch/strategies/base.h"
#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

constexpr int64_t kFormat = 1;
constexpr const char* kPrint = "fingerprint";

using Dict = c10::impl::GenericDict;

Dict NewDict() {
  return Dict(c10::StringType::get(), c10::AnyType::get());
}

// On the CPU, and without the memory around it.
at::Tensor Alone(const at::Tensor& tensor) {
  const at::Tensor value = tensor.detach().cpu();
  return value.storage().nbytes() == value.nbytes() ? value : value.clone();
}

class ToState : public FieldVisitor {
 public:
  void Number(const char* field, double& number) override {
    state.numbers.emplace_back(field, number);
  }
  void Tensor(const char* field, at::Tensor& tensor) override {
    if (tensor.defined()) state.tensors.emplace_back(field, tensor);
  }
  ParameterState state;
};

// Leaves what the state does not have as it is.
class FromState : public FieldVisitor {
 public:
  explicit FromState(const ParameterState& state) : state_(state) {}
  void Number(const char* field, double& number) override {
    for (const auto& [name, value] : state_.numbers) {
      if (name == field) number = value;
    }
  }
  void Tensor(const char* field, at::Tensor& tensor) override {
    for (const auto& [name, value] : state_.tensors) {
      if (name == field) tensor = value;
    }
  }

 private:
  const ParameterState& state_;
};

// Writes to a file that is there whole or as it was before.
class FileWriter {
 public:
  explicit FileWriter(const std::string& path) : path_(path), part_(path + ".part") {
    fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) Fail(part_);
  }
  ~FileWriter() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(part_.c_str());
  }
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // For torch's writer, which ends the process when it is told of an error in its destructor: one
  // is kept, for Commit.
  size_t Write(const void* data, size_t bytes) {
    const char* next = static_cast<const char*>(data);
    for (size_t left = bytes; left > 0 && error_ == 0;) {
      const ssize_t count = write(fd_, next, left);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        error_ = errno;
      } else {
        next += count;
        left -= static_cast<size_t>(count);
      }
    }
    return bytes;
  }
  void Commit() {
    if (error_ != 0) {
      errno = error_;
      Fail(part_);
    }
    if (fsync(fd_) != 0) Fail(part_);
    if (rename(part_.c_str(), path_.c_str()) != 0) Fail(path_);
    close(std::exchange(fd_, -1));
  }

 private:
  [[noreturn]] static void Fail(const std::string& path) {
    throw std::runtime_error(path + ": " + strerror(errno));
  }
  const std::string path_, part_;
  int fd_ = -1;
  int error_ = 0;  // of the first write that failed
};

// In torch's format. torch's own pickle_save adds types that Python takes for code.
void WriteArchive(const c10::IValue& value, const std::string& path) {
  FileWriter file(path);
  caffe2::serialize::PyTorchStreamWriter archive(
      [&](const void* data, size_t bytes) { return file.Write(data, bytes); });
  std::string pickle;
  torch::jit::Pickler pickler([&](const char* data, size_t bytes) { pickle.append(data, bytes); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  archive.writeRecord("data.pkl", pickle.data(), pickle.size());
  const std::vector<at::Tensor>& tensors = pickler.tensorData();
  for (size_t i = 0; i < tensors.size(); ++i) {
    archive.writeRecord("data/" + std::to_string(i), tensors[i].storage().data(),
                        tensors[i].storage().nbytes());
  }
  archive.writeEndOfFile();
  file.Commit();
}

c10::IValue ReadArchive(const std::string& path) {
  auto file = std::make_shared<caffe2::serialize::PyTorchStreamReader>(path);
  return torch::jit::readArchiveAndTensors("data", "", "data/", std::nullopt, std::nullopt,
                                           at::Device(at::kCPU), *file);
}

[[noreturn]] void Bad(const std::string& what) {
  throw Error(RUEDA_INVALID_ARGUMENT, what);
}

c10::IValue ValueAt(const Dict& dict, const std::string& key) {
  const auto it = dict.find(key);
  if (it == dict.end()) Bad("has no '" + key + "'");
  return it->value();
}

Dict DictOf(const c10::IValue& value, const std::string& what) {
  if (!value.isGenericDict()) Bad("has a " + what + " that is no dictionary");
  return value.toGenericDict();
}

at::Tensor TensorOf(const c10::IValue& value, const at::Tensor& like, const std::string& what) {
  if (!value.isTensor() || !like.defined() || value.toTensor().sizes() != like.sizes() ||
      value.toTensor().scalar_type() != like.scalar_type()) {
    Bad("has a " + what + " of another shape or type");
  }
  return value.toTensor();
}

Dict ToDict(const ParameterState& state) {
  Dict dict = NewDict();
  for (const auto& [field, number] : state.numbers) dict.insert(field, number);
  for (const auto& [field, tensor] : state.tensors) dict.insert(field, Alone(tensor));
  return dict;
}

// Of a parameter like `like`, on its device.
ParameterState ToParameterState(const Dict& dict, const at::Tensor& like, const std::string& name) {
  ParameterState state;
  for (const auto& entry : dict) {
    const std::string field = entry.key().toStringRef();
    if (entry.value().isDouble()) {
      state.numbers.emplace_back(field, entry.value().toDouble());
    } else {
      const at::Tensor value = TensorOf(entry.value(), like, field + " of '" + name + "'");
      state.tensors.emplace_back(field, value.to(like.device()));
    }
  }
  return state;
}

void Add(const c10::IValue& value, detail::Fingerprint* print) {
  if (value.isTensor()) {
    const at::Tensor tensor = value.toTensor().contiguous();
    print->Add(static_cast<uint64_t>(tensor.scalar_type()));
    print->Add(tensor.const_data_ptr(), tensor.nbytes());
  } else if (value.isString()) {
    print->Add(value.toStringRef().data(), value.toStringRef().size());
  } else if (value.isInt()) {
    print->Add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    print->Add(&number, sizeof number);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      if (entry.key().toStringRef() == kPrint) continue;
      Add(entry.key(), print);
      Add(entry.value(), print);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) Add(element, print);
  }
}

// Of all that a file's dictionary has, but for itself.
uint64_t PrintOf(const Dict& all) {
  detail::Fingerprint print;
  Add(c10::IValue(all), &print);
  return print.value();
}

// The file's dictionary, if it is of this format and of an optimizer of this kind.
Dict Open(const std::string& path, const OptimizerKind& kind) {
  if (access(path.c_str(), R_OK) != 0) Bad(std::string("can't be read: ") + strerror(errno));
  c10::IValue value;
  try {
    value = ReadArchive(path);
  } catch (const std::exception&) {
    Bad("is not a file of torch's format, or cut short");
  }
  if (!value.isGenericDict()) Bad("was not written by save()");
  const Dict all = value.toGenericDict();
  const auto format = all.find("format");
  if (format == all.end() || !format->value().isInt()) Bad("was not written by save()");
  if (format->value().toInt() != kFormat) {
    Bad("has format " + std::to_string(format->value().toInt()) + "; this version reads " +
        std::to_string(kFormat));
  }
  const auto print = all.find(kPrint);  // older files have none
  if (print != all.end() &&
      (!print->value().isInt() || print->value().toInt() != static_cast<int64_t>(PrintOf(all)))) {
    Bad("is damaged: its contents have another fingerprint");
  }
  const c10::IValue name = ValueAt(all, "optimizer");
  if (!name.isString() || name.toStringRef() != kind.name) {
    Bad("is of the optimizer " + (name.isString() ? name.toStringRef() : "without a name") +
        "; this one is " + kind.name);
  }
  return all;
}

// What a file says, checked against what is there.
struct Contents {
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;  // and what they become
  std::vector<ParameterState> groups;                      // of the optimizer: numbers
  std::vector<ParameterState> states;                      // by parameter
  std::vector<at::Tensor> lost;  // what compression has lost: bytes, by rank
};

at::Tensor BytesOf(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

// What compression had lost, by rank; files without any are older.
std::vector<at::Tensor> LostOf(const Dict& all) {
  const auto it = all.find("compression");
  if (it == all.end()) return {};
  if (!it->value().isList()) Bad("has no list of what compression has lost");
  std::vector<at::Tensor> lost;
  for (const c10::IValue& own : it->value().toListRef()) {
    if (!own.isTensor() || own.toTensor().scalar_type() != at::kByte) {
      Bad("has no list of what compression has lost");
    }
    lost.push_back(own.toTensor().contiguous());
  }
  return lost;
}

void TakeModel(const Dict& model, const NamedTensors& tensors, Contents* contents) {
  for (const auto& [name, tensor] : tensors) {
    contents->tensors.emplace_back(tensor,
                                   TensorOf(ValueAt(model, name), tensor, "'" + name + "'"));
  }
  if (tensors.size() != model.size()) Bad("has parameters or buffers that this model has not");
}

void TakeGroups(const c10::IValue& groups, size_t count, Contents* contents) {
  if (!groups.isList() || groups.toListRef().size() != count) {
    Bad("has another number of parameter groups");
  }
  for (const c10::IValue& group : groups.toListRef()) {
    contents->groups.push_back(
        ToParameterState(DictOf(group, "parameter group"), at::Tensor(), "a parameter group"));
  }
}

}  // namespace

void SetParameterState(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                       const ParameterState& state) {
  if (state.empty()) {
    optimizer.state().erase(parameter.unsafeGetTensorImpl());
    return;
  }
  const OptimizerKind& kind = OptimizerKindAt(OptimizerKindIndex(optimizer));
  std::unique_ptr<torch::optim::OptimizerParamState> made = kind.new_state();
  FromState from(state);
  kind.show_state(*made, from);
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(made);
}

ParameterState GetParameterState(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto it = optimizer.state().find(parameter.unsafeGetTensorImpl());
  if (it == optimizer.state().end()) return {};
  ToState to;
  OptimizerKindAt(OptimizerKindIndex(optimizer)).show_state(*it->second, to);
  return to.state;
}

std::vector<ParameterState> GetOptions(torch::optim::Optimizer& optimizer) {
  const OptimizerKind& kind = OptimizerKindAt(OptimizerKindIndex(optimizer));
  std::vector<ParameterState> groups;
  for (auto& group : optimizer.param_groups()) {
    ToState to;
    kind.show_options(group.options(), to);
    groups.push_back(std::move(to.state));
  }
  return groups;
}

void SetOptions(torch::optim::Optimizer& optimizer, const std::vector<ParameterState>& groups) {
  const OptimizerKind& kind = OptimizerKindAt(OptimizerKindIndex(optimizer));
  for (size_t g = 0; g < groups.size(); ++g) {
    FromState from(groups[g]);
    kind.show_options(optimizer.param_groups()[g].options(), from);
  }
}

std::vector<ParameterState> BaseStrategy::GetState() {
  std::vector<ParameterState> states;
  for (const Parameter& parameter : parameters_) {
    states.push_back(GetParameterState(optimizer_, parameter.tensor));
  }
  return states;
}

void BaseStrategy::SetState(const std::vector<ParameterState>& states) {
  for (size_t i = 0; i < states.size(); ++i) {
    SetParameterState(optimizer_, parameters_[i].tensor, states[i]);
  }
}

const OptimizerKind& BaseStrategy::KindForFiles() const {
  const int index = OptimizerKindIndex(optimizer_);
  if (index < 0) Refuse(std::string("save and load know ") + kOptimizerKinds + " only");
  return OptimizerKindAt(index);
}

// What compression has lost, by rank; nothing without one.
std::vector<std::string> BaseStrategy::GetLost() {
  if (!IsCompressed()) return {};
  detail::Bytes bytes;
  detail::Check(rueda_compression_save(context_, options_.process_set.id, &bytes.result), context_);
  const std::string own(bytes.data(), static_cast<size_t>(bytes.result.tensor.shape[0]));
  return allgather_object(own, {.name = NameOf("lost"), .process_set = options_.process_set});
}

void BaseStrategy::SetLost(const std::vector<at::Tensor>& lost) {
  if (!IsCompressed() || lost.empty()) return;
  std::vector<const void*> data;
  std::vector<size_t> bytes;
  for (const at::Tensor& one : lost) {
    data.push_back(one.const_data_ptr());
    bytes.push_back(one.nbytes());
  }
  detail::Check(rueda_compression_load(context_, options_.process_set.id, data.data(), bytes.data(),
                                       data.size()),
                context_);
}

// That all ranks have read the same: a file may be another one, or older, on another host.
void BaseStrategy::CheckSameFile(const std::string& path, uint64_t print) {
  const at::Tensor prints =
      allgather(at::scalar_tensor(static_cast<int64_t>(print), at::kLong).reshape({1}),
                {.name = NameOf("file"), .process_set = options_.process_set});
  std::string ranks;
  for (size_t i = 1; i < static_cast<size_t>(ranks_); ++i) {
    if (prints[static_cast<int64_t>(i)].item<int64_t>() == prints[0].item<int64_t>()) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(options_.process_set.ranks()[i]);
  }
  if (ranks.empty()) return;
  throw Error(RUEDA_INVALID_ARGUMENT,
              "strategy " + name_ + ": " + path + " is another file on rank " + ranks +
                  " than on rank " + std::to_string(first_rank_) + ": all ranks read their own");
}

void BaseStrategy::save(const std::string& path) {
  const OptimizerKind& kind = KindForFiles();
  finish();
  const std::vector<ParameterState> states = GetState();
  const std::vector<std::string> lost = GetLost();
  std::string error;
  if (index_ == 0) {
    try {
      Dict model = NewDict();
      for (const auto& [name, tensor] : TensorsOf(model_.module())) {
        model.insert(name, Alone(tensor));
      }
      c10::impl::GenericList groups(c10::AnyType::get());
      for (const ParameterState& group : GetOptions(optimizer_)) groups.push_back(ToDict(group));
      Dict state = NewDict();
      for (size_t i = 0; i < states.size(); ++i) {
        if (states[i].empty()) continue;
        state.insert(parameters_[i].name, ToDict(states[i]));
      }
      Dict extras = NewDict();
      for (const auto& [name, tensor] : Extras()) extras.insert(name, Alone(tensor));
      c10::impl::GenericList compression(c10::AnyType::get());
      for (const std::string& own : lost) compression.push_back(BytesOf(own));
      Dict all = NewDict();
      all.insert("format", kFormat);
      all.insert("model", model);
      all.insert("optimizer", kind.name);
      all.insert("groups", groups);
      all.insert("state", state);
      all.insert("strategy", extras);
      all.insert("compression", compression);
      all.insert(kPrint, static_cast<int64_t>(PrintOf(all)));
      WriteArchive(all, path);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  }
  Agree("saved", error, RUEDA_INTERNAL);
}

void BaseStrategy::load(const std::string& path) {
  const OptimizerKind& kind = KindForFiles();
  Contents contents;
  uint64_t print = 0;
  std::string error;
  try {
    const Dict all = Open(path, kind);
    print = PrintOf(all);
    TakeModel(DictOf(ValueAt(all, "model"), "model"), TensorsOf(model_.module()), &contents);
    TakeGroups(ValueAt(all, "groups"), optimizer_.param_groups().size(), &contents);
    const Dict states = DictOf(ValueAt(all, "state"), "state");
    for (const Parameter& parameter : parameters_) {
      ParameterState& state = contents.states.emplace_back();
      const auto it = states.find(parameter.name);
      if (it == states.end()) continue;
      state = ToParameterState(DictOf(it->value(), "state of '" + parameter.name + "'"),
                               parameter.tensor, parameter.name);
    }
    const Dict extras = DictOf(ValueAt(all, "strategy"), "strategy");
    for (const auto& [name, tensor] : Extras()) {
      const auto it = extras.find(name);
      if (it == extras.end()) continue;
      contents.tensors.emplace_back(tensor, TensorOf(it->value(), tensor, "'" + name + "'"));
    }
    contents.lost = LostOf(all);
  } catch (const std::exception& failure) {
    error = path + " " + failure.what();
  }
  Agree("loaded", error);
  CheckSameFile(path, print);
  OnLoading();
  const at::NoGradGuard no_grad;
  SetLost(contents.lost);
  for (auto& [to, from] : contents.tensors) to.copy_(from);
  SetOptions(optimizer_, contents.groups);
  SetState(contents.states);
  OnLoaded();
}

}  // namespace rueda::libtorch
