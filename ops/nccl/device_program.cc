#include "ops/nccl/device_program.h"

#include <algorithm>
#include <numeric>

#include "ops/nccl/cuda_library.h"

namespace rueda {
namespace {

// What a member adds up begins at a multiple of so many elements: vector loads stay aligned.
constexpr int64_t kShareElements = 64;

}  // namespace

DeviceProgram::DeviceProgram(const Args& args)
    : args_(args),
      cuda_(*args.cuda),
      packed_(args.cuda, args.device),
      received_(args.cuda, args.device),
      scratch_(args.cuda, args.device),
      compression_(args.cuda, args.device, args.members, args.self) {}

void DeviceProgram::SetCommunicator(rueda_cuda_communicator* communicator) {
  communicator_ = communicator;
  for (DeviceBuffer* buffer : {&packed_, &received_, &scratch_}) {
    buffer->SetCommunicator(communicator);
  }
  compression_.SetCommunicator(communicator);
}

void DeviceProgram::ForgetCommunicator() {
  communicator_ = nullptr;
  for (DeviceBuffer* buffer : {&packed_, &received_, &scratch_}) buffer->ForgetCommunicator();
  compression_.ForgetCommunicator();
}

void DeviceProgram::ReleaseBuffers() {
  for (DeviceBuffer* buffer : {&packed_, &received_, &scratch_}) buffer->Release();
  compression_.ReleaseBuffers();
}

absl::Status DeviceProgram::Enqueue(const BucketOperation& operation) {
  operation_ = operation;
  element_bytes_ = DTypeSize(operation.dtype);
  Merge();
  switch (operation.kind) {
    case OpKind::kAllreduce:
    case OpKind::kReduce:
    case OpKind::kReducescatter:
      return Reduce();
    case OpKind::kAllgather:
      return Allgather();
    case OpKind::kBroadcast:
      return Broadcast();
    case OpKind::kBarrier:
      return Barrier();
    case OpKind::kGather:
    case OpKind::kScatter:
    case OpKind::kAlltoall:
      return Exchange();
    default:
      return absl::InternalError("no operation that moves data");
  }
}

absl::Status DeviceProgram::EnqueuePair(const BucketOperation& operation,
                                        rueda_cuda_communicator* pair, int other) {
  const Piece& piece = operation.pieces[0];
  const size_t bytes = static_cast<size_t>(operation.elements) * DTypeSize(operation.dtype);
  if (bytes == 0) return absl::OkStatus();
  if (operation.root == args_.self) {
    return CallCuda(cuda_.send, pair, stream_, piece.input, bytes, other);
  }
  return CallCuda(cuda_.receive, pair, stream_, piece.output, bytes, other);
}

// ---- ranges and copies ----

// Tensors that lie one behind the other, as gradients in one buffer do, need no packing. Only where
// nothing else is by piece.
void DeviceProgram::Merge() {
  pieces_.assign(operation_.pieces.begin(), operation_.pieces.end());
  const bool by_piece = operation_.kind != OpKind::kAllreduce &&
                        operation_.kind != OpKind::kReduce && operation_.kind != OpKind::kBroadcast;
  if (by_piece || pieces_.size() < 2) return;
  Piece merged = pieces_[0];
  for (size_t i = 1; i < pieces_.size(); ++i) {
    const auto follows = [&](const void* first, const void* next) {
      return first == nullptr ? next == nullptr
                              : static_cast<const char*>(first) + BytesOf(merged.elements) == next;
    };
    if (!follows(merged.input, pieces_[i].input) || !follows(merged.output, pieces_[i].output)) {
      return;
    }
    merged.elements += pieces_[i].elements;
  }
  pieces_.assign(1, merged);
}

void DeviceProgram::AddCopy(const void* from, void* to, int64_t elements) {
  if (elements > 0 && from != to) segments_.push_back({from, to, elements});
}

absl::Status DeviceProgram::Copy(double factor) {
  if (segments_.empty()) return absl::OkStatus();
  rueda_cuda_copy copy = {};
  copy.segments = segments_.data();
  copy.count = segments_.size();
  copy.dtype = static_cast<int32_t>(operation_.dtype);
  copy.reduce_op = static_cast<int32_t>(operation_.reduce_op);
  copy.factor = factor;
  const absl::Status status =
      CallCuda(cuda_.copy, args_.device, stream_, static_cast<const rueda_cuda_copy*>(&copy));
  segments_.clear();
  return status;
}

absl::StatusOr<char*> DeviceProgram::Input(double factor, DeviceBuffer* buffer) {
  const bool gives = Gives(args_.self);
  if (pieces_.size() == 1 && gives && factor == 1) {
    return static_cast<char*>(const_cast<void*>(pieces_[0].input));
  }
  RUEDA_ASSIGN_OR_RETURN(char* const memory,
                         buffer->Reserve(static_cast<int64_t>(BytesOf(operation_.elements))));
  char* to = memory;
  for (const Piece& piece : pieces_) {
    AddCopy(gives ? piece.input : nullptr, to, piece.elements);
    to += BytesOf(piece.elements);
  }
  RUEDA_RETURN_IF_ERROR(Copy(gives ? factor : 1));
  return memory;
}

absl::Status DeviceProgram::Unpack(const char* from) {
  for (const Piece& piece : pieces_) {
    if (piece.output != nullptr) AddCopy(from, piece.output, piece.elements);
    from += BytesOf(piece.elements);
  }
  return Copy();
}

// ---- NCCL's calls ----

template <typename Function, typename... Args_>
absl::Status DeviceProgram::Nccl(Function function, Args_... args) {
  return CallCuda(function, communicator_, stream_, args...);
}

// Groups begin with the first call in them: an empty one is none.
absl::Status DeviceProgram::BeginGroup() {
  if (grouped_) return absl::OkStatus();
  grouped_ = true;
  return CallCuda(cuda_.begin, communicator_);
}

absl::Status DeviceProgram::EndGroup() {
  if (!grouped_) return absl::OkStatus();
  grouped_ = false;
  return CallCuda(cuda_.end, communicator_);
}

absl::Status DeviceProgram::Send(const void* data, int64_t elements, int peer) {
  if (elements == 0) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(BeginGroup());
  return Nccl(cuda_.send, data, BytesOf(elements), peer);
}

absl::Status DeviceProgram::Receive(void* data, int64_t elements, int peer) {
  if (elements == 0) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(BeginGroup());
  return Nccl(cuda_.receive, data, BytesOf(elements), peer);
}

// ---- reductions ----

absl::Status DeviceProgram::Reduce() {
  if (operation_.elements == 0) return absl::OkStatus();
  if (!operation_.compression.none()) return compression_.Enqueue(operation_, stream_);
  const ReductionAlgorithm algorithm =
      AlgorithmOf(operation_, args_.members, args_.in_rank_order, [this](DType dtype, ReduceOp op) {
        return cuda_.supports(communicator_, static_cast<int32_t>(dtype),
                              static_cast<int32_t>(op)) != 0;
      });
  if (!algorithm.native) return ReduceInRankOrder();
  if (operation_.kind == OpKind::kReducescatter) return ReducescatterByNccl(algorithm);
  return ReduceByNccl(algorithm);
}

absl::Status DeviceProgram::ReduceByNccl(const ReductionAlgorithm& algorithm) {
  const bool allreduce = operation_.kind == OpKind::kAllreduce;
  const double packing_factor = algorithm.factor_by_nccl ? 1 : algorithm.factor;
  const double nccl_factor = algorithm.factor_by_nccl ? algorithm.factor : 1;
  RUEDA_ASSIGN_OR_RETURN(char* const input, Input(packing_factor, &packed_));
  const bool wanted = allreduce || operation_.root == args_.self;
  char* output = input;
  if (pieces_.size() == 1 && pieces_[0].output != nullptr) {
    output = static_cast<char*>(pieces_[0].output);
  } else if (pieces_.size() == 1 && wanted) {  // others' results go through this member
    RUEDA_ASSIGN_OR_RETURN(output,
                           packed_.Reserve(static_cast<int64_t>(BytesOf(operation_.elements))));
  }
  const auto dtype = static_cast<int32_t>(operation_.dtype);
  const auto op = static_cast<int32_t>(algorithm.reduce_op);
  const auto* const from = static_cast<const void*>(input);
  if (allreduce) {
    RUEDA_RETURN_IF_ERROR(Nccl(cuda_.allreduce, from, static_cast<void*>(output),
                               operation_.elements, dtype, op, nccl_factor));
  } else {
    RUEDA_RETURN_IF_ERROR(Nccl(cuda_.reduce_to, from, static_cast<void*>(output),
                               operation_.elements, dtype, op, nccl_factor, operation_.root));
  }
  return wanted ? Unpack(output) : absl::OkStatus();
}

absl::Status DeviceProgram::ReducescatterByNccl(const ReductionAlgorithm& algorithm) {
  const auto members = static_cast<size_t>(args_.members);
  RUEDA_ASSIGN_OR_RETURN(char* const unwanted, Unwanted());
  char* zeros = nullptr;  // who gives nothing gives these
  if (!Gives(args_.self)) {
    RUEDA_ASSIGN_OR_RETURN(zeros, Input(1, &packed_));
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const int64_t count = operation_.counts[i * members];
    if (count == 0) continue;
    void* output = pieces_[i].output;
    if (output == nullptr) output = unwanted;
    const void* const from = zeros != nullptr ? zeros : pieces_[i].input;
    RUEDA_RETURN_IF_ERROR(BeginGroup());
    RUEDA_RETURN_IF_ERROR(Nccl(cuda_.reducescatter, from, output, count,
                               static_cast<int32_t>(operation_.dtype),
                               static_cast<int32_t>(algorithm.reduce_op), algorithm.factor));
  }
  return EndGroup();
}

// How many elements each member adds up: a reducescatter's own, else equal parts.
void DeviceProgram::PlanShares() {
  const auto members = static_cast<size_t>(args_.members);
  shares_.assign(members, 0);
  begins_.assign(1, 0);
  int64_t left = operation_.elements;
  const int64_t blocks = (left + kShareElements - 1) / kShareElements;
  const int64_t equal = (blocks + args_.members - 1) / args_.members * kShareElements;
  for (size_t member = 0; member < members; ++member) {
    if (operation_.kind == OpKind::kReducescatter) {
      for (size_t i = 0; i < pieces_.size(); ++i) {
        shares_[member] += operation_.counts[i * members + member];
      }
    } else {
      shares_[member] = std::min(equal, left);
      left -= shares_[member];
    }
    begins_.push_back(begins_.back() + shares_[member]);
  }
}

// Everybody's range of what this member adds up comes to it, but for its own.
absl::Status DeviceProgram::ExchangeShares(char* input, char* received) {
  const int64_t own = shares_[static_cast<size_t>(args_.self)];
  for (int peer = 0; peer < args_.members; ++peer) {
    if (peer == args_.self) continue;
    const auto at = static_cast<size_t>(peer);
    if (Gives(args_.self)) {
      RUEDA_RETURN_IF_ERROR(Send(input + BytesOf(begins_[at]), shares_[at], peer));
    }
    if (!Gives(peer)) continue;
    RUEDA_RETURN_IF_ERROR(Receive(received, own, peer));
    received += BytesOf(own);
  }
  return EndGroup();
}

// And the sums go to whoever wants them.
absl::Status DeviceProgram::GatherShares(char* result) {
  const auto self = static_cast<size_t>(args_.self);
  for (int peer = 0; peer < args_.members; ++peer) {
    if (peer == args_.self) continue;
    const auto at = static_cast<size_t>(peer);
    if (operation_.WantsResult(peer)) {
      RUEDA_RETURN_IF_ERROR(Send(result + BytesOf(begins_[self]), shares_[self], peer));
    }
    if (operation_.WantsResult(args_.self)) {
      RUEDA_RETURN_IF_ERROR(Receive(result + BytesOf(begins_[at]), shares_[at], peer));
    }
  }
  return EndGroup();
}

absl::Status DeviceProgram::ReduceInRankOrder() {
  const auto self = static_cast<size_t>(args_.self);
  const bool scatters = operation_.kind == OpKind::kReducescatter;
  const bool whole = pieces_.size() == 1;
  PlanShares();
  // What each member gets of every piece, one after the other; of one piece it lies so already.
  char* input = nullptr;
  if (scatters && !whole && Gives(args_.self)) {
    RUEDA_ASSIGN_OR_RETURN(input,
                           packed_.Reserve(static_cast<int64_t>(BytesOf(operation_.elements))));
    std::vector<const char*> at;
    for (const Piece& piece : pieces_) at.push_back(static_cast<const char*>(piece.input));
    char* to = input;
    for (size_t member = 0; member < shares_.size(); ++member) {
      for (size_t i = 0; i < pieces_.size(); ++i) {
        const int64_t count = operation_.counts[i * shares_.size() + member];
        AddCopy(at[i], to, count);
        at[i] += BytesOf(count);
        to += BytesOf(count);
      }
    }
    RUEDA_RETURN_IF_ERROR(Copy());
  } else {
    RUEDA_ASSIGN_OR_RETURN(input, Input(1, &packed_));
  }

  const int64_t own = shares_[self];
  int live = 0;
  for (int member = 0; member < args_.members; ++member) live += Gives(member);
  RUEDA_ASSIGN_OR_RETURN(char* const received,
                         received_.Reserve(static_cast<int64_t>(BytesOf(own)) * live));
  RUEDA_RETURN_IF_ERROR(ExchangeShares(input, received));

  char* result =
      nullptr;  // of all, and this member's sums in their place; a reducescatter's: those
  if (whole && pieces_[0].output != nullptr) {
    result = static_cast<char*>(pieces_[0].output);
  } else {
    const int64_t elements = scatters ? own : operation_.elements;
    RUEDA_ASSIGN_OR_RETURN(result, scratch_.Reserve(static_cast<int64_t>(BytesOf(elements))));
  }
  char* const sums = scatters ? result : result + BytesOf(begins_[self]);
  if (own > 0 && live > 0) {
    std::vector<const void*> sources;
    const char* next = received;
    for (int member = 0; member < args_.members; ++member) {
      if (!Gives(member)) continue;
      if (member == args_.self) {
        sources.push_back(input + BytesOf(begins_[self]));
        continue;
      }
      sources.push_back(next);
      next += BytesOf(own);
    }
    rueda_cuda_reduce reduce = {};
    reduce.dtype = static_cast<int32_t>(operation_.dtype);
    reduce.reduce_op = static_cast<int32_t>(operation_.reduce_op);
    reduce.sources = sources.data();
    reduce.source_count = sources.size();
    reduce.destination = sums;
    reduce.count = own;
    reduce.prescale = operation_.scaling.prescale;
    reduce.postscale = operation_.scaling.postscale;
    reduce.divisor = operation_.scaling.divisor;
    RUEDA_RETURN_IF_ERROR(CallCuda(cuda_.reduce, args_.device, stream_,
                                   static_cast<const rueda_cuda_reduce*>(&reduce)));
  }
  if (!scatters) {
    RUEDA_RETURN_IF_ERROR(GatherShares(result));
    return operation_.WantsResult(args_.self) ? Unpack(result) : absl::OkStatus();
  }
  const char* from = sums;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const int64_t count = operation_.counts[i * shares_.size() + self];
    if (pieces_[i].output != nullptr) AddCopy(from, pieces_[i].output, count);
    from += BytesOf(count);
  }
  return Copy();
}

// ---- what hands data on ----

// Memory for what this member does not want, but must let through. Before a group begins, as NCCL
// may take part in it.
absl::StatusOr<char*> DeviceProgram::Unwanted() {
  if (!operation_.Gets(args_.self)) return nullptr;
  int64_t most = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].output != nullptr) continue;
    int64_t elements = pieces_[i].elements;
    if (!operation_.counts.empty()) {
      const size_t each = operation_.counts.size() / pieces_.size();
      const absl::Span<const int64_t> counts = operation_.counts.subspan(i * each, each);
      elements = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    }
    most = std::max(most, elements);
  }
  if (most == 0) return nullptr;
  return scratch_.Reserve(static_cast<int64_t>(BytesOf(most)));
}

absl::Status DeviceProgram::Allgather() {
  const auto members = static_cast<size_t>(args_.members);
  RUEDA_ASSIGN_OR_RETURN(char* const unwanted, Unwanted());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const absl::Span<const int64_t> counts = operation_.counts.subspan(i * members, members);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    if (total == 0) continue;
    char* output = static_cast<char*>(pieces_[i].output);
    if (output == nullptr) output = unwanted;
    if (communicator_ == nullptr) {
      AddCopy(pieces_[i].input, output, total);
      continue;
    }
    const bool equal =
        std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
    if (equal) {
      RUEDA_RETURN_IF_ERROR(BeginGroup());
      RUEDA_RETURN_IF_ERROR(
          Nccl(cuda_.allgather, pieces_[i].input, static_cast<void*>(output), BytesOf(counts[0])));
      continue;
    }
    for (size_t member = 0; member < members; ++member) {
      if (counts[member] == 0) continue;
      const bool own = member == static_cast<size_t>(args_.self);
      const void* const from = own ? pieces_[i].input : output;
      RUEDA_RETURN_IF_ERROR(BeginGroup());
      RUEDA_RETURN_IF_ERROR(Nccl(cuda_.broadcast, from, static_cast<void*>(output),
                                 BytesOf(counts[member]), static_cast<int32_t>(member)));
      output += BytesOf(counts[member]);
    }
  }
  RUEDA_RETURN_IF_ERROR(EndGroup());
  return Copy();
}

absl::Status DeviceProgram::Broadcast() {
  RUEDA_ASSIGN_OR_RETURN(char* const unwanted, Unwanted());
  for (const Piece& piece : pieces_) {
    if (piece.elements == 0) continue;
    const bool root = operation_.root == args_.self;
    void* output = piece.output;
    if (output == nullptr && root) output = const_cast<void*>(piece.input);
    if (communicator_ == nullptr) {
      AddCopy(piece.input, output, piece.elements);
      continue;
    }
    if (output == nullptr) output = unwanted;
    const void* const from = root ? piece.input : output;
    RUEDA_RETURN_IF_ERROR(BeginGroup());
    RUEDA_RETURN_IF_ERROR(
        Nccl(cuda_.broadcast, from, output, BytesOf(piece.elements), operation_.root));
  }
  RUEDA_RETURN_IF_ERROR(EndGroup());
  return Copy();
}

absl::Status DeviceProgram::Barrier() {
  if (communicator_ == nullptr) return absl::OkStatus();
  RUEDA_ASSIGN_OR_RETURN(char* const word, scratch_.Reserve(sizeof(int32_t)));
  return Nccl(cuda_.allreduce, static_cast<const void*>(word), static_cast<void*>(word), int64_t{1},
              static_cast<int32_t>(DType::kInt32), static_cast<int32_t>(ReduceOp::kMax), 1.0);
}

// Elements of a piece that one member gives another.
int64_t DeviceProgram::ShareOf(size_t piece, int giver, int taker) const {
  const auto members = static_cast<size_t>(args_.members);
  const auto from = static_cast<size_t>(giver), to = static_cast<size_t>(taker);
  switch (operation_.kind) {
    case OpKind::kGather:
      return taker == operation_.root ? operation_.counts[piece * members + from] : 0;
    case OpKind::kScatter:
      return giver == operation_.root ? operation_.counts[piece * members + to] : 0;
    default:
      return operation_.counts[(piece * members + from) * members + to];
  }
}

// Gather, scatter, alltoall.
absl::Status DeviceProgram::Exchange() {
  RUEDA_ASSIGN_OR_RETURN(char* const unwanted, Unwanted());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const char* from = static_cast<const char*>(pieces_[i].input);
    char* to = static_cast<char*>(pieces_[i].output);
    if (to == nullptr) to = unwanted;
    const char* own = nullptr;
    for (int peer = 0; peer < args_.members; ++peer) {
      const int64_t count = ShareOf(i, args_.self, peer);
      if (peer == args_.self) {
        own = from;
      } else {
        RUEDA_RETURN_IF_ERROR(Send(from, count, peer));
      }
      from += BytesOf(count);
    }
    for (int peer = 0; peer < args_.members; ++peer) {
      const int64_t count = ShareOf(i, peer, args_.self);
      if (peer == args_.self) {
        AddCopy(own, to, count);
      } else {
        RUEDA_RETURN_IF_ERROR(Receive(to, count, peer));
      }
      to += BytesOf(count);
    }
  }
  RUEDA_RETURN_IF_ERROR(EndGroup());
  return Copy();
}

}  // namespace rueda
