// DistributedOptimizer: hooks that submit gradients, and the step that waits for them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <exception>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "bindings/torch/gradient_bucket.h"
#include "bindings/torch/gradient_memory.h"
#include "bindings/torch/operation.h"
#include "bindings/torch/sparse.h"

namespace rueda::libtorch {
namespace {

// Gradients up to so many bytes share operations, of so many bytes at most: an operation of its own
// costs such a one more than its bytes do. Larger ones go alone, as soon as they are there.
constexpr size_t kSharedBytes = size_t{128} << 10;
constexpr size_t kBucketBytes = size_t{4} << 20;
constexpr size_t kBucketSlots = 256;
// Whose bucket is smaller is copied to the other ranks in one go, wherever it lies.
constexpr size_t kArenaBytes = size_t{32} << 10;
// All but one of so many gradients are nearly all.
constexpr size_t kNearlyAll = 64;
// With a number behind it, the name of a bucket: the same whatever is in it, so that ranks whose
// parameters differ hear of it.
constexpr const char* kBucketName = "small gradients ";
constexpr size_t kSharedNameBytes = 1'000;  // longer names, near what a name may have, go alone

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(RUEDA_INVALID_ARGUMENT, "DistributedOptimizer: " + message);
}

NamedTensors PlaceNames(const torch::optim::Optimizer& optimizer) {
  NamedTensors named;
  const auto& groups = optimizer.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < groups[group].params().size(); ++i) {
      named.emplace_back("group" + std::to_string(group) + "." + std::to_string(i),
                         groups[group].params()[i]);
    }
  }
  return named;
}

NamedTensors List(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors list;
  for (const auto& item : tensors) list.emplace_back(item.key(), item.value());
  return list;
}

}  // namespace

class RUEDA_TORCH_LOCAL DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& optimizer, const NamedTensors& named_parameters,
       DistributedOptimizerOptions options);
  ~Impl();

  void Synchronize();
  void Step();
  void ZeroGrad(bool set_to_none);
  void OnGradient(size_t index);
  torch::optim::Optimizer& optimizer() const { return optimizer_; }

 private:
  class Hook;
  struct Slot {
    // Constant after construction.
    at::Tensor parameter;
    std::string name;    // of the operation
    int bucket = kNone;  // kNone: it goes alone
    size_t place = 0;    // in the bucket
    torch::autograd::PostAccumulateGradHook* hook = nullptr;
    // Guarded by mutex_.
    int passes = 0;                              // since the last synchronize
    int64_t sparse_dim = 0;                      // of the last gradient; 0: it was dense
    std::shared_ptr<Operation> dense = nullptr;  // in flight, or ended and not yet looked at;
    std::shared_ptr<SparseOperation> sparse = nullptr;  // one of them, or neither
  };
  // Small gradients that share an operation.
  struct Bucket {
    // Constant after construction.
    std::vector<size_t> slots;
    std::string name;  // without the prefix that all have in common
    // Guarded by mutex_.
    GradientBucket gradients;
    size_t ready = 0;  // of the slots, since the last synchronize
    std::shared_ptr<Operation> operation = nullptr;
  };
  static constexpr int kNone = -1;

  void CheckOptions() const;
  void AddSlots(const NamedTensors& named_parameters);
  void AddBuckets();
  void CheckForNewParameters();
  void AllocateMemory();
  void MakeGradient(Slot& slot) const;
  void Gather(Slot& slot);
  Request RequestFor(c10::ArrayRef<at::Tensor> gradients, const std::string& name) const;
  void Submit(Slot& slot);
  void Submit(Bucket& bucket);
  std::shared_ptr<Operation> SubmitTogether(Bucket& bucket);
  std::shared_ptr<Operation> SubmitOneByOne(const Bucket& bucket);
  void Wait(Bucket& bucket, Operation& operation);
  const std::string* InFlight() const;
  void EndStep();
  void Keep(std::exception_ptr error) {
    if (first_error_ == nullptr) first_error_ = std::move(error);
  }

  torch::optim::Optimizer& optimizer_;
  const DistributedOptimizerOptions options_;
  rueda_context* const context_;
  double prescale_ = 1;
  double postscale_ = 1;

  std::unique_ptr<GradientMemory> memory_;
  std::mutex mutex_;
  std::vector<Slot> slots_;  // the vectors themselves are constant
  std::vector<Bucket> buckets_;
  std::unordered_set<const c10::TensorImpl*> reduced_;  // the slots' parameters; constant
  // Guarded by mutex_.
  size_t ready_ = 0;           // of the slots, since the last synchronize
  bool synchronized_ = false;  // since the last gradient and step
  std::exception_ptr first_error_;
};

// Called by autograd, on any thread, when a gradient has been added to its parameter's.
class RUEDA_TORCH_LOCAL DistributedOptimizer::Impl::Hook
    : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(Impl* impl, size_t index) : impl_(impl), index_(index) {}
  void operator()(const at::Tensor&) override { impl_->OnGradient(index_); }

 private:
  Impl* const impl_;
  const size_t index_;
};

void DistributedOptimizer::Impl::CheckOptions() const {
  if (options_.backward_passes_per_step < 1) {
    Refuse("backward_passes_per_step is " + std::to_string(options_.backward_passes_per_step) +
           "; at least 1");
  }
  if (!(options_.gradient_predivide_factor > 0)) {
    Refuse("gradient_predivide_factor must be above 0");
  }
  if (options_.gradient_predivide_factor != 1 && options_.op != Average) {
    Refuse("gradient_predivide_factor goes with op = Average only");
  }
  if (rueda_process_set_rank(context_, options_.process_set.id) < 0) {
    Refuse("this rank is not in process set " + std::to_string(options_.process_set.id));
  }
}

DistributedOptimizer::Impl::Impl(torch::optim::Optimizer& optimizer,
                                 const NamedTensors& named_parameters,
                                 DistributedOptimizerOptions options)
    : optimizer_(optimizer), options_(std::move(options)), context_(CurrentContext()) {
  CheckOptions();
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    Refuse("LBFGS runs backward passes within its step, where gradients can't be waited for");
  }
  if (options_.op == Average) {  // the library divides by the size on top
    prescale_ = 1 / options_.gradient_predivide_factor;
    postscale_ = options_.gradient_predivide_factor;
  }
  AddSlots(named_parameters);
  AddBuckets();
  AllocateMemory();
  for (size_t i = 0; i < slots_.size(); ++i) {
    auto hook = std::make_unique<Hook>(this, i);
    slots_[i].hook = hook.get();
    torch::autograd::impl::set_post_acc_grad_hooks(slots_[i].parameter, std::move(hook));
  }
}

void DistributedOptimizer::Impl::AddSlots(const NamedTensors& named_parameters) {
  std::unordered_map<const c10::TensorImpl*, std::string> names;
  std::unordered_set<std::string> taken;
  for (const auto& [name, tensor] : named_parameters) {
    // A shared parameter has several names: the first one counts.
    if (!names.emplace(tensor.unsafeGetTensorImpl(), name).second) continue;
    if (!taken.insert(name).second) Refuse("two parameters are called '" + name + "'");
  }
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.requires_grad()) continue;
      if (!reduced_.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const auto it = names.find(parameter.unsafeGetTensorImpl());
      if (it == names.end()) {
        Refuse("parameter " + std::to_string(reduced_.size() - 1) +
               " of the optimizer is not among the named parameters");
      }
      if (torch::autograd::impl::post_acc_grad_hooks(parameter) != nullptr) {
        Refuse("'" + it->second + "' has a post-accumulate-grad hook already; is it in another " +
               "DistributedOptimizer?");
      }
      slots_.push_back({.parameter = parameter, .name = options_.name + "." + it->second});
    }
  }
}

// The same on all ranks, as the parameters are. Backward passes come by the last parameters first.
void DistributedOptimizer::Impl::AddBuckets() {
  std::unordered_map<at::ScalarType, int> open;  // by type
  std::unordered_map<int, size_t> bytes;         // by bucket
  for (size_t i = slots_.size(); i-- > 0;) {
    const at::Tensor& parameter = slots_[i].parameter;
    if (!parameter.is_cpu() || parameter.layout() != at::kStrided ||
        parameter.nbytes() > kSharedBytes || slots_[i].name.size() > kSharedNameBytes) {
      continue;
    }
    auto it = open.find(parameter.scalar_type());
    if (it == open.end() || bytes[it->second] + parameter.nbytes() > kBucketBytes ||
        buckets_[it->second].slots.size() == kBucketSlots) {
      it = open.insert_or_assign(parameter.scalar_type(), static_cast<int>(buckets_.size())).first;
      buckets_.push_back({.slots = {},
                          .name = kBucketName + std::to_string(buckets_.size() + 1),
                          .gradients = GradientBucket(parameter.scalar_type())});
    }
    Bucket& bucket = buckets_[it->second];
    slots_[i].bucket = it->second;
    slots_[i].place = bucket.slots.size();
    bytes[it->second] += parameter.nbytes();
    bucket.slots.push_back(i);
    bucket.gradients.Add(parameter, slots_[i].name);
  }
}

void DistributedOptimizer::Impl::AllocateMemory() {
  if (options_.gradients_in_arena) {
    std::vector<size_t> sizes;
    for (const Slot& slot : slots_) {
      if (slot.parameter.is_cpu() && slot.bucket == kNone &&
          slot.parameter.nbytes() > kSharedBytes) {
        sizes.push_back(slot.parameter.nbytes());
      }
    }
    for (const Bucket& bucket : buckets_) {
      if (bucket.gradients.bytes() >= kArenaBytes) sizes.push_back(bucket.gradients.bytes());
    }
    memory_ = std::make_unique<GradientMemory>(context_, sizes);
  }
  for (Bucket& bucket : buckets_) bucket.gradients.Allocate();
  if (memory_ == nullptr) return;
  if (!memory_->Grow()) return;  // what has been asked for is there from now on
  for (Bucket& bucket : buckets_) bucket.gradients.Allocate();
}

DistributedOptimizer::Impl::~Impl() {
  for (Slot& slot : slots_) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(slot.parameter);
    if (hook.get() == slot.hook) hook.reset();
  }
  // The slots' operations wait for their ends.
}

void DistributedOptimizer::Impl::OnGradient(size_t index) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  synchronized_ = false;
  if (++slot.passes < options_.backward_passes_per_step) return;
  if (slot.passes == options_.backward_passes_per_step) {
    ++ready_;
    if (slot.bucket == kNone) return Submit(slot);
    Bucket& bucket = buckets_[slot.bucket];
    try {
      Gather(slot);  // now, while it is in the cache
    } catch (...) {
      Keep(std::current_exception());
    }
    if (++bucket.ready == bucket.slots.size()) Submit(bucket);
    return;
  }
  Keep(std::make_exception_ptr(
      Error(RUEDA_FAILED_PRECONDITION,
            "'" + slot.name + "' was computed " + std::to_string(slot.passes) +
                " times since the last step, the last time while it was being reduced; to add " +
                "gradients up over several passes set backward_passes_per_step")));
}

// Holds mutex_. What is not there counts as zeros.
void DistributedOptimizer::Impl::MakeGradient(Slot& slot) const {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (!gradient.defined() && slot.sparse_dim > 0) {
    gradient = at::_sparse_coo_tensor_with_dims(
        slot.sparse_dim, slot.parameter.dim() - slot.sparse_dim, slot.parameter.sizes(),
        slot.parameter.options().layout(at::kSparse));
  } else if (!gradient.defined()) {
    gradient = at::zeros_like(slot.parameter);
  } else if (gradient.is_sparse() && options_.sparse_as_dense) {
    gradient = gradient.to_dense();
  }
  slot.sparse_dim = gradient.is_sparse() ? gradient.sparse_dim() : 0;
}

// Holds mutex_. When nearly all gradients are there, the backward pass ends and the wait begins.
Request DistributedOptimizer::Impl::RequestFor(c10::ArrayRef<at::Tensor> gradients,
                                               const std::string& name) const {
  return {.kind = RUEDA_ALLREDUCE,
          .tensors = gradients,
          .in_place = true,
          .name = name,
          .process_set = options_.process_set,
          .op = options_.op,
          .prescale = prescale_,
          .postscale = postscale_,
          .wait_soon = (slots_.size() - ready_) * kNearlyAll <= slots_.size()};
}

// Holds mutex_. An error is kept.
void DistributedOptimizer::Impl::Submit(Slot& slot) {
  try {
    MakeGradient(slot);
    const Request request = RequestFor(slot.parameter.mutable_grad(), slot.name);
    if (slot.sparse_dim > 0) {
      slot.sparse = SparseOperation::Submit(context_, request);
    } else {
      slot.dense = Operation::Submit(context_, request);
    }
  } catch (...) {
    Keep(std::current_exception());
  }
}

// Holds mutex_. Brings the gradient to where it is reduced with others, unless it is there.
void DistributedOptimizer::Impl::Gather(Slot& slot) {
  MakeGradient(slot);
  GradientBucket& gradients = buckets_[slot.bucket].gradients;
  if (slot.sparse_dim > 0) {
    gradients.LeaveOut(slot.place);
  } else {
    gradients.Take(slot.place);
  }
}

// Holds mutex_. The dense ones of the bucket; an error is kept.
void DistributedOptimizer::Impl::Submit(Bucket& bucket) {
  try {
    for (const size_t i : bucket.slots) {
      try {
        Gather(slots_[i]);
      } catch (...) {  // the other ranks are to hear of it
        Keep(std::current_exception());
        bucket.gradients.LeaveOut(slots_[i].place);
      }
    }
    // Adasum is of each gradient by itself.
    bucket.operation = options_.op == Adasum ? SubmitOneByOne(bucket) : SubmitTogether(bucket);
  } catch (...) {
    Keep(std::current_exception());
  }
}

// As one tensor. An empty one beside it has the layout for its name, so that ranks whose gradients
// lie differently don't mix them up.
std::shared_ptr<Operation> DistributedOptimizer::Impl::SubmitTogether(Bucket& bucket) {
  const at::Tensor& memory = bucket.gradients.memory();
  const at::Tensor tensors[] = {memory, at::empty({0}, memory.options())};
  const char* suffixes[] = {bucket.name.c_str(), bucket.gradients.layout().c_str()};
  const std::string name = options_.name + ".";
  Request request = RequestFor(tensors, name);
  request.grouped = true;
  request.suffixes = suffixes;
  return Operation::Submit(context_, request);
}

// By their names, behind a tensor without a meaning, by which ranks that differ in which are sparse
// find each other.
std::shared_ptr<Operation> DistributedOptimizer::Impl::SubmitOneByOne(const Bucket& bucket) {
  const std::string name = options_.name + ".";
  std::vector<at::Tensor> tensors = {at::zeros({1}, bucket.gradients.memory().options())};
  std::vector<const char*> suffixes = {bucket.name.c_str()};
  for (const size_t i : bucket.slots) {
    const at::Tensor& gradient = slots_[i].parameter.grad();
    if (!gradient.defined() || !gradient.is_cpu() || gradient.layout() != at::kStrided) continue;
    tensors.push_back(gradient);
    suffixes.push_back(slots_[i].name.c_str() + name.size());
  }
  Request request = RequestFor(tensors, name);
  request.grouped = true;
  request.suffixes = suffixes;
  return Operation::Submit(context_, request);
}

// Holds mutex_. The name of what is being reduced; null: nothing.
const std::string* DistributedOptimizer::Impl::InFlight() const {
  for (const Slot& slot : slots_) {
    if (slot.dense != nullptr || slot.sparse != nullptr ||
        (slot.bucket != kNone && buckets_[slot.bucket].operation != nullptr)) {
      return &slot.name;
    }
  }
  return nullptr;
}

void DistributedOptimizer::Impl::ZeroGrad(bool set_to_none) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const std::string* name = InFlight()) {
    throw Error(RUEDA_FAILED_PRECONDITION, "zero_grad() while '" + *name +
                                               "' is being reduced: call it before " +
                                               "backward(), or after step() or synchronize()");
  }
  EndStep();  // what gradients have added up goes
  optimizer_.zero_grad(set_to_none);
}

// Holds mutex_. One that was added or unfrozen since would go unreduced, and replicas apart.
void DistributedOptimizer::Impl::CheckForNewParameters() {
  const auto& groups = optimizer_.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < groups[group].params().size(); ++i) {
      const at::Tensor& parameter = groups[group].params()[i];
      if (!parameter.requires_grad() || reduced_.contains(parameter.unsafeGetTensorImpl())) {
        continue;
      }
      return Keep(std::make_exception_ptr(
          Error(RUEDA_FAILED_PRECONDITION, "DistributedOptimizer: parameter " + std::to_string(i) +
                                               " of group " + std::to_string(group) +
                                               " requires a gradient, but wasn't there or was " +
                                               "frozen when this object was made: make it again")));
    }
  }
}

// If the ranks don't fit together, throws what it is that differs: they all find out, so they can
// all ask.
void DistributedOptimizer::Impl::Wait(Bucket& bucket, Operation& operation) {
  try {
    operation.Wait();
  } catch (const Error& error) {
    if (error.status() != RUEDA_INVALID_ARGUMENT) throw;
    std::shared_ptr<Operation> named;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      named = SubmitOneByOne(bucket);
    }
    named->Wait();
    throw Error(RUEDA_INVALID_ARGUMENT,
                "the ranks keep '" + options_.name + "." + bucket.name +
                    "' in different layouts: give their parameters the same memory format, and "
                    "their DistributedOptimizers the same options");
  }
}

// Holds mutex_.
void DistributedOptimizer::Impl::EndStep() {
  ready_ = 0;
  for (Slot& slot : slots_) slot.passes = 0;
  for (Bucket& bucket : buckets_) {
    bucket.ready = 0;
    bucket.gradients.EndStep();
  }
}

void DistributedOptimizer::Impl::Synchronize() {
  std::vector<std::shared_ptr<Operation>> shared;  // by bucket; null: nothing was submitted
  std::vector<at::Tensor> frozen;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (synchronized_) return;
    CheckForNewParameters();
    for (Slot& slot : slots_) {
      if (!slot.parameter.requires_grad() && !slot.parameter.grad().defined()) {
        frozen.push_back(slot.parameter);
      }
    }
    ready_ = slots_.size();
    // The others may have gradients where this rank has none.
    for (Bucket& bucket : buckets_) {
      if (bucket.operation == nullptr) Submit(bucket);
      shared.push_back(std::exchange(bucket.operation, nullptr));
    }
    for (Slot& slot : slots_) {
      if (slot.bucket == kNone && slot.dense == nullptr && slot.sparse == nullptr) Submit(slot);
    }
    EndStep();
  }
  // From here on the slots are this thread's alone, as no backward pass runs.
  std::exception_ptr error;
  const auto attempt = [&error](auto wait) {
    try {
      wait();
      return true;
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
      return false;
    }
  };
  // By bucket: it has arrived, so all ranks have the same sparse ones in it.
  std::vector<bool> agreed;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    agreed.push_back(shared[i] != nullptr && attempt([&] { Wait(buckets_[i], *shared[i]); }));
  }
  for (Slot& slot : slots_) {
    if (slot.bucket == kNone || slot.sparse_dim == 0 || !agreed[slot.bucket]) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    Submit(slot);
  }
  for (Slot& slot : slots_) {
    if (slot.dense != nullptr) attempt([&] { slot.dense->Wait(); });
    if (slot.sparse != nullptr) {
      attempt([&] { slot.parameter.mutable_grad() = slot.sparse->Wait(); });
    }
    slot.dense = nullptr;
    slot.sparse = nullptr;
  }
  // Else a weight decay or a momentum would move what was frozen.
  for (const at::Tensor& parameter : frozen) parameter.mutable_grad().reset();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_error_ != nullptr) error = std::exchange(first_error_, nullptr);
    synchronized_ = error == nullptr;
  }
  if (error == nullptr) {
    if (memory_ == nullptr || !memory_->Grow()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Bucket& bucket : buckets_) {
      if (!GradientMemory::Serves(bucket.gradients.memory().const_data_ptr())) {
        bucket.gradients.Move();
      }
    }
    return;
  }
  rueda_error failure = RUEDA_ERROR_INIT;
  if (rueda_context_error(context_, &failure) != RUEDA_OK || failure.code != RUEDA_OK) {
    // Others may not have noticed, and be writing to what is freed from now on, and to the buckets.
    memory_ = nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Bucket& bucket : buckets_) bucket.gradients.Allocate();
  }
  std::rethrow_exception(error);
}

void DistributedOptimizer::Impl::Step() {
  Synchronize();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    synchronized_ = false;
  }
  optimizer_.step();
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedTensors& named_parameters,
                                           DistributedOptimizerOptions options)
    : impl_(std::make_unique<Impl>(optimizer, named_parameters, std::move(options))) {}

DistributedOptimizer::DistributedOptimizer(
    torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& named_parameters,
    DistributedOptimizerOptions options)
    : DistributedOptimizer(optimizer, List(named_parameters), std::move(options)) {}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           DistributedOptimizerOptions options)
    : DistributedOptimizer(optimizer, PlaceNames(optimizer), std::move(options)) {}

DistributedOptimizer::~DistributedOptimizer() = default;

void DistributedOptimizer::step() {
  impl_->Step();
}

void DistributedOptimizer::synchronize() {
  impl_->Synchronize();
}

void DistributedOptimizer::zero_grad(bool set_to_none) {
  impl_->ZeroGrad(set_to_none);
}

torch::optim::Optimizer& DistributedOptimizer::optimizer() const {
  return impl_->optimizer();
}

}  // namespace rueda::libtorch
