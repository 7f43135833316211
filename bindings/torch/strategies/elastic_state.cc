// Strategies in elastic jobs. What all ranks have alike, a commit copies into this rank's memory,
// and a sync takes from the source. What a rank has alone is kept where it outlives that rank
// (rueda/cpp/own_state.hpp), and in another membership, where shares are others, from those who
// have it to all: each takes what is its own then.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/optim/optimizer.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/torch/named_tensors.h"
#include "bindings/torch/optimizer_fields.h"
#include "bindings/torch/strategies/base.h"
#include "rueda/rueda.hpp"
#include "rueda/torch_elastic.hpp"
#include "rueda/training.hpp"

namespace rueda::libtorch {
namespace {

constexpr const char* kStateName = "rueda.elastic.strategy";

void CopyInto(const at::Tensor& from, at::Tensor* kept) {
  if (kept->defined() && kept->sizes() == from.sizes() && kept->dtype() == from.dtype()) {
    kept->copy_(from);
  } else {
    *kept = from.detach().clone();
  }
}

std::vector<at::Tensor> CopiesOf(const NamedTensors& tensors) {
  std::vector<at::Tensor> copies;
  for (const auto& [name, tensor] : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

ParameterState CopyOf(ParameterState state) {
  for (auto& [field, tensor] : state.tensors) tensor = tensor.clone();
  return state;
}

void AppendText(const std::string& text, std::string* bytes) {
  detail::AppendNumber(text.size(), bytes);
  *bytes += text;
}

std::string TakeText(std::string_view* bytes) {
  const size_t size = detail::TakeNumber(bytes);
  std::string text(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return text;
}

void Append(const Piece& piece, std::string* bytes) {
  for (const uint64_t number :
       {uint64_t{piece.parameter}, static_cast<uint64_t>(piece.begin),
        static_cast<uint64_t>(piece.count), uint64_t{piece.state.numbers.size()},
        uint64_t{piece.state.tensors.size()}}) {
    detail::AppendNumber(number, bytes);
  }
  for (const auto& [field, number] : piece.state.numbers) {
    AppendText(field, bytes);
    *bytes += detail::ToBytes(number);
  }
  for (const auto& [field, tensor] : piece.state.tensors) {
    AppendText(field, bytes);
    const at::Tensor values = tensor.cpu().contiguous();
    bytes->append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
}

// Of one of `parameters`.
Piece TakePiece(std::string_view* bytes, const std::vector<at::Tensor>& parameters) {
  Piece piece;
  piece.parameter = detail::TakeNumber(bytes);
  piece.begin = static_cast<int64_t>(detail::TakeNumber(bytes));
  piece.count = static_cast<int64_t>(detail::TakeNumber(bytes));
  const size_t numbers = detail::TakeNumber(bytes);
  const size_t tensors = detail::TakeNumber(bytes);
  for (size_t i = 0; i < numbers; ++i) {
    auto& [field, number] = piece.state.numbers.emplace_back();
    field = TakeText(bytes);
    detail::FromBytes(bytes->substr(0, sizeof number), &number);
    bytes->remove_prefix(sizeof number);
  }
  const at::ScalarType type = parameters.at(piece.parameter).scalar_type();
  for (size_t i = 0; i < tensors; ++i) {
    std::string field = TakeText(bytes);
    const at::Tensor values = at::empty({piece.count}, type);
    std::memcpy(values.mutable_data_ptr(), bytes->data(), values.nbytes());
    bytes->remove_prefix(values.nbytes());
    piece.state.tensors.emplace_back(std::move(field), values);
  }
  return piece;
}

void AppendBytesOf(const std::vector<Piece>& pieces, std::string* bytes) {
  for (const Piece& piece : pieces) Append(piece, bytes);
}

std::string BytesOf(const std::vector<Piece>& pieces) {
  std::string bytes;
  AppendBytesOf(pieces, &bytes);
  return bytes;
}

std::vector<Piece> PiecesOf(std::string_view bytes, const std::vector<at::Tensor>& parameters) {
  std::vector<Piece> pieces;
  while (!bytes.empty()) pieces.push_back(TakePiece(&bytes, parameters));
  return pieces;
}

}  // namespace

class StrategyKeeper final : public rueda::elastic::OwnState {
 public:
  StrategyKeeper(const elastic::StrategyStateOptions& options, const Model& model,
                 torch::optim::Optimizer& optimizer)
      : OwnState(options.redundancy),
        name_(options.strategy),
        model_(model),
        optimizer_(optimizer),
        options_(options.strategy_options),
        has_pieces_(HasPieces(name_)) {
    if (model_.empty()) Refuse("the model is empty");
    if (OptimizerKindIndex(optimizer) < 0) {
      Refuse(std::string("it keeps the state of ") + kOptimizerKinds + " only");
    }
    if (options_.process_set.id != global_process_set.id) {
      Refuse("a membership has no other process sets than the world");
    }
    options_.broadcast = false;  // a sync does
    for (auto& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) parameters_.push_back(parameter);
    }
    KeepAll(/*with_earlier=*/false);
  }

  Strategy& strategy() const {
    if (strategy_ != nullptr) return *strategy_;
    throw Error(RUEDA_FAILED_PRECONDITION,
                "elastic::StrategyState: there is a strategy, and something to commit, only in the "
                "function that elastic::run calls");
  }

  void Gather(bool in_background) {
    Base().Settle();
    if (has_pieces_) Exchange(kStateName, in_background);
  }

  // As a State does.
  void KeepAll(bool with_earlier) {
    copies_.Keep(with_earlier, [this](Copies* copies) {
      Fill(copies);
      if (has_pieces_) Keep();
      copies->pieces = kept();
    });
  }

  bool GoBackToEarlier() {
    if (!copies_.GoBack()) return false;
    if (has_pieces_) SetKept(copies_.last().pieces);
    goes_back_ = true;
    return true;
  }

  // In the next membership: a strategy's memory may still be written to by ranks of this one, which
  // the launcher ends meanwhile.
  void GoBack() { goes_back_ = true; }

  void Reset() {
    if (std::exchange(goes_back_, false)) GoBackNow();
  }

  // All get what the source has.
  void Follow(int source) {
    Reset();
    End();
    // Those that it has whole: one that comes does not know.
    const NamedTensors tensors = TensorsOf(model_.module());
    std::string whole;
    for (const auto& [name, tensor] : tensors) whole += IsWhole(tensor) ? '1' : '0';
    whole = broadcast_object(whole, source, {.name = std::string(kStateName) + ".whole"});
    NamedTensors sent;
    for (size_t i = 0; i < tensors.size() && i < whole.size(); ++i) {
      if (whole[i] == '1') sent.push_back(tensors[i]);
    }
    broadcast_parameters(sent, source);
    broadcast_optimizer_state(optimizer_, source);
    check_replicas(sent, std::string(kStateName) + ".check");
    check_replicas(optimizer_, std::string(kStateName) + ".check_optimizer");
    if (has_pieces_) {
      Sync(source, kStateName);
    } else {
      Begin();
    }
    const NamedTensors extras = Base().Extras();
    for (size_t i = 0; i < extras.size() && i < extras_.size(); ++i) {
      at::Tensor(extras[i].second).copy_(extras_[i]);
    }
    if (extras.empty()) return;
    broadcast_parameters(extras, source);
    Base().OnLoaded();
  }

 protected:
  // What is left of a strategy's pieces is here once it is gone: nothing is written back.
  void Unpack(std::string_view, int, int) override {}

  std::string_view Pack(std::string* scratch) override {
    if (strategy_ == nullptr) return "";
    AppendText(BytesOf(Base().ValuePieces()), scratch);
    AppendBytesOf(Base().StatePieces(), scratch);
    return *scratch;
  }

  void Take(const Version* version, const std::vector<int>& holders, const std::string&) override {
    const at::NoGradGuard no_grad;
    // The strategy is made of whole parameters, and takes states when it is there.
    ForParts(version, holders, /*values=*/true, [&](const Piece& piece) {
      const at::Tensor& parameter = parameters_[piece.parameter];
      parameter.detach()
          .as_strided({parameter.numel()}, {1})
          .narrow(0, piece.begin, piece.count)
          .copy_(piece.state.tensors.at(0).second);
    });
    Begin();
    ForParts(version, holders, /*values=*/false,
             [&](const Piece& piece) { Base().TakeStates({piece}); });
  }

 private:
  // What all ranks have alike, of one commit.
  struct Copies {
    std::vector<at::Tensor> tensors;  // of the model, in its order; undefined: it is not whole
    std::vector<ParameterState> groups;
    std::vector<ParameterState> states;  // by parameter; empty: they are in pieces
    std::vector<at::Tensor> extras;
    uint64_t sum = 0;     // of the tensors
    uint64_t pieces = 0;  // the version that is kept of them
  };

  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(RUEDA_INVALID_ARGUMENT, "elastic::StrategyState with " + name_ + ": " + why);
  }
  bool IsWhole(const at::Tensor& tensor) const {
    return !not_whole_.contains(tensor.unsafeGetTensorImpl());
  }
  BaseStrategy& Base() const { return static_cast<BaseStrategy&>(strategy()); }

  // Gradients are dropped: they were on their way when a rank was lost.
  void GoBackNow() {
    const at::NoGradGuard no_grad;
    const Copies& kept = copies_.last();
    if (SumOf(kept) != kept.sum) rueda::detail::ThrowDamaged("the model or the optimizer");
    End();
    const NamedTensors tensors = TensorsOf(model_.module());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!kept.tensors[i].defined()) continue;
      at::Tensor(tensors[i].second).copy_(kept.tensors[i]);
      not_whole_.erase(tensors[i].second.unsafeGetTensorImpl());
    }
    extras_ = kept.extras;
    SetOptions(optimizer_, kept.groups);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      SetParameterState(optimizer_, parameters_[i],
                        kept.states.empty() ? ParameterState() : CopyOf(kept.states[i]));
    }
    if (has_pieces_) Restore();
  }

  void Begin() {
    strategy_ = make_strategy(name_, model_, optimizer_, options_);
    not_whole_.clear();
    for (size_t i = 0; i < Base().parameters().size(); ++i) {
      if (Base().IsWhole(i)) continue;
      not_whole_.insert(Base().parameters()[i].tensor.unsafeGetTensorImpl());
    }
  }

  // The optimizer has the model's parameters again, and all have memory.
  void End() {
    const at::NoGradGuard no_grad;
    const bool was_there = strategy_ != nullptr;
    if (was_there) extras_ = CopiesOf(Base().Extras());
    strategy_ = nullptr;
    for (at::Tensor parameter : model_.module().parameters()) parameter.mutable_grad().reset();
    if (was_there && has_pieces_) optimizer_.state().clear();
    for (at::Tensor& parameter : parameters_) {
      if (IsWhole(parameter)) continue;
      parameter.set_data(
          at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options()));
    }
  }

  // Of what all ranks have alike.
  void Fill(Copies* copies) const {
    const at::NoGradGuard no_grad;
    const NamedTensors tensors = TensorsOf(model_.module());
    copies->tensors.resize(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (IsWhole(tensors[i].second)) {
        CopyInto(tensors[i].second, &copies->tensors[i]);
      } else {
        copies->tensors[i].reset();
      }
    }
    copies->groups = GetOptions(optimizer_);
    copies->states.clear();
    for (const at::Tensor& parameter : parameters_) {
      if (has_pieces_ && strategy_ != nullptr) break;
      copies->states.push_back(CopyOf(GetParameterState(optimizer_, parameter)));
    }
    if (strategy_ != nullptr) copies->extras = CopiesOf(Base().Extras());
    copies->sum = SumOf(*copies);
  }

  // Of all tensors.
  static uint64_t SumOf(const Copies& copies) {
    std::vector<at::Tensor> all = copies.tensors;
    for (const ParameterState& state : copies.states) {
      for (const auto& [field, tensor] : state.tensors) all.push_back(tensor);
    }
    all.insert(all.end(), copies.extras.begin(), copies.extras.end());
    return elastic::State::FingerprintOf(all);
  }

  // Collective: each holder's to all, a part after another. One half of each.
  template <typename Fn>
  void ForParts(const Version* version, const std::vector<int>& holders, bool values, Fn&& fn) {
    for (size_t part = 0; part < holders.size(); ++part) {
      if (holders[part] < 0) continue;
      std::string half;
      if (holders[part] == rueda::rank()) {
        std::string_view rest = version->parts.at(static_cast<int>(part)).view;
        if (!rest.empty()) half = TakeText(&rest);
        if (!values) half = rest;
      }
      half = broadcast_object(half, holders[part], {.name = std::string(kStateName) + ".part"});
      for (const Piece& piece : PiecesOf(half, parameters_)) fn(piece);
    }
  }

  const std::string name_;
  const Model model_;
  torch::optim::Optimizer& optimizer_;
  StrategyOptions options_;
  const bool has_pieces_;
  std::vector<at::Tensor> parameters_;  // of the optimizer, in its order
  std::unique_ptr<Strategy> strategy_;
  std::set<const c10::TensorImpl*> not_whole_;  // parameters of which ranks have shares alone
  rueda::detail::KeptCopies<Copies> copies_;
  std::vector<at::Tensor> extras_;  // for the next strategy
  bool goes_back_ = false;
};

namespace elastic {

std::shared_ptr<StrategyKeeper> StrategyState::MakeKeeper(const StrategyStateOptions& options,
                                                          const Model& model,
                                                          torch::optim::Optimizer& optimizer) {
  return std::make_shared<StrategyKeeper>(options, model, optimizer);
}

uint64_t State::FingerprintOf(const std::vector<at::Tensor>& tensors) {
  rueda::detail::Fingerprint print;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.is_cpu()) {
      const bool is_plain = tensor.layout() == at::kStrided;
      const at::Tensor plain = is_plain ? tensor.contiguous() : tensor.to_dense();
      print.Add(plain.const_data_ptr(), plain.nbytes());
      continue;
    }
    const at::Tensor bytes =
        tensor.detach().clone(at::MemoryFormat::Contiguous).view(-1).view(at::kByte);
    const int64_t words = bytes.numel() / 8, rest = bytes.numel() % 8;
    print.Add(
        static_cast<uint64_t>(bytes.narrow(0, 0, 8 * words).view(at::kLong).sum().item<int64_t>()));
    const at::Tensor tail = bytes.narrow(0, 8 * words, rest).cpu();
    print.Add(tail.const_data_ptr(), tail.nbytes());
  }
  return print.value();
}

Strategy& StrategyState::strategy() const {
  return keeper_->strategy();
}

void StrategyState::save() {
  const bool in_background = this->in_background();
  keeper_->Gather(in_background);
  values_.Gather(in_background);
  const bool with_earlier = keeper_->is_on_its_way() || values_.is_on_its_way();
  keeper_->KeepAll(with_earlier);
  values_.KeepAll(with_earlier);
}

bool StrategyState::go_back() {
  return values_.go_back() && keeper_->GoBackToEarlier();  // as a State does
}

void StrategyState::restore() {
  keeper_->GoBack();
  values_.restore();
}

void StrategyState::sync(int source) {
  keeper_->Follow(source);
  values_.sync(source);
}

void StrategyState::reset() {
  keeper_->Reset();
}

void StrategyState::before_change() {
  keeper_->Gather(/*in_background=*/false);
  values_.before_change();
}

}  // namespace elastic
}  // namespace rueda::libtorch
