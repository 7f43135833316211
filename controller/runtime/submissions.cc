#include "controller/runtime/submissions.h"

#include <algorithm>
#include <unordered_set>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor/compression.h"
#include "ops/kernels/reduce.h"

namespace rueda {
namespace {

// Names beyond this many are forgotten as soon as they are not in flight: a program that makes up a
// new name for every step must not grow without end.
constexpr size_t kNamesKept = 65'536;

// A signature of this size still fits a control frame with room to spare.
constexpr size_t kSignatureBytesMax = kControlFrameBytesMax / 2;

// What a part takes on the wire at the most, besides its name.
size_t PartBytes(const PartArgs& part) {
  return 16 + 10 * static_cast<size_t>(part.shape.rank());
}

std::string Label(const OperationArgs& args, size_t part) {
  return args.names.empty() ? absl::StrCat("unnamed ", OpKindName(args.kind))
                            : absl::StrCat(OpKindName(args.kind), " '", args.names[part], "'");
}

absl::Status Bad(const OperationArgs& args, size_t part, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(Label(args, part), ": ", why));
}

bool Overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const char* x = static_cast<const char*>(a);
  const char* y = static_cast<const char*>(b);
  return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

size_t BytesOf(const Shape& shape, DType dtype) {
  return static_cast<size_t>(shape.elements()) * DTypeSize(dtype);
}

absl::Status CheckMemory(const OperationArgs& args, size_t i, Rank rank) {
  const PartArgs& part = args.parts[i];
  const size_t bytes = BytesOf(part.shape, part.dtype);
  const bool gives = args.Gives(rank) && bytes > 0;
  if (gives && part.input == nullptr) return Bad(args, i, "the input's data pointer is null");
  if (args.Gets(rank) && !TraitsOf(args.kind).reshapes) {
    if (bytes > 0 && part.output == nullptr) {
      return Bad(args, i, "the output's data pointer is null");
    }
    if (gives && part.input != part.output && Overlap(part.input, bytes, part.output, bytes)) {
      return Bad(args, i,
                 "input and output overlap in part; they must be the same memory or apart");
    }
  } else if (gives && part.output_given && args.kind != OpKind::kAllgather &&
             Overlap(part.input, bytes, part.output, BytesOf(part.output_shape, part.dtype))) {
    return Bad(args, i, "input and output overlap; they must be apart");
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const OperationArgs& args, size_t i, Rank rank) {
  const PartArgs& part = args.parts[i];
  const KindTraits& traits = TraitsOf(args.kind);
  if (traits.reduces) {
    if (absl::Status status = kernels::CheckReducible(part.dtype, args.reduce_op); !status.ok()) {
      return Bad(args, i, status.message());
    }
    if (args.reduce_op == ReduceOp::kAdasum && args.kind != OpKind::kAllreduce) {
      return Bad(args, i, "adasum is for allreduce alone");
    }
  }
  if (absl::Status status =
          CheckCompressible(args.compression, args.kind, args.reduce_op, part.dtype);
      !status.ok()) {
    return Bad(args, i, status.message());
  }
  if (traits.reshapes && part.shape.rank() == 0) {
    return Bad(args, i, "a scalar has no first dimension to go by; give it one of 1");
  }
  return CheckMemory(args, i, rank);
}

// Rows by member, given or in equal parts.
absl::Status CheckSplits(const OperationArgs& args, int members) {
  const int64_t rows = args.parts[0].shape.dim(0);
  if (args.splits.empty()) {
    if (rows % members == 0) return absl::OkStatus();
    return Bad(args, 0,
               absl::StrCat("the first dimension, ", rows, ", can't be divided equally among the ",
                            members, " ranks of the process set; give splits"));
  }
  if (args.splits.size() != static_cast<size_t>(members)) {
    return Bad(args, 0,
               absl::StrCat("there are ", args.splits.size(), " splits for the ", members,
                            " ranks of the process set"));
  }
  int64_t sum = 0;
  for (const int64_t split : args.splits) {
    if (split < 0) return Bad(args, 0, absl::StrCat("a split of ", split, " rows"));
    if (__builtin_add_overflow(sum, split, &sum)) sum = -1;
    if (sum < 0) break;
  }
  if (sum == rows) return absl::OkStatus();
  return Bad(args, 0,
             absl::StrCat("the splits add up to ", sum < 0 ? "more than 2^63" : absl::StrCat(sum),
                          " rows, the first dimension is ", rows));
}

// What may differ from rank to rank is no error of this rank alone: the others would wait.
std::string FaultOf(const OperationArgs& args, const ProcessSetTable& sets, Rank rank) {
  if (!args.fault.empty()) return absl::StrCat(Label(args, args.fault_part), ": ", args.fault);
  if (args.kind != OpKind::kAlltoall && (args.kind != OpKind::kScatter || args.root != rank)) {
    return "";
  }
  return std::string(CheckSplits(args, sets.Find(args.set)->size()).message());
}

// Without the parts' names.
bool Alike(const OperationArgs& args, const Signature& signature) {
  return signature.traits() == args.traits() &&
         std::equal(args.parts.begin(), args.parts.end(), signature.parts.begin(),
                    signature.parts.end(), [&](const PartArgs& part, const PartSignature& known) {
                      return part.dtype == known.dtype &&
                             (TraitsOf(args.kind).ragged ? part.shape.Row() == known.shape
                                                         : part.shape == known.shape);
                    });
}

// Whether SignatureOf would give this one.
bool IsOf(const OperationArgs& args, const Signature& signature) {
  if (!Alike(args, signature) || signature.ranks != args.ranks) return false;
  if (args.parts.size() < 2) return signature.part_names.empty();
  if (signature.part_names.size() != args.parts.size()) return false;
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const absl::string_view name = args.names.empty() ? absl::string_view() : args.names[i];
    if (signature.part_names[i] != name) return false;
  }
  return true;
}

Signature SignatureOf(const OperationArgs& args) {
  Signature signature;
  signature.traits() = args.traits();
  for (const PartArgs& part : args.parts) {
    signature.parts.push_back(
        {part.dtype, TraitsOf(args.kind).ragged ? part.shape.Row() : part.shape});
  }
  if (args.parts.size() > 1) {
    for (const absl::string_view name : args.names) signature.part_names.emplace_back(name);
    // Unnamed groups differ from unnamed single operations all the same.
    if (args.names.empty()) signature.part_names.assign(args.parts.size(), "");
  }
  signature.ranks = args.ranks;
  return signature;
}

}  // namespace

Submissions::Submissions(Rank rank, int world_size,
                         absl::Span<const std::vector<Rank>> process_sets,
                         std::shared_ptr<RequestTable> table)
    : rank_(rank),
      table_(std::move(table)),
      sets_(world_size, process_sets),
      states_(sets_.end()) {}

Submissions::~Submissions() {
  for (const std::vector<Request*>* const left : {&submitted_, &waited_}) {
    for (Request* const request : *left) table_->Unreference(request);
  }
}

size_t Submissions::NameHash::operator()(const std::pair<Scope, absl::string_view>& key) const {
  return absl::HashOf(key);
}

Submissions::Scope Submissions::ScopeOf(OpKind kind, SetId set, Rank root, Rank peer) {
  return kind == OpKind::kSendRecv ? Scope{set, root, peer} : Scope{set};
}

SubmittedName& Submissions::NameOf(Scope scope, absl::string_view name) {
  const auto it = names_.find(std::make_pair(scope, name));
  if (it != names_.end()) return it->second;
  return names_[std::make_pair(scope, std::string(name))];
}

absl::Status Submissions::CheckSet(const OperationArgs& args) const {
  const ProcessSet* set = sets_.Find(args.set);
  if (set == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("there is no process set ", args.set));
  }
  const auto text = [&] {
    return absl::StrCat("process set ", args.set, " {", absl::StrJoin(set->ranks, ", "), "}");
  };
  if (!set->Contains(rank_)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " is not in ", text()));
  }
  const SetState& state = states_[args.set];
  if (state.removing) {
    return absl::FailedPreconditionError(absl::StrCat(text(), " is being removed"));
  }
  if (state.joined) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", rank_, " has joined ", text(), "; wait until all of its ranks have"));
  }
  const bool pair = args.kind == OpKind::kSendRecv;
  for (const Rank rank : {args.root, args.peer}) {
    if (!(rank == args.root ? TraitsOf(args.kind).rooted : pair) || set->Contains(rank)) continue;
    return Bad(args, 0, absl::StrCat(pair ? "peer " : "root ", rank, " is not a rank of ", text()));
  }
  if (args.kind != OpKind::kReducescatter) return absl::OkStatus();
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const PartArgs& part = args.parts[i];
    std::vector<int64_t> dims(part.shape.dims().begin(), part.shape.dims().end());
    dims[0] = ReducescatterRows(dims[0], set->size(), set->IndexOf(rank_));
    if (!part.output_given || part.output_shape == Shape(dims)) continue;
    return Bad(args, i,
               absl::StrCat("this rank's part of the result has shape ", Shape(dims).ToString(),
                            ", the given output ", part.output_shape.ToString()));
  }
  return absl::OkStatus();
}

absl::Status Submissions::CheckNames(const OperationArgs& args) {
  const Scope scope = ScopeOf(args.kind, args.set, args.root, args.peer);
  size_t bytes = 0;
  found_.clear();
  for (size_t i = 0; i < args.names.size(); ++i) {
    bytes += args.names[i].size();
    const auto it = names_.find(std::make_pair(scope, args.names[i]));
    if (it != names_.end() && it->second.in_flight) {
      return Bad(args, i,
                 "an operation of this name is in flight on this rank already; wait for it, or "
                 "give this one another name");
    }
    found_.push_back(it == names_.end() ? nullptr : &it->second);
  }
  for (const PartArgs& part : args.parts) bytes += PartBytes(part);
  if (bytes > kSignatureBytesMax) {
    return Bad(args, 0, "the group's names and shapes take too much room; split the group");
  }
  return absl::OkStatus();
}

absl::Status Submissions::CheckDistinct(const OperationArgs& args) {
  std::unordered_set<absl::string_view, absl::Hash<absl::string_view>> in_group;
  for (size_t i = 0; i < args.names.size(); ++i) {
    if (in_group.insert(args.names[i]).second) continue;
    return Bad(args, i, "this name is twice in the group");
  }
  return absl::OkStatus();
}

absl::Status Submissions::Check(const OperationArgs& args) {
  if (!closed_.ok()) return DeepCopy(closed_);
  RUEDA_RETURN_IF_ERROR(CheckSet(args));
  if (args.kind == OpKind::kAddProcessSet) {
    RUEDA_RETURN_IF_ERROR(sets_.Check(args.ranks));
  } else if (args.kind == OpKind::kRemoveProcessSet) {
    const ProcessSet* set = sets_.Find(args.ranks);
    if (set == nullptr || states_[set->id].removing) {
      return absl::NotFoundError("there is no such process set to remove");
    }
  }
  RUEDA_RETURN_IF_ERROR(CheckNames(args));
  if (in_flight() >= kSubmissionsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", rank_, " has ", kSubmissionsMax, " operations in flight; wait for some of them"));
  }
  return absl::OkStatus();
}

CallExtras Submissions::ExtrasOf(const OperationArgs& args) const {
  CallExtras extras;
  extras.scaling = args.scaling;
  if (std::string fault = FaultOf(args, sets_, rank_); !fault.empty()) {
    extras.SayFault(std::move(fault));
    return extras;
  }
  if (args.kind == OpKind::kRemoveProcessSet) {
    extras.first_dims.push_back(states_[sets_.Find(args.ranks)->id].in_flight);
  } else if (!args.splits.empty()) {
    extras.first_dims.assign(args.splits.begin(), args.splits.end());
  } else if (TraitsOf(args.kind).ragged && (args.kind != OpKind::kScatter || args.root == rank_)) {
    for (const PartArgs& part : args.parts) extras.first_dims.push_back(part.shape.dim(0));
  }
  return extras;
}

Submissions::SetState& Submissions::Removed(absl::Span<const Rank> ranks) {
  return states_[sets_.Find(ranks)->id];
}

absl::StatusOr<Submitted> Submissions::Submit(const OperationArgs& args) {
  if (!args.scaling.finite()) return Bad(args, 0, "a scale factor is not finite");
  for (size_t i = 0; i < args.parts.size(); ++i) RUEDA_RETURN_IF_ERROR(CheckPart(args, i, rank_));
  if (args.parts.empty() && !args.compression.none()) {
    return Bad(args, 0,
               CheckCompressible(args.compression, args.kind, args.reduce_op, {}).message());
  }
  const Nanos now = MonotonicNow();

  MutexLock lock(mutex_);
  RUEDA_RETURN_IF_ERROR(Check(args));
  const absl::string_view entity = args.names.empty() ? absl::string_view() : args.names[0];
  const Scope scope = ScopeOf(args.kind, args.set, args.root, args.peer);
  const SubmittedName* const known = found_.empty() ? &NameOf(scope, entity) : found_[0];
  const bool again =
      known != nullptr && known->spec != nullptr && IsOf(args, known->spec->signature);
  if (!again) RUEDA_RETURN_IF_ERROR(CheckDistinct(args));
  RUEDA_ASSIGN_OR_RETURN(Request * request, table_->Acquire());
  // Nothing fails from here on.
  for (size_t i = 0; i < found_.size(); ++i) {
    if (found_[i] == nullptr) found_[i] = &NameOf(scope, args.names[i]);
    found_[i]->in_flight = true;
  }
  SubmittedName& name = found_.empty() ? NameOf(scope, entity) : *found_[0];
  if (!again) name.spec = MakeSpec(args.set, std::string(entity), SignatureOf(args));
  request->submitted_at = now;
  request->spec = name.spec;
  request->name = found_.size() == 1 ? &name : nullptr;
  request->parts.assign(args.parts.begin(), args.parts.end());
  request->extras = ExtrasOf(args);
  request->ready = args.ready;
  request->device = args.device_index;
  request->allocate = args.allocate;
  request->allocate_user = args.allocate_user;
  request->callback = args.callback;
  request->callback_user = args.callback_user;
  request->callback_inline = args.callback_inline;
  request->waited = args.waited;
  Submitted submitted;
  submitted.handle = request->handle();
  const bool was_empty = submitted_.empty();
  submitted.must_wake_engine = was_empty || (all_wait_soon_ && !args.wait_soon);
  all_wait_soon_ = args.wait_soon && (was_empty || all_wait_soon_);
  if (args.waited) {
    request->wait_marked.store(true, std::memory_order_relaxed);
    request->references.fetch_add(1, std::memory_order_relaxed);
    submitted.request = request;
  }
  submitted_.push_back(request);
  SetState& state = states_[args.set];
  ++state.in_flight;
  state.joined = args.kind == OpKind::kJoin;
  if (args.kind == OpKind::kRemoveProcessSet) {
    Removed(args.ranks).removing = request->extras.first_dims[0] == 0;
  }
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  has_work_.store(true, std::memory_order_release);
  return submitted;
}

void Submissions::MarkWaited(Request* request) {
  MutexLock lock(mutex_);
  request->references.fetch_add(1, std::memory_order_relaxed);
  waited_.push_back(request);
  has_work_.store(true, std::memory_order_release);
}

void Submissions::Take(std::vector<Request*>* submitted, std::vector<Request*>* waited) {
  MutexLock lock(mutex_);
  submitted->swap(submitted_);
  waited->swap(waited_);
  has_work_.store(false, std::memory_order_relaxed);
}

void Submissions::Forget(Scope scope, absl::string_view name) {
  const auto it = names_.find(std::make_pair(scope, name));
  if (it == names_.end()) return;
  it->second.in_flight = false;
  if (names_.size() > kNamesKept) names_.erase(it);
}

void Submissions::Ended(const Request& request) {
  const TensorSpec& spec = *request.spec;
  MutexLock lock(mutex_);
  SetState& state = states_[spec.set];
  --state.in_flight;
  if (spec.signature.kind == OpKind::kJoin) state.joined = false;
  if (spec.signature.kind == OpKind::kRemoveProcessSet && sets_.Find(spec.signature.ranks) &&
      request.extras.first_dims[0] == 0) {
    Removed(spec.signature.ranks).removing = false;  // it failed, and no other can be in flight
  }
  if (!request.names_freed) ForgetNames(request);
  in_flight_.fetch_sub(1, std::memory_order_release);
}

void Submissions::FreeNames(Request* request) {
  MutexLock lock(mutex_);
  ForgetNames(*request);
  request->names_freed = true;
}

void Submissions::ForgetNames(const Request& request) {
  const TensorSpec& spec = *request.spec;
  if (request.name != nullptr && names_.size() <= kNamesKept) {
    request.name->in_flight = false;
  } else if (!spec.unnamed()) {
    const Signature& signature = spec.signature;
    const Scope scope = ScopeOf(signature.kind, spec.set, signature.root, signature.peer);
    if (signature.is_group()) {
      for (const std::string& name : signature.part_names) Forget(scope, name);
    } else {
      Forget(scope, spec.name);
    }
  }
}

void Submissions::AddSet(absl::Span<const Rank> ranks) {
  MutexLock lock(mutex_);
  (void)sets_.Add(ranks);
  states_.resize(sets_.end());
}

void Submissions::RemoveSet(SetId set) {
  MutexLock lock(mutex_);
  sets_.Remove(set).IgnoreError();
  states_[set] = SetState();
}

void Submissions::Close(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = DeepCopy(status);
}

std::vector<Rank> Submissions::RanksOf(SetId set) const {
  MutexLock lock(mutex_);
  const ProcessSet* found = sets_.Find(set);
  return found == nullptr ? std::vector<Rank>() : found->ranks;
}

SetId Submissions::FindSet(absl::Span<const Rank> ranks) const {
  MutexLock lock(mutex_);
  const ProcessSet* found = sets_.Find(ranks);
  return found == nullptr ? -1 : found->id;
}

}  // namespace rueda
