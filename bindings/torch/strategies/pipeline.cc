// pipeline: each rank has some of a torch::nn::Sequential's layers, one stage behind another, and a
// batch goes through them in parts (GPipe, arXiv 1811.06965).
//
// Every rank gets the last stage's output, and computes the loss and its gradient; only the last
// stage's gradient counts. In the others' graphs each part has a knot: in a backward pass it waits
// for the part's gradient from the next stage. Autograd runs what was recorded last first, so that
// the stages' backward passes go part by part, one behind another too.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "bindings/torch/named_tensors.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

constexpr int64_t kDimsMax = 32;

class Pipeline : public BaseStrategy {
 public:
  Pipeline(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
           const StrategyOptions& options);

  at::Tensor forward(const at::Tensor& input) override;
  void backward(const at::Tensor& loss, bool) override { loss.backward(); }
  void synchronize() override {}  // autograd has waited
  double clip_grad_norm(double max_norm) override;
  bool unscale(double factor) override;
  void step() override {
    CheckParameters();
    optimizer().step();
  }
  void zero_grad() override { optimizer().zero_grad(); }
  // Gives all ranks the parameters and buffers of all stages.
  void finish() override;

 protected:
  std::vector<ParameterState> GetState() override;

 private:
  class FromBefore;  // a part's input, as autograd sees it
  class ToNext;      // a part's output
  class Output;      // the batch's

  // Of a member of the process set: which children of the model it has.
  std::pair<size_t, size_t> ChildrenOf(int stage) const {
    return {begins_[static_cast<size_t>(stage)], begins_[static_cast<size_t>(stage) + 1]};
  }
  void Split();
  at::Tensor RunStage(at::Tensor value);
  std::vector<at::Tensor> Gradients() const;  // of this rank's stage
  at::Tensor ShareOutput(const at::Tensor& output);
  void Send(const at::Tensor& tensor, int stage, const std::string& name);
  at::Tensor Receive(int stage, const std::string& name);

  torch::nn::SequentialImpl* sequential_;
  std::vector<int> members_;    // world ranks, by stage
  std::vector<size_t> begins_;  // by stage, its first child; and how many there are
  std::vector<int> owner_;      // by parameter: its stage
  std::vector<std::shared_ptr<Operation>> sends_;  // that may be under way
};

// What the autograd functions need of a part.
struct Part : torch::CustomClassHolder {
  std::function<at::Tensor()> receive;
  std::function<void(const at::Tensor&)> send;
};

class Pipeline::FromBefore : public torch::autograd::Function<FromBefore> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor&,
                            const c10::intrusive_ptr<Part>& part) {
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    return part->receive();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    static_cast<Part&>(*context->saved_data["part"].toCapsule()).send(gradients[0]);
    return {at::Tensor(), at::Tensor()};
  }
};

// `token` ties the parts together.
class Pipeline::ToNext : public torch::autograd::Function<ToNext> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& token,
                            const at::Tensor& value, const c10::intrusive_ptr<Part>& part) {
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    part->send(value);
    return token.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const at::Tensor gradient =
        static_cast<Part&>(*context->saved_data["part"].toCapsule()).receive();
    return {gradients[0], gradient, at::Tensor()};
  }
};

class Pipeline::Output : public torch::autograd::Function<Output> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor&,
                            const at::Tensor& value) {
    return value.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               const torch::autograd::tensor_list&) {
    return {at::zeros({1}), at::Tensor()};
  }
};

Pipeline::Pipeline(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
                   const StrategyOptions& options)
    : BaseStrategy(std::move(name), model, optimizer, options),
      sequential_(dynamic_cast<torch::nn::SequentialImpl*>(&model.module())) {
  if (options.micro_batches < 1) Refuse("micro_batches must be at least 1");
  if (sequential_ == nullptr) Refuse("the model must be a torch::nn::Sequential");
  if (sequential_->size() < static_cast<size_t>(ranks())) {
    Refuse("the model has " + std::to_string(sequential_->size()) + " layers for " +
           std::to_string(ranks()) + " ranks");
  }
  for (const int rank : options.process_set.ranks()) members_.push_back(rank);
  Split();
}

// Into stages with about as many bytes of parameters each, and a layer at least.
void Pipeline::Split() {
  const auto children = sequential_->children();
  std::vector<double> before = {0};  // by child; and of all
  for (const auto& child : children) {
    double bytes = 1;  // those without parameters count a little
    for (const at::Tensor& parameter : child->parameters()) {
      bytes += static_cast<double>(parameter.nbytes());
    }
    before.push_back(before.back() + bytes);
  }
  const auto stages = static_cast<size_t>(ranks());
  begins_ = {0};
  for (size_t stage = 1; stage < stages; ++stage) {
    const double target = before.back() * static_cast<double>(stage) / static_cast<double>(stages);
    size_t best = begins_.back() + 1;
    for (size_t child = best; child + (stages - stage) <= children.size(); ++child) {
      if (std::abs(before[child] - target) < std::abs(before[best] - target)) best = child;
    }
    begins_.push_back(best);
  }
  begins_.push_back(children.size());
  owner_.assign(parameters().size(), -1);
  for (int stage = 0; stage < ranks(); ++stage) {
    const auto [begin, end] = ChildrenOf(stage);
    for (size_t child = begin; child < end; ++child) {
      for (const at::Tensor& tensor : children[child]->parameters()) {
        for (size_t i = 0; i < parameters().size(); ++i) {
          if (!parameters()[i].tensor.is_same(tensor)) continue;
          if (owner_[i] >= 0 && owner_[i] != stage) {
            Refuse("'" + parameters()[i].name + "' is shared by layers of several stages");
          }
          owner_[i] = stage;
        }
      }
    }
  }
}

at::Tensor Pipeline::RunStage(at::Tensor value) {
  const auto [begin, end] = ChildrenOf(index());
  for (size_t child = begin; child < end; ++child) {
    value = (sequential_->begin() + static_cast<std::ptrdiff_t>(child))->forward(value);
  }
  return value;
}

// In the background: the next part is computed meanwhile.
void Pipeline::Send(const at::Tensor& tensor, int stage, const std::string& name) {
  const at::Tensor value = tensor.detach().contiguous();
  at::Tensor form = at::zeros({kDimsMax + 2}, at::kLong);
  int64_t* const numbers = form.mutable_data_ptr<int64_t>();
  numbers[0] = static_cast<int64_t>(value.scalar_type());
  numbers[1] = value.dim();
  std::copy(value.sizes().begin(), value.sizes().end(), numbers + 2);
  for (const auto& [suffix, part] : {std::pair<const char*, at::Tensor>{".form", form},
                                     std::pair<const char*, at::Tensor>{"", value}}) {
    const std::string whole = NameOf(name + suffix);
    sends_.push_back(Operation::Submit(context(), {.kind = RUEDA_SEND,
                                                   .tensors = part,
                                                   .name = whole,
                                                   .process_set = options().process_set,
                                                   .root = members_[static_cast<size_t>(stage)]}));
  }
}

at::Tensor Pipeline::Receive(int stage, const std::string& name) {
  const auto receive = [&](const at::Tensor& into, const char* suffix) {
    const std::string whole = NameOf(name + suffix);
    Operation::Execute(context(), {.kind = RUEDA_RECV,
                                   .tensors = into,
                                   .in_place = true,
                                   .name = whole,
                                   .process_set = options().process_set,
                                   .root = members_[static_cast<size_t>(stage)]});
  };
  const at::Tensor form = at::zeros({kDimsMax + 2}, at::kLong);
  receive(form, ".form");
  const int64_t* const numbers = form.const_data_ptr<int64_t>();
  at::Tensor value = at::empty(at::IntArrayRef(numbers + 2, static_cast<size_t>(numbers[1])),
                               at::TensorOptions().dtype(static_cast<at::ScalarType>(numbers[0])));
  receive(value, "");
  return value;
}

at::Tensor Pipeline::forward(const at::Tensor& input) {
  // What was sent before has arrived, or else the other side would not be here.
  sends_.clear();
  const int stage = index();
  const bool is_first = stage == 0;
  const bool is_last = stage == ranks() - 1;
  if (!input.defined() || input.dim() == 0 || input.size(0) == 0) {
    Refuse("needs a batch with rows, at least one, on all ranks");
  }
  // As many parts on all ranks, as all have the batch.
  const std::vector<at::Tensor> parts = input.chunk(options().micro_batches);
  at::Tensor token = at::zeros({1}).requires_grad_();
  std::vector<at::Tensor> outputs;
  for (size_t k = 0; k < parts.size(); ++k) {
    const std::string name = ".part " + std::to_string(k);
    at::Tensor value = parts[k];
    if (!is_first) {
      auto part = c10::make_intrusive<Part>();
      part->receive = [=, this] { return Receive(stage - 1, "forward" + name); };
      part->send = [=, this](const at::Tensor& gradient) {
        Send(gradient, stage - 1, "backward" + name);
      };
      value = FromBefore::apply(at::zeros({1}).requires_grad_(), part);
    }
    value = RunStage(value);
    if (is_last) {
      outputs.push_back(value);
    } else {
      auto part = c10::make_intrusive<Part>();
      part->send = [=, this](const at::Tensor& output) {
        Send(output, stage + 1, "forward" + name);
      };
      part->receive = [=, this] { return Receive(stage + 1, "backward" + name); };
      token = ToNext::apply(token, value, part);
    }
  }
  const at::Tensor whole = ShareOutput(is_last ? at::cat(outputs) : at::Tensor());
  return is_last ? whole : Output::apply(token, whole);
}

// The last stage's to all, which need it for the loss.
at::Tensor Pipeline::ShareOutput(const at::Tensor& output) {
  const int last = ranks() - 1;
  if (index() == last) {
    for (int stage = 0; stage < last; ++stage) Send(output, stage, "output");
    return output;
  }
  return Receive(last, "output");
}

std::vector<at::Tensor> Pipeline::Gradients() const {
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters()) {
    if (parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
  }
  return gradients;
}

double Pipeline::clip_grad_norm(double max_norm) {
  return ClipTogether(Gradients(), max_norm);
}

bool Pipeline::unscale(double factor) {
  return UnscaleTogether(Gradients(), factor);
}

void Pipeline::finish() {
  const auto children = sequential_->named_children();
  for (int stage = 0; stage < ranks(); ++stage) {
    NamedTensors tensors;
    const auto [begin, end] = ChildrenOf(stage);
    for (size_t child = begin; child < end; ++child) {
      const std::string prefix = NameOf(children[child].key() + ".");
      for (const auto& [name, tensor] : TensorsOf(*children[child].value())) {
        tensors.emplace_back(prefix + name, tensor);
      }
    }
    broadcast_parameters(tensors, members_[static_cast<size_t>(stage)], options().process_set);
  }
}

// Each stage's from its rank.
std::vector<ParameterState> Pipeline::GetState() {
  std::vector<ParameterState> states = BaseStrategy::GetState();
  for (size_t i = 0; i < states.size(); ++i) {
    if (owner_[i] < 0) continue;
    const int root = members_[static_cast<size_t>(owner_[i])];
    ParameterState& state = states[i];
    // Fields by name, one a line; of tensors the values follow.
    std::string text;
    if (owner_[i] == index()) {
      for (const auto& [field, number] : state.numbers) {
        char value[32];
        std::snprintf(value, sizeof value, "%.17g", number);
        text += field + " " + value + "\n";
      }
      for (const auto& [field, tensor] : state.tensors) text += field + "\n";
    }
    text = broadcast_object(text, root, NameOf("state"), options().process_set);
    if (owner_[i] != index()) {
      state = ParameterState();
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        const std::string line = text.substr(begin, end - begin);
        const size_t space = line.find(' ');
        if (space == std::string::npos) {
          state.tensors.emplace_back(line, at::empty_like(parameters()[i].tensor.detach()));
        } else {
          state.numbers.emplace_back(line.substr(0, space), std::stod(line.substr(space + 1)));
        }
        begin = end + 1;
      }
    }
    for (const auto& [field, tensor] : state.tensors) {
      broadcast_(tensor, root, NameOf("state." + field), options().process_set);
    }
  }
  return states;
}

}  // namespace

std::unique_ptr<Strategy> MakePipeline(std::string name, const Model& model,
                                       torch::optim::Optimizer& optimizer,
                                       const StrategyOptions& options) {
  return std::make_unique<Pipeline>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
