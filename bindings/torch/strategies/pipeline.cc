// pipeline: each rank has some of a torch::nn::Sequential's layers, one stage behind another, and a
// batch goes through them in parts (GPipe, arXiv 1811.06965).
//
// Every rank gets the last stage's output, and computes the loss and its gradient; only the last
// stage's gradient counts. In the others' graphs each part has a knot: in a backward pass it waits
// for the part's gradient from the next stage. Autograd runs what was recorded last first, so that
// the stages' backward passes go part by part, one behind another too.
//
// A part that takes no gradient (integers, or what frozen layers make of an input) has no knot: the
// next stage is told so with the part. One that takes a gradient, but is used for nothing that has
// one, gets "none" when the next stage's backward pass has ended.
//
// On CUDA the knots' nodes run on the thread that called backward() while the stage's own run on
// autograd's thread of the device; autograd lets a node's stream wait for another node's only if
// both are of a device. So a gradient is received on the stream that its part was computed on.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/torch/all_equal.h"
#include "bindings/torch/device.h"
#include "bindings/torch/named_tensors.h"
#include "bindings/torch/strategies/strategies.h"
#include "rueda/rueda.hpp"

namespace rueda::libtorch {
namespace {

constexpr int64_t kDimsMax = 32;
// What is sent before a tensor, int64: its type, whether it takes a gradient, how many dimensions
// it has and their sizes.
constexpr int64_t kFormSize = kDimsMax + 3;
constexpr int64_t kNoTensor = -1;  // of dimensions: nothing follows
// Forward passes whose gradients have names of their own. If there are more in one loss, a gradient
// waits for an earlier one of its name to be received.
constexpr int kPassNames = 8;

class Pipeline : public BaseStrategy {
 public:
  Pipeline(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
           const StrategyOptions& options);

  at::Tensor forward(const at::Tensor& input) override;
  void backward(const at::Tensor& loss, bool last) override;
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
  std::vector<Piece> StatePieces() override;
  void TakeStates(const std::vector<Piece>& pieces) override;

 private:
  struct Part;
  struct Pass;
  class FromBefore;  // a part's input, as autograd sees it
  class ToNext;      // a part's output
  class Output;      // the batch's

  // Of a member of the process set: which children of the model it has.
  std::pair<size_t, size_t> ChildrenOf(int stage) const {
    return {begins_[static_cast<size_t>(stage)], begins_[static_cast<size_t>(stage) + 1]};
  }
  void Split();
  void CheckSameBatch(const at::Tensor& input);
  at::Tensor RunStage(at::Tensor value);
  std::vector<at::Tensor> Gradients() const;  // of this rank's stage
  at::Tensor ShareOutput(const at::Tensor& output, bool* takes_gradient);
  // An undefined tensor arrives as such.
  void Send(const at::Tensor& tensor, bool takes_gradient, int stage, const std::string& name);
  at::Tensor Receive(int stage, const std::string& name, bool* takes_gradient = nullptr);

  // Throws: it is gone.
  static std::shared_ptr<Pipeline> Lock(const std::weak_ptr<Pipeline>& pipeline);

  // What outputs, which may outlive this object, have of it.
  const std::shared_ptr<Pipeline> self_{this, [](Pipeline*) {}};
  torch::nn::SequentialImpl* sequential_;
  const at::Device device_;     // of all parameters, buffers, inputs and outputs
  std::vector<int> members_;    // world ranks, by stage
  std::vector<size_t> begins_;  // by stage, its first child; and how many there are
  std::vector<int> owner_;      // by parameter: its stage
  // That may be under way; by stage and name.
  std::map<std::pair<int, std::string>, std::shared_ptr<Operation>> sends_;
  int passes_ = 0;                                 // forward, modulo kPassNames
  std::vector<c10::intrusive_ptr<Pass>> reached_;  // by the backward pass
};

// What the autograd functions need of a part.
struct Pipeline::Part : torch::CustomClassHolder {
  std::weak_ptr<Pipeline> pipeline;
  std::string name;                   // its gradient's
  at::Tensor value;                   // on its way into the graph
  std::optional<c10::Stream> stream;  // that it was computed on
  bool reached = false;
};

// And of a forward pass.
struct Pipeline::Pass : torch::CustomClassHolder {
  std::weak_ptr<Pipeline> pipeline;
  at::Tensor output;                            // on its way into the graph
  std::vector<c10::intrusive_ptr<Part>> parts;  // for whose gradients the stage before waits
};

class Pipeline::FromBefore : public torch::autograd::Function<FromBefore> {
 public:
  // `anchor` makes it an operator with a history.
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor&,
                            const c10::intrusive_ptr<Part>& part) {
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    context->set_materialize_grads(false);
    return std::exchange(part->value, at::Tensor());
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    auto& part = static_cast<Part&>(*context->saved_data["part"].toCapsule());
    const std::shared_ptr<Pipeline> pipeline = Lock(part.pipeline);
    part.reached = true;
    pipeline->Send(gradients[0], false, pipeline->index() - 1, part.name);
    return {at::Tensor(), at::Tensor()};
  }
};

// `token` ties the parts together.
class Pipeline::ToNext : public torch::autograd::Function<ToNext> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& token,
                            const at::Tensor&, const c10::intrusive_ptr<Part>& part) {
    context->saved_data["part"] = c10::IValue::make_capsule(part);
    return token.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const auto& part = static_cast<Part&>(*context->saved_data["part"].toCapsule());
    const std::shared_ptr<Pipeline> pipeline = Lock(part.pipeline);
    const c10::OptionalStreamGuard guard(part.stream);
    return {gradients[0], pipeline->Receive(pipeline->index() + 1, part.name), at::Tensor()};
  }
};

// `through`: the last stage's output; in the other stages, whose gradient of it does not count, the
// token.
class Pipeline::Output : public torch::autograd::Function<Output> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& through,
                            const c10::intrusive_ptr<Pass>& pass) {
    context->saved_data["pass"] = c10::IValue::make_capsule(pass);
    context->saved_data["is last"] = !pass->output.defined();
    return pass->output.defined() ? std::exchange(pass->output, at::Tensor()) : through.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               const torch::autograd::tensor_list& gradients) {
    const auto pass =
        c10::static_intrusive_pointer_cast<Pass>(context->saved_data["pass"].toCapsule());
    Lock(pass->pipeline)->reached_.push_back(pass);
    const bool is_last = context->saved_data["is last"].toBool();
    return {is_last ? gradients[0] : at::zeros({1}), at::Tensor()};
  }
};

std::shared_ptr<Pipeline> Pipeline::Lock(const std::weak_ptr<Pipeline>& pipeline) {
  std::shared_ptr<Pipeline> locked = pipeline.lock();
  if (locked != nullptr) return locked;
  throw Error(RUEDA_FAILED_PRECONDITION,
              "a backward pass through outputs of a pipeline whose strategy is gone");
}

Pipeline::Pipeline(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
                   const StrategyOptions& options)
    : BaseStrategy(std::move(name), model, optimizer, options),
      sequential_(dynamic_cast<torch::nn::SequentialImpl*>(&model.module())),
      device_(OnlyDevice()) {
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
void Pipeline::Send(const at::Tensor& tensor, bool takes_gradient, int stage,
                    const std::string& name) {
  at::Tensor form = at::zeros({kFormSize}, at::kLong);
  int64_t* const numbers = form.mutable_data_ptr<int64_t>();
  std::vector<std::pair<const char*, at::Tensor>> tensors = {{".form", form}};
  numbers[2] = kNoTensor;
  if (tensor.defined()) {
    if (tensor.device() != device_) {
      Refuse("a stage's output is on " + DeviceName(tensor.device()) + ", and the model on " +
             DeviceName(device_));
    }
    const at::Tensor value = tensor.detach().contiguous();
    numbers[0] = static_cast<int64_t>(value.scalar_type());
    numbers[1] = takes_gradient ? 1 : 0;
    numbers[2] = value.dim();
    std::copy(value.sizes().begin(), value.sizes().end(), numbers + 3);
    tensors.emplace_back("", value);
  }
  for (const auto& [suffix, part] : tensors) {
    const std::string whole = NameOf(name + suffix);
    std::shared_ptr<Operation>& send = sends_[{stage, whole}];
    send = nullptr;  // waits for one of the name that is under way
    send = Operation::Submit(context(), {.kind = RUEDA_SEND,
                                         .tensors = part,
                                         .name = whole,
                                         .process_set = options().process_set,
                                         .root = members_[static_cast<size_t>(stage)]});
  }
}

at::Tensor Pipeline::Receive(int stage, const std::string& name, bool* takes_gradient) {
  const auto receive = [&](const at::Tensor& into, const char* suffix) {
    const std::string whole = NameOf(name + suffix);
    Operation::Execute(context(), {.kind = RUEDA_RECV,
                                   .tensors = into,
                                   .in_place = true,
                                   .name = whole,
                                   .process_set = options().process_set,
                                   .root = members_[static_cast<size_t>(stage)]});
  };
  const at::Tensor form = at::zeros({kFormSize}, at::kLong);
  receive(form, ".form");
  const int64_t* const numbers = form.const_data_ptr<int64_t>();
  if (takes_gradient != nullptr) *takes_gradient = numbers[1] != 0;
  if (numbers[2] == kNoTensor) return {};
  at::Tensor value =
      at::empty(at::IntArrayRef(numbers + 3, static_cast<size_t>(numbers[2])),
                at::TensorOptions().dtype(static_cast<at::ScalarType>(numbers[0])).device(device_));
  receive(value, "");
  return value;
}

// Targets are each rank's own: they belong to other samples where the input is another.
void Pipeline::CheckSameBatch(const at::Tensor& input) {
  if (ranks() == 1) return;
  const at::Tensor batch = input.detach().cpu().contiguous();
  detail::Fingerprint print;
  print.Add(static_cast<uint64_t>(batch.scalar_type()));
  for (const int64_t size : batch.sizes()) print.Add(static_cast<uint64_t>(size));
  print.Add(batch.const_data_ptr(), batch.nbytes());
  if (AllEqual(print.value(), NameOf("batch"), options().process_set)) return;
  Refuse(
      "the ranks' batches differ; all ranks give forward() the same one. (Random layers draw on "
      "each rank by itself: let batches be drawn with a generator of their own)");
}

at::Tensor Pipeline::forward(const at::Tensor& input) {
  // What was sent before has arrived, or else the other side would not be here.
  sends_.clear();
  const int stage = index();
  const bool is_first = stage == 0;
  const bool is_last = stage == ranks() - 1;
  const bool records = at::GradMode::is_enabled();
  if (!input.defined() || input.dim() == 0 || input.size(0) == 0) {
    Refuse("needs a batch with rows, at least one, on all ranks");
  }
  if (records && input.requires_grad()) {
    Refuse("the batch must not require a gradient, which only the first stage would have");
  }
  if (input.device() != device_) {
    Refuse("the batch is on " + DeviceName(input.device()) + ", and the model on " +
           DeviceName(device_));
  }
  CheckSameBatch(input);
  auto pass = c10::make_intrusive<Pass>();
  pass->pipeline = self_;
  const std::string backward = "backward " + std::to_string(passes_);
  if (records) passes_ = (passes_ + 1) % kPassNames;
  const at::Tensor anchor = at::zeros({1}).requires_grad_();
  at::Tensor token = anchor;
  std::vector<at::Tensor> outputs;
  // As many parts on all ranks, as all have the batch.
  const std::vector<at::Tensor> parts = input.chunk(options().micro_batches);
  for (size_t k = 0; k < parts.size(); ++k) {
    const std::string name = ".part " + std::to_string(k);
    const auto with_gradient = [&] {
      auto part = c10::make_intrusive<Part>();
      part->pipeline = self_;
      part->name = backward + name;
      part->stream = CurrentStream(device_);
      return part;
    };
    at::Tensor value = parts[k];
    if (!is_first) {
      bool takes_gradient = false;
      value = Receive(stage - 1, "forward" + name, &takes_gradient);
      if (records && takes_gradient) {
        pass->parts.push_back(with_gradient());
        pass->parts.back()->value = std::move(value);
        value = FromBefore::apply(anchor, pass->parts.back());
      }
    }
    value = RunStage(value);
    if (is_last) {
      outputs.push_back(value);
    } else {
      const bool takes_gradient = records && value.requires_grad();
      Send(value, takes_gradient, stage + 1, "forward" + name);
      if (takes_gradient) token = ToNext::apply(token, value, with_gradient());
    }
  }
  const at::Tensor whole = is_last ? at::cat(outputs) : at::Tensor();
  bool takes_gradient = is_last && whole.requires_grad();
  const at::Tensor output = ShareOutput(whole, &takes_gradient);
  if (!records || !takes_gradient) return output;
  if (!is_last) pass->output = output;
  return Output::apply(is_last ? output : token, pass);
}

// The last stage's to all, which need it for the loss.
at::Tensor Pipeline::ShareOutput(const at::Tensor& output, bool* takes_gradient) {
  const int last = ranks() - 1;
  if (index() < last) return Receive(last, "output", takes_gradient);
  for (int stage = 0; stage < last; ++stage) Send(output, *takes_gradient, stage, "output");
  return output;
}

void Pipeline::backward(const at::Tensor& loss, bool) {
  reached_.clear();
  loss.backward();
  for (const auto& pass : std::exchange(reached_, {})) {
    for (const auto& part : pass->parts) {
      if (!part->reached) Send(at::Tensor(), false, index() - 1, part->name);
    }
  }
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

// A parameter's state is a piece.
std::vector<Piece> Pipeline::StatePieces() {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < parameters().size(); ++i) {
    if (owner_[i] != index()) continue;
    ParameterState state = GetParameterState(optimizer(), parameters()[i].tensor);
    if (state.empty()) continue;
    for (auto& [field, tensor] : state.tensors) tensor = tensor.reshape({-1});
    pieces.push_back({i, 0, parameters()[i].tensor.numel(), std::move(state)});
  }
  return pieces;
}

void Pipeline::TakeStates(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    if (owner_[piece.parameter] != index()) continue;
    const at::Tensor& parameter = parameters()[piece.parameter].tensor;
    ParameterState state = piece.state;
    for (auto& [field, tensor] : state.tensors) {
      tensor = tensor.to(parameter.device()).reshape(parameter.sizes());
    }
    SetParameterState(optimizer(), parameter, state);
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
    text = broadcast_object(text, root,
                            {.name = NameOf("state"), .process_set = options().process_set});
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
      broadcast_(tensor, root,
                 {.name = NameOf("state." + field), .process_set = options().process_set});
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
