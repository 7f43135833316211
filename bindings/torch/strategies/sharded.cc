// sharded, fsdp: ZeRO stages 1 and 2, and 3 (arXiv 1910.02054).
//
// Parameters lie in buckets, each a tensor of equally large shares, one a rank. When a backward
// pass has computed all gradients of a bucket, a reducescatter gives each rank the average of its
// share; the optimizer, which has shares for parameters, updates it; an allgather brings all shares
// to all ranks. One bucket is updated while others are on their way.
//
// With stage 3 nobody needs the shares after the step: gathered_parameters.h gathers a bucket when
// operators use it. Its buckets are of whole modules.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>

#include "bindings/torch/compressible.h"
#include "bindings/torch/optimizer_fields.h"
#include "bindings/torch/parameter_hooks.h"
#include "bindings/torch/strategies/buckets.h"
#include "bindings/torch/strategies/gathered_parameters.h"
#include "bindings/torch/strategies/spare_memory.h"
#include "bindings/torch/strategies/strategies.h"

namespace rueda::libtorch {
namespace {

// Of the memory that gradients and gathered parameters leave: what is used at one time.
constexpr size_t kSparesOfStage3 = 4;

class Sharded : public BaseStrategy {
 public:
  Sharded(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
          const StrategyOptions& options);
  ~Sharded() override;

  at::Tensor forward(const at::Tensor& input) override;
  void backward(const at::Tensor& loss, bool last) override;
  void synchronize() override;
  double clip_grad_norm(double max_norm) override;
  bool unscale(double factor) override;
  void step() override;
  void zero_grad() override;
  void finish() override;

 protected:
  std::vector<ParameterState> GetState() override;
  void SetState(const std::vector<ParameterState>& states) override;
  void OnLoaded() override;
  void Settle() override;
  std::vector<Piece> StatePieces() override;
  void TakeStates(const std::vector<Piece>& pieces) override;
  std::vector<Piece> ValuePieces() override;
  bool IsWhole(size_t parameter) const override {
    return !gathered_.has_value() || places_[parameter].first < 0;
  }

 private:
  using Member = BucketLayout::Member;
  struct Bucket : BucketLayout {
    // Constant after construction.
    std::string name;
    at::Tensor values;  // of all parameters; with stage 3 its memory comes and goes
    at::Tensor shard;   // this rank's share of them
    at::Tensor shard_gradient;
    // Guarded by mutex_.
    std::vector<bool> taken;  // by member: its gradient is in `gradients`
    size_t ready = 0;         // how many a backward pass has computed
    at::Tensor memory;        // of the gradients, perhaps longer; undefined while there are none
    at::Tensor gradients;     // of all
    StreamChain streams;      // of those that use the memory
    std::shared_ptr<Operation> reducescatter = nullptr;
    bool whole = false;    // all of it is reduced, not this rank's share alone
    bool reduced = false;  // shard_gradient is this step's
  };

  void AddBuckets();
  void AddPieces(const Bucket& bucket, const ParameterState& shard,
                 std::vector<Piece>* pieces) const;
  at::Tensor ViewIn(const at::Tensor& memory, const Member& member) const;
  void MoveParameters();
  void OnGradient(size_t place);
  void Take(Bucket& bucket, size_t member);
  void Submit(Bucket& bucket);
  std::shared_ptr<Operation> SubmitShares(const Bucket& bucket, bool compressed);
  std::shared_ptr<Operation> SubmitWhole(const Bucket& bucket);
  void SubmitRest();
  std::vector<at::Tensor> ShardGradients() const;
  void End(Bucket& bucket);
  std::shared_ptr<Operation> SubmitAllgather(Bucket& bucket);
  void Check() const;
  void KeepMistake();
  void Reduce();
  void Step();
  void Forget();
  void ThrowMistake();

  const int stage_;
  std::vector<Bucket> buckets_;  // the first gradients' first; the vector itself is constant
  // By place in parameters(): bucket and member; -1: frozen when this was made.
  std::vector<std::pair<int, int>> places_;
  std::vector<std::vector<at::Tensor>> groups_before_;  // the optimizer's
  SpareMemory spare_;
  std::optional<GatheredParameters> gathered_;  // with stage 3

  std::mutex mutex_;
  // Guarded by mutex_.
  bool hold_ = false;                      // more passes come before the step
  bool submitted_ = false;                 // gradients, for which nobody has waited
  std::exception_ptr first_error_;         // of a backward pass
  std::unique_ptr<ParameterHooks> hooks_;  // last: goes first
};

Sharded::Sharded(std::string name, const Model& model, torch::optim::Optimizer& optimizer,
                 const StrategyOptions& options)
    : BaseStrategy(std::move(name), model, optimizer, options),
      stage_(this->name() == "fsdp" ? 3 : options.zero_stage),
      spare_(context(), stage_ == 3 ? kSparesOfStage3 : SIZE_MAX) {
  if (this->name() != "fsdp" && options.zero_stage != 1 && options.zero_stage != 2) {
    Refuse("zero_stage is " + std::to_string(options.zero_stage) + "; 1 or 2, fsdp is stage 3");
  }
  if (options.bucket_bytes < 1) Refuse("bucket_bytes must be at least 1");
  const bool has_state = !optimizer.state().empty();
  if (has_state && OptimizerKindIndex(optimizer) < 0) {
    Refuse(std::string("it can share out what ") + kOptimizerKinds +
           " remember; another optimizer must not have stepped yet");
  }
  const std::vector<ParameterState> states =
      has_state ? BaseStrategy::GetState() : std::vector<ParameterState>();
  AddBuckets();
  if (stage_ == 3) {
    gathered_.emplace(
        GatheredParameters::Args{context(), options.process_set, options.name, &spare_});
  }
  // Before anything is changed: the parameters may have another strategy's.
  std::vector<at::Tensor> hooked;
  std::vector<std::string> names;
  std::vector<size_t> which;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].first < 0) continue;
    which.push_back(i);
    hooked.push_back(parameters()[i].tensor);
    names.push_back(parameters()[i].name);
  }
  hooks_ = std::make_unique<ParameterHooks>(std::move(hooked), names,
                                            [this, which](size_t i) { OnGradient(which[i]); });
  MoveParameters();
  if (has_state) {
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].first < 0) continue;
      optimizer.state().erase(parameters()[i].tensor.unsafeGetTensorImpl());
    }
    SetState(states);
  }
  if (gathered_.has_value()) gathered_->Start();
}

// The optimizer gets back what it had, but not what it remembered.
Sharded::~Sharded() {
  hooks_ = nullptr;
  for (Bucket& bucket : buckets_) {
    bucket.reducescatter = nullptr;  // waits for its end
    optimizer().state().erase(bucket.shard.unsafeGetTensorImpl());
  }
  for (size_t g = 0; g < groups_before_.size(); ++g) {
    optimizer().param_groups()[g].params() = groups_before_[g];
  }
}

// The same on all ranks.
void Sharded::AddBuckets() {
  for (const Parameter& parameter : parameters()) {
    const at::Tensor& tensor = parameter.tensor;
    if (!tensor.requires_grad() || tensor.layout() == at::kStrided) continue;
    Refuse("'" + parameter.name + "' is not a strided tensor");
  }
  places_.assign(parameters().size(), {-1, -1});
  for (BucketLayout& layout : LayOutBuckets(
           parameters(),
           {.ranks = ranks(), .bytes_max = options().bucket_bytes, .of_modules = stage_ == 3})) {
    const int index = static_cast<int>(buckets_.size());
    for (size_t k = 0; k < layout.members.size(); ++k) {
      places_[layout.members[k].parameter] = {index, static_cast<int>(k)};
    }
    Bucket& bucket = buckets_.emplace_back();
    static_cast<BucketLayout&>(bucket) = std::move(layout);
    bucket.name = "bucket " + std::to_string(index + 1);
    bucket.taken.assign(bucket.members.size(), false);
  }
  if (buckets_.empty()) Refuse("all parameters are frozen");
}

at::Tensor Sharded::ViewIn(const at::Tensor& memory, const Member& member) const {
  return ViewOf(memory, parameters()[member.parameter].tensor, member.begin);
}

// Into the buckets; and gives the optimizer this rank's shares for parameters.
void Sharded::MoveParameters() {
  const at::NoGradGuard no_grad;
  std::vector<std::vector<at::Tensor>> shards(optimizer().param_groups().size());
  for (Bucket& bucket : buckets_) {
    const int64_t elements = bucket.share * ranks();
    const auto options = at::TensorOptions().dtype(bucket.type).device(bucket.device);
    bucket.values = stage_ == 3 ? at::zeros({elements}, options)
                                : ArenaZeros(context(), elements, bucket.type, bucket.device);
    std::vector<at::Tensor> members;
    for (const Member& member : bucket.members) {
      at::Tensor parameter = parameters()[member.parameter].tensor;
      const at::Tensor view = ViewIn(bucket.values, member);
      view.copy_(parameter);
      parameter.set_data(view);
      parameter.mutable_grad().reset();
      members.push_back(parameter);
    }
    bucket.shard = bucket.values.narrow(0, index() * bucket.share, bucket.share).detach();
    if (gathered_.has_value()) {
      bucket.shard =
          ArenaZeros(context(), bucket.share, bucket.type, bucket.device).copy_(bucket.shard);
      gathered_->Add({.label = "'" + parameters()[bucket.members.back().parameter].name + "' to '" +
                               parameters()[bucket.members.front().parameter].name + "'",
                      .values = bucket.values,
                      .shard = bucket.shard,
                      .parameters = std::move(members)});
    }
    bucket.shard_gradient = ArenaZeros(context(), bucket.share, bucket.type, bucket.device);
    shards[bucket.group].push_back(bucket.shard);
  }
  for (size_t g = 0; g < shards.size(); ++g) {
    std::vector<at::Tensor>& params = optimizer().param_groups()[g].params();
    groups_before_.push_back(std::move(params));
    params = std::move(shards[g]);
  }
}

at::Tensor Sharded::forward(const at::Tensor& input) {
  if (!gathered_.has_value()) return BaseStrategy::forward(input);
  if (at::GradMode::is_enabled()) gathered_->Release();
  try {
    return BaseStrategy::forward(input);
  } catch (...) {
    gathered_->ThrowError();
    throw;
  }
}

void Sharded::backward(const at::Tensor& loss, bool last) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    hold_ = !last;
  }
  if (!gathered_.has_value()) {
    loss.backward();
    return;
  }
  gathered_->Release();
  try {
    loss.backward();
  } catch (...) {
    gathered_->ThrowError();
    throw;
  }
}

void Sharded::OnGradient(size_t place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (hold_) return;
  Bucket& bucket = buckets_[places_[place].first];
  const auto member = static_cast<size_t>(places_[place].second);
  try {
    if (bucket.taken[member] || bucket.reducescatter != nullptr || bucket.reduced) {
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "the gradient of '" + parameters()[place].name +
                      "' was computed once more after it was reduced; several passes in a step " +
                      "go with backward(loss, false) for all but the last");
    }
    Take(bucket, member);
    if (++bucket.ready == bucket.members.size()) Submit(bucket);
  } catch (...) {
    if (first_error_ == nullptr) first_error_ = std::current_exception();
    at::Tensor(parameters()[place].tensor).mutable_grad().reset();  // not for the next step
  }
}

// Holds mutex_. Brings the gradient to where it is reduced; a missing one counts as zeros.
void Sharded::Take(Bucket& bucket, size_t member) {
  const at::NoGradGuard no_grad;
  if (!bucket.memory.defined()) {
    bucket.memory = spare_.Get(bucket.share * ranks(), bucket.type, bucket.device);
    bucket.gradients = bucket.memory.narrow(0, 0, bucket.share * ranks());
    bucket.streams = StreamChain();
  }
  bucket.streams.Use(bucket.memory);
  const Member& place = bucket.members[member];
  at::Tensor& gradient = parameters()[place.parameter].tensor.mutable_grad();
  at::Tensor view = ViewIn(bucket.gradients, place);
  if (gradient.defined()) {
    view.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
    gradient.reset();
  } else {
    view.zero_();
  }
  bucket.taken[member] = true;
}

// Holds mutex_. All members are taken.
void Sharded::Submit(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  bucket.streams.Use(bucket.memory);
  // Between them is what was there before, which must not count for the norm.
  int64_t end = 0;
  const auto clear_to = [&](int64_t begin) {
    if (begin > end) bucket.gradients.narrow(0, end, begin - end).zero_();
  };
  for (const Member& member : bucket.members) {
    clear_to(member.begin);
    end = member.begin + parameters()[member.parameter].tensor.numel();
  }
  clear_to(bucket.share * ranks());
  const bool compressed = !options().compression.empty() && IsCompressible(bucket.gradients);
  // PowerSGD needs matrices; its factors are so small that every rank can have all of them.
  submitted_ = true;
  bucket.whole = compressed && options().compression.starts_with("powersgd");
  bucket.reducescatter = bucket.whole ? SubmitWhole(bucket) : SubmitShares(bucket, compressed);
  for (Bucket& other : buckets_) {
    if (other.reducescatter != nullptr && other.reducescatter->Poll()) End(other);
  }
}

std::shared_ptr<Operation> Sharded::SubmitShares(const Bucket& bucket, bool compressed) {
  const std::string name = NameOf(bucket.name);
  return Operation::Submit(context(),
                           {.kind = RUEDA_REDUCESCATTER,
                            .tensors = bucket.gradients,
                            .name = name,
                            .process_set = options().process_set,
                            .op = Average,
                            .outputs = bucket.shard_gradient,
                            .compressor = compressed ? options().compression : std::string()});
}

std::shared_ptr<Operation> Sharded::SubmitWhole(const Bucket& bucket) {
  std::vector<at::Tensor> tensors;
  std::vector<const char*> suffixes;
  for (const Member& member : bucket.members) {
    tensors.push_back(ViewIn(bucket.gradients, member));
    suffixes.push_back(parameters()[member.parameter].suffix.c_str());
  }
  const std::string name = NameOf("gradient");
  return Operation::Submit(context(), {.kind = RUEDA_ALLREDUCE,
                                       .tensors = tensors,
                                       .in_place = true,
                                       .grouped = true,
                                       .name = name,
                                       .process_set = options().process_set,
                                       .op = Average,
                                       .suffixes = suffixes,
                                       .compressor = options().compression});
}

// Holds mutex_. What no backward pass has computed counts as zeros: the other ranks may have it.
void Sharded::SubmitRest() {
  for (Bucket& bucket : buckets_) {
    if (bucket.reducescatter != nullptr || bucket.reduced) continue;
    for (size_t k = 0; k < bucket.members.size(); ++k) {
      if (!bucket.taken[k]) Take(bucket, k);
    }
    Submit(bucket);
  }
}

// Holds mutex_. Waits for the bucket's gradients.
void Sharded::End(Bucket& bucket) {
  if (bucket.reducescatter == nullptr) return;
  const std::shared_ptr<Operation> operation = std::exchange(bucket.reducescatter, nullptr);
  operation->Wait();
  bucket.streams.Use(bucket.memory);
  if (bucket.whole) {
    bucket.shard_gradient.copy_(bucket.gradients.narrow(0, index() * bucket.share, bucket.share));
  }
  bucket.reduced = true;
  if (stage_ == 1) return;
  bucket.gradients.reset();
  spare_.Put(std::exchange(bucket.memory, at::Tensor()));
}

// The optimizer's parameters are shares. One that was frozen would be moved by weight decay and
// momentum, one that was unfrozen or is new would not be reduced.
void Sharded::Check() const {
  CheckFrozen();
  CheckTypes();
  const auto fail = [this](const std::string& what) {
    throw Error(RUEDA_FAILED_PRECONDITION, "strategy " + name() + ": " + what);
  };
  size_t count = 0;
  for (const auto& group : optimizer().param_groups()) count += group.params().size();
  if (count != buckets_.size()) {
    fail("the optimizer has got parameters after the strategy was made: make it again");
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].first < 0) continue;
    const at::Tensor& values = buckets_[static_cast<size_t>(places_[i].first)].values;
    const at::Tensor& tensor = parameters()[i].tensor;
    if (tensor.storage().is_alias_of(values.storage()) &&
        tensor.scalar_type() == values.scalar_type()) {
      continue;
    }
    fail("'" + parameters()[i].name + "' has got other memory after the strategy was made, as " +
         "torch::load and the module's to() give it: do that before, or use the strategy's load()");
  }
}

// Holds mutex_. As a mistake, with which this rank takes part all the same.
void Sharded::KeepMistake() {
  try {
    Check();
  } catch (const Error&) {
    if (first_error_ == nullptr) first_error_ = std::current_exception();
  }
}

void Sharded::synchronize() {
  Reduce();
  ThrowMistake();
}

// Without what is this rank's mistake alone: the others go on.
void Sharded::Reduce() {
  const std::lock_guard<std::mutex> lock(mutex_);
  KeepMistake();
  SubmitRest();
  submitted_ = false;
  if (gathered_.has_value()) gathered_->Meet();
  for (Bucket& bucket : buckets_) End(bucket);
}

std::vector<at::Tensor> Sharded::ShardGradients() const {
  std::vector<at::Tensor> gradients;
  for (const Bucket& bucket : buckets_) gradients.push_back(bucket.shard_gradient);
  return gradients;
}

double Sharded::clip_grad_norm(double max_norm) {
  Reduce();
  const double norm = ClipTogether(ShardGradients(), max_norm);
  ThrowMistake();
  return norm;
}

bool Sharded::unscale(double factor) {
  Reduce();
  const bool finite = UnscaleTogether(ShardGradients(), factor);
  ThrowMistake();
  return finite;
}

std::shared_ptr<Operation> Sharded::SubmitAllgather(Bucket& bucket) {
  const std::string name = NameOf(bucket.name + " parameters");
  return Operation::Submit(context(), {.kind = RUEDA_ALLGATHER,
                                       .tensors = bucket.shard,
                                       .name = name,
                                       .process_set = options().process_set,
                                       .outputs = bucket.values});
}

void Sharded::step() {
  Step();
  ThrowMistake();
}

void Sharded::Step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  KeepMistake();
  SubmitRest();
  submitted_ = false;
  if (gathered_.has_value()) gathered_->Meet();  // nobody needs the shares as they were
  std::vector<std::shared_ptr<Operation>> allgathers;
  for (Bucket& bucket : buckets_) {
    End(bucket);
    // The others' shards have no gradient, so that only this one is stepped: it is in the cache.
    bucket.shard.mutable_grad() = bucket.shard_gradient;
    optimizer().step();
    bucket.shard.mutable_grad().reset();
    if (!gathered_.has_value()) allgathers.push_back(SubmitAllgather(bucket));
  }
  for (const auto& allgather : allgathers) allgather->Wait();
  for (const Parameter& parameter : parameters()) {  // autograd is to notice
    parameter.tensor.unsafeGetTensorImpl()->bump_version();
  }
  Forget();
}

// One of this rank's is thrown when all is done all the same: the other ranks need what this one
// has.
void Sharded::ThrowMistake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (first_error_ != nullptr) std::rethrow_exception(std::exchange(first_error_, nullptr));
}

// Holds mutex_. Begins the next step.
void Sharded::Forget() {
  for (Bucket& bucket : buckets_) {
    End(bucket);
    bucket.reduced = false;
    bucket.ready = 0;
    bucket.taken.assign(bucket.members.size(), false);
  }
}

void Sharded::zero_grad() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (submitted_) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "strategy " + name() + ": zero_grad() while gradients are being reduced: call it " +
                    "before backward(), or after step() or synchronize()");
  }
  Forget();
  for (const Parameter& parameter : parameters())
    at::Tensor(parameter.tensor).mutable_grad().reset();
  if (gathered_.has_value()) gathered_->Release();
}

void Sharded::finish() {
  if (gathered_.has_value()) gathered_->GatherAll();
}

// What operators have written to parameters goes to the shards.
void Sharded::OnLoaded() {
  if (gathered_.has_value()) gathered_->Meet();
}

void Sharded::Settle() {
  if (gathered_.has_value()) gathered_->Meet();  // no need of the others' shares
}

// Of what this rank's share of the bucket is of each member.
void Sharded::AddPieces(const Bucket& bucket, const ParameterState& shard,
                        std::vector<Piece>* pieces) const {
  if (shard.empty()) return;
  const int64_t first = index() * bucket.share;
  for (const Member& member : bucket.members) {
    const int64_t elements = parameters()[member.parameter].tensor.numel();
    const int64_t begin = std::max(member.begin, first);
    const int64_t end = std::min(member.begin + elements, first + bucket.share);
    if (begin >= end) continue;
    Piece piece{member.parameter, begin - member.begin, end - begin, {shard.numbers, {}}};
    for (const auto& [field, tensor] : shard.tensors) {
      piece.state.tensors.emplace_back(field, tensor.narrow(0, begin - first, end - begin));
    }
    pieces->push_back(std::move(piece));
  }
}

std::vector<Piece> Sharded::StatePieces() {
  std::vector<Piece> pieces;
  for (const Bucket& bucket : buckets_) {
    AddPieces(bucket, GetParameterState(optimizer(), bucket.shard), &pieces);
  }
  return pieces;
}

std::vector<Piece> Sharded::ValuePieces() {
  std::vector<Piece> pieces;
  for (const Bucket& bucket : buckets_) {
    if (gathered_.has_value()) AddPieces(bucket, {{}, {{"", bucket.shard}}}, &pieces);
  }
  return pieces;
}

void Sharded::TakeStates(const std::vector<Piece>& pieces) {
  const at::NoGradGuard no_grad;
  for (const Piece& piece : pieces) {
    const auto [at, member] = places_[piece.parameter];
    if (at < 0) continue;
    const Bucket& bucket = buckets_[static_cast<size_t>(at)];
    const int64_t first = index() * bucket.share;
    const int64_t from = bucket.members[static_cast<size_t>(member)].begin + piece.begin;
    const int64_t begin = std::max(from, first);
    const int64_t end = std::min(from + piece.count, first + bucket.share);
    if (begin >= end) continue;
    ParameterState shard = GetParameterState(optimizer(), bucket.shard);
    if (shard.empty()) {
      for (const auto& [field, tensor] : piece.state.tensors) {
        shard.tensors.emplace_back(field, at::zeros({bucket.share}, bucket.shard.options()));
      }
    }
    shard.numbers = piece.state.numbers;
    for (const auto& [field, tensor] : shard.tensors) {
      for (const auto& [name, values] : piece.state.tensors) {
        if (name != field) continue;
        tensor.narrow(0, begin - first, end - begin)
            .copy_(values.narrow(0, begin - from, end - begin));
      }
    }
    SetParameterState(optimizer(), bucket.shard, shard);
  }
}

std::vector<ParameterState> Sharded::GetState() {
  const at::NoGradGuard no_grad;
  std::vector<ParameterState> states(parameters().size());
  for (const Bucket& bucket : buckets_) {
    const ParameterState shard = GetParameterState(optimizer(), bucket.shard);
    for (const Member& member : bucket.members) states[member.parameter].numbers = shard.numbers;
    for (const auto& [field, tensor] : shard.tensors) {
      const std::string operation = NameOf(bucket.name + " " + field);
      const at::Tensor whole =
          gather(tensor, first_rank(), {.name = operation, .process_set = options().process_set});
      if (index() != 0) continue;
      for (const Member& member : bucket.members) {
        states[member.parameter].tensors.emplace_back(field, ViewIn(whole, member).clone());
      }
    }
  }
  return states;
}

void Sharded::SetState(const std::vector<ParameterState>& states) {
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : buckets_) {
    ParameterState shard;
    for (const Member& member : bucket.members) {
      const ParameterState& state = states[member.parameter];
      if (shard.numbers.empty()) shard.numbers = state.numbers;
      if (shard.tensors.empty()) shard.tensors = state.tensors;
    }
    for (auto& [field, tensor] : shard.tensors) {
      const at::Tensor whole = at::zeros({bucket.share * ranks()}, bucket.values.options());
      for (const Member& member : bucket.members) {
        for (const auto& [name, value] : states[member.parameter].tensors) {
          if (name == field) ViewIn(whole, member).copy_(value);
        }
      }
      tensor = whole.narrow(0, index() * bucket.share, bucket.share).clone();
    }
    SetParameterState(optimizer(), bucket.shard, shard);
  }
}

}  // namespace

std::unique_ptr<Strategy> MakeSharded(std::string name, const Model& model,
                                      torch::optim::Optimizer& optimizer,
                                      const StrategyOptions& options) {
  return std::make_unique<Sharded>(std::move(name), model, optimizer, options);
}

}  // namespace rueda::libtorch
