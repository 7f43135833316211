#include "controller/runtime/submissions.h"

#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

bool Overlap(const void* a, const void* b, size_t bytes) {
  const char* x = static_cast<const char*>(a);
  const char* y = static_cast<const char*>(b);
  return x != y && x < y + bytes && y < x + bytes;
}

absl::Status CheckPart(const OperationArgs& args, size_t i) {
  const PartArgs& part = args.parts[i];
  const size_t bytes = static_cast<size_t>(part.shape.elements()) * DTypeSize(part.dtype);
  if (bytes > 0 && part.input == nullptr) return Bad(args, i, "the input's data pointer is null");
  switch (args.kind) {
    case OpKind::kAllreduce:
      if (absl::Status status = kernels::CheckReducible(part.dtype, args.reduce_op); !status.ok()) {
        return Bad(args, i, status.message());
      }
      [[fallthrough]];
    case OpKind::kBroadcast:
      if (bytes > 0 && part.output == nullptr)
        return Bad(args, i, "the output's data pointer is null");
      if (bytes > 0 && Overlap(part.input, part.output, bytes)) {
        return Bad(args, i,
                   "input and output overlap in part; they must be the same memory or apart");
      }
      return absl::OkStatus();
    case OpKind::kAllgather:
      if (part.shape.rank() == 0) {
        return Bad(args, i, "a scalar can't be gathered; give it a first dimension of 1");
      }
      return absl::OkStatus();
    case OpKind::kBarrier:
    case OpKind::kAddProcessSet:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

Signature SignatureOf(const OperationArgs& args) {
  Signature signature;
  signature.kind = args.kind;
  signature.reduce_op = args.reduce_op;
  signature.root = args.root;
  for (const PartArgs& part : args.parts) {
    signature.parts.push_back(
        {part.dtype, args.kind == OpKind::kAllgather ? part.shape.Row() : part.shape});
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

Submissions::Submissions(Rank rank, int world_size) : rank_(rank), sets_(world_size) {}

size_t Submissions::NameHash::operator()(const std::pair<SetId, absl::string_view>& key) const {
  return absl::HashOf(key);
}

Submissions::Name& Submissions::NameOf(SetId set, absl::string_view name) {
  const auto it = names_.find(std::make_pair(set, name));
  if (it != names_.end()) return it->second;
  return names_[std::make_pair(set, std::string(name))];
}

absl::Status Submissions::Check(const OperationArgs& args) const {
  RUEDA_RETURN_IF_ERROR(closed_);
  const ProcessSet* set = sets_.Find(args.set);
  if (set == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("there is no process set ", args.set));
  }
  if (!set->Contains(rank_)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank_, " is not in process set ",
                                                   args.set, " {", absl::StrJoin(set->ranks, ", "),
                                                   "}"));
  }
  if (args.kind == OpKind::kBroadcast && !set->Contains(args.root)) {
    return Bad(args, 0,
               absl::StrCat("root ", args.root, " is not a rank of process set ", args.set, " {",
                            absl::StrJoin(set->ranks, ", "), "}"));
  }
  if (args.kind == OpKind::kAddProcessSet) {
    RUEDA_RETURN_IF_ERROR(sets_.Check(args.ranks));
  }
  size_t bytes = 0;
  absl::flat_hash_set<absl::string_view> in_group;
  for (size_t i = 0; i < args.names.size(); ++i) {
    bytes += args.names[i].size();
    if (args.names.size() > 1 && !in_group.insert(args.names[i]).second) {
      return Bad(args, i, "this name is twice in the group");
    }
    const auto it = names_.find(std::make_pair(args.set, args.names[i]));
    if (it != names_.end() && it->second.in_flight) {
      return Bad(args, i,
                 "an operation of this name is in flight on this rank already; wait for it, or "
                 "give this one another name");
    }
  }
  for (const PartArgs& part : args.parts) bytes += PartBytes(part);
  if (bytes > kSignatureBytesMax) {
    return Bad(args, 0, "the group's names and shapes take too much room; split the group");
  }
  if (in_flight() >= kSubmissionsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", rank_, " has ", kSubmissionsMax, " operations in flight; wait for some of them"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Submitted> Submissions::Submit(const OperationArgs& args) {
  if (!std::isfinite(args.prescale) || !std::isfinite(args.postscale)) {
    return Bad(args, 0, "a scale factor is not finite");
  }
  for (size_t i = 0; i < args.parts.size(); ++i) RUEDA_RETURN_IF_ERROR(CheckPart(args, i));
  Signature signature = SignatureOf(args);
  const Nanos now = MonotonicNow();

  MutexLock lock(mutex_);
  RUEDA_RETURN_IF_ERROR(Check(args));
  RUEDA_ASSIGN_OR_RETURN(Request * request, table_.Acquire());
  // Nothing fails from here on.
  const absl::string_view entity = args.names.empty() ? absl::string_view() : args.names[0];
  Name& name = NameOf(args.set, entity);
  if (name.spec == nullptr || name.spec->signature != signature) {
    name.spec = MakeSpec(args.set, std::string(entity), std::move(signature));
  }
  request->submitted_at = now;
  request->spec = name.spec;
  for (const absl::string_view each : args.names) NameOf(args.set, each).in_flight = true;
  request->parts.assign(args.parts.begin(), args.parts.end());
  request->extras.prescale = args.prescale;
  request->extras.postscale = args.postscale;
  if (args.kind == OpKind::kAllgather) {
    for (const PartArgs& part : args.parts) request->extras.first_dims.push_back(part.shape.dim(0));
  }
  request->allocate = args.allocate;
  request->allocate_user = args.allocate_user;
  request->callback = args.callback;
  request->callback_user = args.callback_user;
  request->callback_inline = args.callback_inline;
  request->waited = args.waited;
  Submitted submitted;
  submitted.handle = request->handle();
  submitted.was_empty = submitted_.empty() && waited_.empty();
  if (args.waited) {
    request->wait_marked.store(true, std::memory_order_relaxed);
    request->references.fetch_add(1, std::memory_order_relaxed);
    submitted.request = request;
  }
  submitted_.push_back(request);
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  has_work_.store(true, std::memory_order_release);
  return submitted;
}

void Submissions::MarkWaited(Request* request, bool* was_empty) {
  MutexLock lock(mutex_);
  *was_empty = submitted_.empty() && waited_.empty();
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

void Submissions::Forget(SetId set, absl::string_view name) {
  const auto it = names_.find(std::make_pair(set, name));
  if (it == names_.end()) return;
  it->second.in_flight = false;
  if (names_.size() > kNamesKept) names_.erase(it);
}

void Submissions::Ended(const Request& request) {
  const TensorSpec& spec = *request.spec;
  MutexLock lock(mutex_);
  if (!spec.unnamed()) {
    if (spec.signature.is_group()) {
      for (const std::string& name : spec.signature.part_names) Forget(spec.set, name);
    } else {
      Forget(spec.set, spec.name);
    }
  }
  in_flight_.fetch_sub(1, std::memory_order_release);
}

void Submissions::AddSet(absl::Span<const Rank> ranks) {
  MutexLock lock(mutex_);
  (void)sets_.Add(ranks);
}

void Submissions::Close(absl::Status status) {
  MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = std::move(status);
}

std::vector<Rank> Submissions::RanksOf(SetId set) const {
  MutexLock lock(mutex_);
  const ProcessSet* found = sets_.Find(set);
  return found == nullptr ? std::vector<Rank>() : found->ranks;
}

}  // namespace rueda
