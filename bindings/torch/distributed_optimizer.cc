// DistributedOptimizer: hooks that submit gradients, and the step that waits for them.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "bindings/torch/bucket_plan.h"
#include "bindings/torch/compressible.h"
#include "bindings/torch/device.h"
#include "bindings/torch/gradient_bucket.h"
#include "bindings/torch/gradient_memory.h"
#include "bindings/torch/named_tensors.h"
#include "bindings/torch/operation.h"
#include "bindings/torch/parameter_hooks.h"
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

NamedTensors NamesByPosition(const torch::optim::Optimizer& optimizer) {
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

// Another tensor, which counts its own writes.
at::Tensor SameMemory(const at::Tensor& tensor) {
  at::Tensor same = at::empty({0}, tensor.options());
  same.set_(tensor);
  return same;
}

NamedTensors List(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors list;
  Append(tensors, &list);
  return list;
}

}  // namespace

class RUEDA_TORCH_LOCAL DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& optimizer, const NamedTensors& named_parameters,
       DistributedOptimizerOptions options);

  void Synchronize();
  void Step();
  void ZeroGrad(bool set_to_none);
  void OnGradient(size_t index);
  void Hold(int change);
  std::vector<std::string> Unused();
  torch::optim::Optimizer& optimizer() const { return optimizer_; }

 private:
  struct Slot {
    // Constant after construction.
    at::Tensor parameter;
    std::string name;  // of the operation
    // Guarded by mutex_.
    int bucket = kNone;                          // kNone: it goes alone
    size_t place = 0;                            // in the bucket
    int passes = 0;                              // since the last synchronize
    bool none = false;                           // of this rank's, in this step
    bool unused = false;                         // no rank had one in the last synchronize
    size_t arrival = 0;                          // in the first step: how many came before
    int64_t sparse_dim = 0;                      // of the last gradient; 0: it was dense
    at::Tensor taken = {};                       // the parameter's gradient that is being reduced
    uint32_t version = 0;                        // of that
    at::Tensor copy = {};                        // of that, if it goes alone: this is reduced
    at::Tensor memory = {};                      // of copies, on the CPU
    std::shared_ptr<Operation> dense = nullptr;  // in flight, or ended and not yet looked at;
    std::shared_ptr<SparseOperation> sparse = nullptr;  // one of them, or neither
  };
  // Small gradients that share an operation.
  struct Bucket {
    // Constant.
    std::vector<size_t> slots;
    std::string name;  // without the prefix that all have in common
    // Guarded by mutex_.
    GradientBucket gradients;
    size_t ready = 0;  // of the slots, since the last synchronize
    std::shared_ptr<Operation> operation = nullptr;
  };
  static constexpr int kNone = -1;

  // In a forked child: the gradients' memory is not there, and mutex_ is in whatever state.
  bool IsInherited() const { return getpid() != pid_; }
  void CheckOptions() const;
  void AddSlots(const NamedTensors& named_parameters);
  void AddBuckets(const std::vector<size_t>& order);
  void AddHooks();
  void CheckForNewParameters();
  void AllocateMemory();
  at::Tensor Own(Slot& slot) const;
  at::Tensor Copy(Slot& slot) const;
  void Gather(Slot& slot);
  Call CallFor(c10::ArrayRef<at::Tensor> gradients, const std::string& name) const;
  void Submit(Slot& slot);
  void Submit(Bucket& bucket);
  std::shared_ptr<Operation> SubmitTogether(Bucket& bucket);
  std::shared_ptr<Operation> SubmitOneByOne(const Bucket& bucket);
  void Wait(Bucket& bucket, Operation& operation);
  void WarnOfLostWrites();
  const std::string* InFlight() const;
  void EndStep();
  void SubmitNotes();
  void TakeNotes(const at::Tensor& notes);
  void LearnOrder(const int32_t* arrivals);
  void Keep(std::exception_ptr error) {
    if (first_error_ == nullptr) first_error_ = std::move(error);
  }

  torch::optim::Optimizer& optimizer_;
  const DistributedOptimizerOptions options_;
  rueda_context* const context_;
  const pid_t pid_ = getpid();
  double prescale_ = 1;
  double postscale_ = 1;

  std::unique_ptr<GradientMemory> memory_;
  std::mutex mutex_;
  std::vector<Slot> slots_;  // the vector itself is constant
  std::vector<Bucket> buckets_;
  std::unordered_set<const c10::TensorImpl*> reduced_;  // the slots' parameters; constant
  // Guarded by mutex_.
  size_t ready_ = 0;           // of the slots, since the last synchronize
  bool synchronized_ = false;  // since the last gradient and step
  int holds_ = 0;              // NoSyncs that live
  size_t arrivals_ = 0;        // gradients, in the first step
  std::shared_ptr<Operation> notes_;
  bool order_learned_ = false;  // by buckets_
  bool warned_ = false;         // of lost writes
  std::exception_ptr first_error_;
  std::unique_ptr<ParameterHooks> hooks_;  // last: goes first
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
  if (!options_.compression.empty() && options_.op != Average && options_.op != Sum &&
      options_.op != AverageLive) {
    Refuse("compression goes with op = Average and Sum only");
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
  for (const Slot& slot : slots_) {
    if (options_.op != Adasum || slot.parameter.is_cpu()) continue;
    Refuse("op = Adasum is for parameters on the CPU, and '" + slot.name + "' is on " +
           DeviceName(slot.parameter.device()) + "; the strategy adasum combines steps");
  }
  // Backward passes come by the last parameters first, mostly; the first step tells.
  std::vector<size_t> order(slots_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  AddBuckets(order);
  AllocateMemory();
  AddHooks();
}

void DistributedOptimizer::Impl::AddHooks() {
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    parameters.push_back(slot.parameter);
    names.push_back(slot.name.substr(options_.name.size() + 1));
  }
  hooks_ = std::make_unique<ParameterHooks>(std::move(parameters), names,
                                            [this](size_t i) { OnGradient(i); });
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
      slots_.push_back({.parameter = parameter, .name = options_.name + "." + it->second});
    }
  }
}

// The same on all ranks, as the parameters and the order are.
void DistributedOptimizer::Impl::AddBuckets(const std::vector<size_t>& order) {
  std::vector<SmallGradient> small;
  for (const size_t i : order) {
    const at::Tensor& parameter = slots_[i].parameter;
    if (!(parameter.is_cpu() || parameter.is_cuda()) || parameter.layout() != at::kStrided ||
        parameter.nbytes() > kSharedBytes || slots_[i].name.size() > kSharedNameBytes) {
      continue;
    }
    small.push_back({.slot = i,
                     .device = parameter.device(),
                     .type = parameter.scalar_type(),
                     .bytes = parameter.nbytes()});
  }
  for (std::vector<size_t>& slots :
       PlanBuckets(small, {.bytes = kBucketBytes, .gradients = kBucketSlots})) {
    const int index = static_cast<int>(buckets_.size());
    const at::Tensor& first = slots_[slots.front()].parameter;
    Bucket& bucket =
        buckets_.emplace_back(Bucket{.slots = std::move(slots),
                                     .name = kBucketName + std::to_string(index + 1),
                                     .gradients = {first.scalar_type(), first.device()}});
    for (size_t place = 0; place < bucket.slots.size(); ++place) {
      Slot& slot = slots_[bucket.slots[place]];
      slot.bucket = index;
      slot.place = place;
      bucket.gradients.Add(slot.parameter, slot.name);
    }
  }
}

// The arena is the CPU's: on a device the library has memory of its own, and torch's is as good.
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
      if (bucket.gradients.device().is_cpu() && bucket.gradients.bytes() >= kArenaBytes) {
        sizes.push_back(bucket.gradients.bytes());
      }
    }
    memory_ = std::make_unique<GradientMemory>(context_, sizes);
  }
  for (Bucket& bucket : buckets_) bucket.gradients.Allocate();
  if (memory_ == nullptr) return;
  if (!memory_->Grow()) return;  // what has been asked for is there from now on
  for (Bucket& bucket : buckets_) bucket.gradients.Allocate();
}

void DistributedOptimizer::Impl::OnGradient(size_t index) {
  if (IsInherited()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  Slot& slot = slots_[index];
  synchronized_ = false;
  if (holds_ > 0 && slot.passes < options_.backward_passes_per_step) return;
  if (++slot.passes < options_.backward_passes_per_step) return;
  if (slot.passes == options_.backward_passes_per_step) {
    ++ready_;
    slot.arrival = arrivals_++;
    if (slot.bucket == kNone) {
      Submit(slot);
    } else {
      Bucket& bucket = buckets_[slot.bucket];
      try {
        Gather(slot);  // now, while it is in the cache
      } catch (...) {
        Keep(std::current_exception());
      }
      if (++bucket.ready == bucket.slots.size()) Submit(bucket);
    }
    // Now, so that a rank that steps first need not wait until the others step.
    if (ready_ == slots_.size()) SubmitNotes();
    return;
  }
  Keep(std::make_exception_ptr(
      Error(RUEDA_FAILED_PRECONDITION,
            "'" + slot.name + "' was computed " + std::to_string(slot.passes) +
                " times since the last step, the last time while it was being reduced; to add " +
                "gradients up over several passes set backward_passes_per_step, or hold no_sync() "
                "in all passes but the last")));
}

// Holds mutex_. What this rank has: zeros if there is nothing. The user's own, maybe, so that it is
// to be copied.
at::Tensor DistributedOptimizer::Impl::Own(Slot& slot) const {
  const at::NoGradGuard no_grad;
  at::Tensor own = slot.parameter.grad();
  slot.taken = own;
  slot.none = !own.defined();
  if (slot.none && slot.sparse_dim > 0) {
    own = at::_sparse_coo_tensor_with_dims(slot.sparse_dim, slot.parameter.dim() - slot.sparse_dim,
                                           slot.parameter.sizes(),
                                           slot.parameter.options().layout(at::kSparse));
  } else if (slot.none) {
    own = at::zeros_like(slot.parameter);
  } else {
    slot.version = slot.taken.is_inference() ? 0 : slot.taken._version();
    if (own.is_sparse() && options_.sparse_as_dense) own = own.to_dense();
  }
  slot.sparse_dim = own.is_sparse() ? own.sparse_dim() : 0;
  return own;
}

// Holds mutex_. In the last step's memory, unless somebody still uses it.
at::Tensor DistributedOptimizer::Impl::Copy(Slot& slot) const {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  const at::Tensor own = Own(slot);
  if (slot.sparse_dim > 0 || !own.is_cpu()) return own.clone();
  at::Tensor& memory = slot.memory;
  if (!memory.defined() || memory.storage().use_count() > 1 ||
      memory.scalar_type() != own.scalar_type() || memory.sizes() != own.sizes() ||
      memory.strides() != own.strides()) {
    memory = at::empty_like(own);
  }
  memory.copy_(own);
  return SameMemory(memory);
}

// Holds mutex_. When nearly all gradients are there, the backward pass ends and the wait begins.
Call DistributedOptimizer::Impl::CallFor(c10::ArrayRef<at::Tensor> gradients,
                                         const std::string& name) const {
  return {.kind = RUEDA_ALLREDUCE,
          .tensors = gradients,
          .in_place = true,
          .name = name,
          .process_set = options_.process_set,
          .op = options_.op,
          .prescale = prescale_,
          .postscale = postscale_,
          .wait_soon = (slots_.size() - ready_) * kNearlyAll <= slots_.size(),
          .compressor =
              IsCompressible(gradients[0]) ? options_.compression : rueda::detail::NoCompressor()};
}

// Holds mutex_. An error is kept.
void DistributedOptimizer::Impl::Submit(Slot& slot) {
  try {
    const at::NoGradGuard no_grad;
    if (!slot.copy.defined()) slot.copy = Copy(slot);
    const Call call = CallFor(slot.copy, slot.name);
    if (slot.sparse_dim > 0) {
      slot.sparse = SparseOperation::Submit(context_, call);
    } else {
      slot.dense = Operation::Submit(context_, call);
    }
  } catch (...) {
    Keep(std::current_exception());
  }
}

// Holds mutex_. Copies the gradient to where it is reduced with others, unless it is there.
void DistributedOptimizer::Impl::Gather(Slot& slot) {
  GradientBucket& gradients = buckets_[slot.bucket].gradients;
  if (gradients.Has(slot.place)) return;
  const at::Tensor own = Own(slot);
  if (slot.sparse_dim > 0) {
    gradients.LeaveOut(slot.place);
    slot.copy = own.clone();
  } else {
    gradients.Take(slot.place, own);
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
    // Adasum is of each gradient by itself, and what compression loses too.
    bucket.operation = options_.op == Adasum || !options_.compression.empty()
                           ? SubmitOneByOne(bucket)
                           : SubmitTogether(bucket);
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
  Call call = CallFor(tensors, name);
  call.grouped = true;
  call.suffixes = suffixes;
  return Operation::Submit(context_, call);
}

// By their names, behind a tensor without a meaning, by which ranks that differ in which are sparse
// find each other.
std::shared_ptr<Operation> DistributedOptimizer::Impl::SubmitOneByOne(const Bucket& bucket) {
  const std::string name = options_.name + ".";
  std::vector<at::Tensor> tensors = {at::zeros({1}, bucket.gradients.memory().options())};
  std::vector<const char*> suffixes = {bucket.name.c_str()};
  for (const size_t i : bucket.slots) {
    if (bucket.gradients.IsLeftOut(slots_[i].place)) continue;
    tensors.push_back(bucket.gradients.View(slots_[i].place));
    suffixes.push_back(slots_[i].name.c_str() + name.size());
  }
  Call call = CallFor(tensors, name);
  call.grouped = true;
  call.suffixes = suffixes;
  return Operation::Submit(context_, call);
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
  if (IsInherited()) return optimizer_.zero_grad(set_to_none);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (const std::string* name = InFlight()) {
    throw Error(RUEDA_FAILED_PRECONDITION, "zero_grad() while '" + *name +
                                               "' is being reduced: call it before " +
                                               "backward(), or after step() or synchronize()");
  }
  EndStep();  // what gradients have added up goes
  synchronized_ = false;
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
    const std::lock_guard<std::mutex> lock(mutex_);
    bucket.gradients.OrderHere();
    for (const size_t i : bucket.slots) {
      Slot& slot = slots_[i];
      if (bucket.gradients.IsLeftOut(slot.place)) continue;
      slot.parameter.mutable_grad() = bucket.gradients.View(slot.place);
    }
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

// Holds mutex_. Once, if it is certain that a gradient has been changed which was on its way.
void DistributedOptimizer::Impl::WarnOfLostWrites() {
  if (warned_) return;
  for (const Slot& slot : slots_) {
    if (!slot.taken.defined()) continue;
    const at::Tensor& now = slot.parameter.grad();
    // Tensors beside it may count with it: those that a backward pass has cut out of a larger one.
    const bool counts =
        !slot.taken.is_inference() && slot.taken.unsafeGetTensorImpl()->version_counter().unique();
    if (now.is_same(slot.taken) && !(counts && now._version() != slot.version)) continue;
    warned_ = true;
    TORCH_WARN("DistributedOptimizer: the gradient of '", slot.name,
               "' was changed between backward() and step(), and this change is lost: gradients ",
               "are on their way to the other ranks by then. To clip or change them, call "
               "synchronize() first, on all ranks");
    return;
  }
}

// Holds mutex_.
void DistributedOptimizer::Impl::EndStep() {
  ready_ = 0;
  arrivals_ = 0;
  for (Slot& slot : slots_) {
    slot.passes = 0;
    slot.taken.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.ready = 0;
    bucket.gradients.EndStep();
  }
}

void DistributedOptimizer::Impl::Synchronize() {
  if (IsInherited()) {
    throw Error(RUEDA_FAILED_PRECONDITION,
                "DistributedOptimizer: this process was forked from a rank, and its gradients are "
                "not combined with the other ranks'. Step in the parent, or use an optimizer of "
                "torch::optim here");
  }
  std::vector<std::shared_ptr<Operation>> shared;  // by bucket; null: nothing was submitted
  std::shared_ptr<Operation> notes;
  std::vector<at::Tensor> frozen;
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
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (synchronized_) return;
    CheckForNewParameters();
    WarnOfLostWrites();
    for (Slot& slot : slots_) {
      if (!slot.parameter.requires_grad() && !slot.parameter.grad().defined()) {
        frozen.push_back(slot.parameter);
      }
    }
    ready_ = slots_.size();
    for (Slot& slot : slots_) {
      if (slot.passes < options_.backward_passes_per_step) slot.arrival = slots_.size();
    }
    // The others may have gradients where this rank has none.
    for (Bucket& bucket : buckets_) {
      if (bucket.operation == nullptr) Submit(bucket);
      shared.push_back(std::exchange(bucket.operation, nullptr));
    }
    for (Slot& slot : slots_) {
      if (slot.bucket == kNone && slot.dense == nullptr && slot.sparse == nullptr) Submit(slot);
    }
    if (notes_ == nullptr) SubmitNotes();
    notes = std::exchange(notes_, nullptr);
    EndStep();
  }
  // From here on the slots are this thread's alone, as no backward pass runs.
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
    if (slot.dense != nullptr) {
      attempt([&] {
        slot.dense->Wait();
        slot.parameter.mutable_grad() = slot.copy;
      });
    }
    if (slot.sparse != nullptr) {
      attempt([&] { slot.parameter.mutable_grad() = slot.sparse->Wait(); });
    }
    slot.dense = nullptr;
    slot.sparse = nullptr;
    slot.copy.reset();
  }
  if (notes != nullptr) attempt([&] { TakeNotes(notes->Wait().front()); });
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
      if (bucket.gradients.device().is_cpu() &&
          !GradientMemory::Serves(bucket.gradients.memory().const_data_ptr())) {
        bucket.gradients.Move();
      }
    }
    for (Slot& slot : slots_) {
      if (slot.memory.defined() && !GradientMemory::Serves(slot.memory.const_data_ptr())) {
        slot.memory.reset();
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
    for (Slot& slot : slots_) slot.memory.reset();
  }
  std::rethrow_exception(error);
}

// Holds mutex_. What ranks tell each other of their slots: how many had a gradient, how many are
// frozen, how many ranks say so, and until the order is learned, when they came. As int32, one
// behind another. No parameter's operation has that name.
void DistributedOptimizer::Impl::SubmitNotes() {
  const size_t count = slots_.size();
  if (count == 0) return;
  try {
    const at::NoGradGuard no_grad;
    at::Tensor notes =
        at::zeros({static_cast<int64_t>((order_learned_ ? 2 : 3) * count + 1)}, at::kInt);
    int32_t* const values = notes.mutable_data_ptr<int32_t>();
    for (size_t i = 0; i < count; ++i) {
      values[i] = slots_[i].none ? 0 : 1;
      values[count + i] = slots_[i].parameter.requires_grad() ? 0 : 1;
      if (!order_learned_) values[2 * count + 1 + i] = static_cast<int32_t>(slots_[i].arrival);
    }
    values[2 * count] = 1;
    const std::string name = "notes of " + options_.name;
    notes_ = Operation::Submit(context_, {.kind = RUEDA_ALLREDUCE,
                                          .tensors = notes,
                                          .in_place = true,
                                          .name = name,
                                          .process_set = options_.process_set,
                                          .op = Sum,
                                          .wait_soon = true});
  } catch (...) {
    Keep(std::current_exception());
  }
}

// What no rank had a gradient for has none: as if one process had all ranks' batches.
void DistributedOptimizer::Impl::TakeNotes(const at::Tensor& notes) {
  const int32_t* const values = notes.const_data_ptr<int32_t>();
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t count = slots_.size();
  const int32_t told = values[2 * count];  // all but those who have joined
  for (size_t i = 0; i < count; ++i) {
    slots_[i].unused = values[i] == 0;
    if (slots_[i].unused) slots_[i].parameter.mutable_grad().reset();
  }
  // A rank that has joined would miss it, so all try again in the next step.
  const int ranks = rueda_process_set_size(context_, options_.process_set.id);
  if (!order_learned_ && told == ranks) LearnOrder(values + 2 * count + 1);
  for (size_t i = 0; i < count; ++i) {
    const int32_t frozen = values[count + i];
    if (frozen == 0 || frozen == told) continue;
    // Some would step it, and replicas go apart.
    throw Error(RUEDA_FAILED_PRECONDITION,
                "'" + slots_[i].name + "' is frozen on " + std::to_string(frozen) + " of " +
                    std::to_string(told) + " ranks, " +
                    (slots_[i].parameter.requires_grad() ? "not on this one" : "on this one too") +
                    ": freeze it on all or on none");
  }
}

// Holds mutex_. `arrivals`: by slot, the sum of all ranks'. Gradients that come together share a
// bucket from now on. The sums are the same on all ranks, and so are the buckets.
void DistributedOptimizer::Impl::LearnOrder(const int32_t* arrivals) {
  order_learned_ = true;
  std::vector<size_t> order(slots_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return arrivals[a] < arrivals[b]; });
  std::vector<Bucket> before = std::exchange(buckets_, {});
  AddBuckets(order);
  const auto as_sets = [](const std::vector<Bucket>& buckets) {
    std::vector<std::vector<size_t>> sets;
    for (const Bucket& bucket : buckets) {
      sets.push_back(bucket.slots);
      std::sort(sets.back().begin(), sets.back().end());
    }
    return sets;
  };
  if (as_sets(before) != as_sets(buckets_)) return AllocateMemory();
  buckets_ = std::move(before);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (size_t place = 0; place < buckets_[b].slots.size(); ++place) {
      slots_[buckets_[b].slots[place]].place = place;
    }
  }
}

void DistributedOptimizer::Impl::Hold(int change) {
  if (IsInherited()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  holds_ += change;
}

std::vector<std::string> DistributedOptimizer::Impl::Unused() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> names;
  for (const Slot& slot : slots_) {
    if (slot.unused) names.push_back(slot.name.substr(options_.name.size() + 1));
  }
  return names;
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
    : DistributedOptimizer(optimizer, NamesByPosition(optimizer), std::move(options)) {}

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

DistributedOptimizer::NoSync::NoSync(DistributedOptimizer& optimizer) : optimizer_(optimizer) {
  optimizer_.impl_->Hold(1);
}

DistributedOptimizer::NoSync::~NoSync() {
  optimizer_.impl_->Hold(-1);
}

DistributedOptimizer::NoSync DistributedOptimizer::no_sync() {
  return NoSync(*this);
}

std::vector<std::string> DistributedOptimizer::unused_parameters() const {
  return impl_->Unused();
}

torch::optim::Optimizer& DistributedOptimizer::optimizer() const {
  return impl_->optimizer();
}

}  // namespace rueda::libtorch
