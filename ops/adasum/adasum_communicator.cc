#include "ops/adasum/adasum_communicator.h"

#include <algorithm>
#include <new>

#include "ops/adasum/factors.h"
#include "ops/kernels/adasum.h"

namespace rueda {
namespace {

// What one Advance multiplies or combines: some 100 us of work.
constexpr int64_t kElementsAtOnce = 64 << 10;

size_t Triangle(size_t members) {
  return members * (members + 1) / 2;
}

}  // namespace

void AdasumCommunicator::Start(const BucketOperation& operation) {
  step_ = Step::kNone;
  operation_.reduce_op = operation.reduce_op;
  if (operation.reduce_op != ReduceOp::kAdasum) {
    inner().Start(operation);
    return;
  }
  operation_ = operation;
  if (members_ == 1 || operation.elements == 0) {  // of one vector, the vector itself
    operation_.reduce_op = ReduceOp::kSum;
    inner().Start(operation_);
    return;
  }
  element_bytes_ = DTypeSize(operation.dtype);
  pieces_.Reset(operation.pieces, element_bytes_);
  live_.clear();
  for (int member = 0; member < members_; ++member) {
    if (!operation.IsAbsent(member)) live_.push_back(member);
  }
  out_of_memory_ = !Allocate();
  if (out_of_memory_) return;
  int64_t begin = 0;
  parts_.clear();
  for (size_t i = 0; i < operation.pieces.size(); ++i) {
    const int64_t end = begin + operation.pieces[i].elements;
    const Part part = {i, std::max(begin, SliceBegin(self_)), std::min(end, SliceBegin(self_ + 1))};
    if (part.begin < part.end) parts_.push_back(part);
    begin = end;
  }
  products_.assign(operation.pieces.size() * Triangle(live_.size()), 0);
  StartSlices();
}

// Where a member's slice begins: equal parts, the lowest members one element more.
int64_t AdasumCommunicator::SliceBegin(int member) const {
  return operation_.elements / members_ * member +
         std::min<int64_t>(member, operation_.elements % members_);
}

bool AdasumCommunicator::Allocate() {
  const size_t slice = static_cast<size_t>(SliceElements(self_)) * element_bytes_;
  received_.reset(new (std::nothrow) char[std::max<size_t>(slice * live_.size(), 1)]);
  packed_.reset();
  if (!pieces_.single()) {
    const size_t bytes = static_cast<size_t>(operation_.elements) * element_bytes_;
    packed_.reset(new (std::nothrow) char[bytes]);
    if (packed_ == nullptr) return false;
  }
  return received_ != nullptr;
}

// Each member's slice of everybody's bucket goes to it.
void AdasumCommunicator::StartSlices() {
  const bool absent = operation_.IsAbsent(self_);
  if (packed_ != nullptr && !absent) pieces_.Pack(0, operation_.elements, packed_.get());
  counts_.clear();
  for (int giver = 0; giver < members_; ++giver) {
    for (int taker = 0; taker < members_; ++taker) {
      counts_.push_back(operation_.IsAbsent(giver) ? 0 : SliceElements(taker));
    }
  }
  piece_.input = packed_ != nullptr ? packed_.get() : operation_.pieces[0].input;
  piece_.output = received_.get();
  piece_.elements = absent ? 0 : operation_.elements;
  part_ = BucketOperation();
  part_.kind = OpKind::kAlltoall;
  part_.dtype = operation_.dtype;
  part_.pieces = {&piece_, 1};
  part_.counts = counts_;
  part_.elements = operation_.elements;
  part_.digest = operation_.digest;
  part_.sequence = operation_.sequence;
  inner().Start(part_);
  step_ = Step::kSlices;
}

// Goes on with the dot products of this member's slice, or with its combination. Returns whether it
// is done.
bool AdasumCommunicator::WorkOn(bool multiply) {
  if (part_at_ == parts_.size()) return true;
  const Part& part = parts_[part_at_];
  const int64_t begin = part.begin + done_;
  const int64_t count = std::min(kElementsAtOnce, part.end - begin);
  const size_t slice_bytes = static_cast<size_t>(SliceElements(self_)) * element_bytes_;
  char* const at =
      received_.get() + static_cast<size_t>(begin - SliceBegin(self_)) * element_bytes_;
  std::vector<const void*> sources;
  for (size_t i = 0; i < live_.size(); ++i) sources.push_back(at + i * slice_bytes);
  if (multiply) {
    kernels::AddProducts(operation_.dtype, sources, count,
                         products_.data() + part.piece * Triangle(live_.size()));
  } else {
    const absl::Span<const double> factors =
        absl::MakeConstSpan(factors_).subspan(part.piece * live_.size(), live_.size());
    kernels::Combine(operation_.dtype, sources, factors, at, count);
  }
  done_ += count;
  if (begin + count == part.end) {
    ++part_at_;
    done_ = 0;
  }
  return part_at_ == parts_.size();
}

// Adds up the members' parts of the dot products.
void AdasumCommunicator::StartProducts() {
  piece_.input = piece_.output = products_.data();
  piece_.elements = static_cast<int64_t>(products_.size());
  part_.kind = OpKind::kAllreduce;
  part_.dtype = DType::kFloat64;
  part_.reduce_op = ReduceOp::kSum;
  part_.counts = {};
  part_.elements = piece_.elements;
  inner().Start(part_);
  step_ = Step::kProducts;
}

void AdasumCommunicator::SetFactors() {
  const size_t triangle = Triangle(live_.size());
  factors_.clear();
  for (size_t piece = 0; piece < operation_.pieces.size(); ++piece) {
    for (const double factor :
         AdasumFactors(absl::MakeConstSpan(products_).subspan(piece * triangle, triangle),
                       static_cast<int>(live_.size()))) {
      // It is linear in a factor of all its inputs.
      factors_.push_back(factor * operation_.scaling.prescale * operation_.scaling.postscale);
    }
  }
}

void AdasumCommunicator::StartGather() {
  const bool absent = operation_.IsAbsent(self_);
  counts_.clear();
  for (int member = 0; member < members_; ++member) counts_.push_back(SliceElements(member));
  piece_.input = received_.get();
  piece_.elements = SliceElements(self_);
  piece_.output = packed_ != nullptr ? packed_.get() : operation_.pieces[0].output;
  if (absent) piece_.output = nullptr;
  part_.kind = OpKind::kAllgather;
  part_.dtype = operation_.dtype;
  part_.reduce_op = ReduceOp::kNone;
  part_.counts = counts_;
  part_.elements = operation_.elements;
  inner().Start(part_);
  step_ = Step::kGather;
}

absl::StatusOr<Progress> AdasumCommunicator::Advance() {
  if (step_ == Step::kNone) {
    if (out_of_memory_) {
      out_of_memory_ = false;
      return absl::ResourceExhaustedError("no memory for the slices of an adasum");
    }
    return inner().Advance();
  }
  if (step_ == Step::kMultiply) {
    if (WorkOn(true)) StartProducts();
    return Progress::kMoved;
  }
  if (step_ == Step::kCombine) {
    if (WorkOn(false)) StartGather();
    return Progress::kMoved;
  }
  RUEDA_ASSIGN_OR_RETURN(const Progress progress, inner().Advance());
  if (progress != Progress::kDone) return progress;
  part_at_ = 0;
  done_ = 0;
  switch (step_) {
    case Step::kSlices:
      step_ = Step::kMultiply;
      return Progress::kMoved;
    case Step::kProducts:
      SetFactors();
      step_ = Step::kCombine;
      return Progress::kMoved;
    default:  // gathered
      if (packed_ != nullptr && !operation_.IsAbsent(self_)) {
        pieces_.Unpack(0, operation_.elements, packed_.get());
      }
      packed_.reset();
      received_.reset();
      return Progress::kDone;
  }
}

}  // namespace rueda
