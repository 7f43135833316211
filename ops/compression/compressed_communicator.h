// Compressed reductions on top of any communicator. Other operations go straight through.
//
// Tensors are brought as float32. On several hosts a host's ranks first add them up as they are,
// over shared memory, a stripe each; then each stripe is compressed and added up between the hosts
// (or, on one host, everything between all ranks); at last the stripes are gathered.
//
// A result has the same bits on all members, and does not depend on what its tensor shares a bucket
// with.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/backend/backend.h"
#include "ops/backend/decorator.h"
#include "ops/compression/buffer.h"
#include "ops/compression/reduction.h"

namespace rueda {

class CompressedCommunicator : public Decorator, public SilenceProbe {
 public:
  // For member `self` of `members`. `connect`: the levels of a group on several hosts, when they
  // are needed first; null: it has none.
  CompressedCommunicator(std::unique_ptr<Communicator> inner, int members, int self,
                         std::function<absl::StatusOr<Levels>()> connect)
      : Decorator(std::move(inner)), members_(members), self_(self), connect_(std::move(connect)) {}

  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;
  SilenceProbe* silence_probe() override { return this; }
  std::optional<Silence> SilentMember() override;
  void Abort() override;
  PhaseTimes phase_times() const override {
    return step_ == Step::kInner ? inner().phase_times() : PhaseTimes();
  }

 private:
  enum class Step { kInner, kAgree, kLoad, kReduceInside, kReduce, kGatherInside, kStore };
  // A piece, or a stripe's range of one.
  struct Part {
    size_t piece;
    int64_t begin;
    int64_t elements;
    float* values;
  };

  absl::Status Begin();
  absl::Status Connect();
  void StartAgreement();
  void Agree();
  void StartInner();
  absl::Status PlanParts();
  void AddPart(size_t piece, int64_t begin, int64_t elements, int64_t* offset);
  bool ForSomeParts(bool load);
  void Load(const Part& part, int64_t begin, int64_t count);
  void Store(const Part& part, int64_t begin, int64_t count);
  void StartInside(OpKind kind);
  absl::Status StartReduction();
  absl::StatusOr<Progress> AdvanceStep();
  absl::Status AfterStep();
  Progress Done();
  bool two_levels() const { return levels_.inside != nullptr; }
  int stripes() const { return two_levels() ? levels_.stripes : 1; }

  SilenceProbe* const inner_probe_ = inner().silence_probe();
  const int members_;
  const int self_;
  std::function<absl::StatusOr<Levels>()> connect_;  // null: no more needed
  Levels levels_;
  SilenceProbe* across_probe_ = nullptr;
  std::unique_ptr<Reduction> reductions_[3];  // scatter-reduce, topk, powersgd; made when needed

  Step step_ = Step::kInner;
  absl::Status status_;  // of the start
  BucketOperation operation_;
  Nanos started_at_ = 0;
  std::vector<Part> parts_;            // by stripe
  std::vector<size_t> first_part_;     // by stripe; and how many there are
  std::vector<int64_t> stripe_begin_;  // by stripe, in values_; and the end
  std::vector<Operand> operands_;      // of this rank's stripe
  std::vector<int> absent_hosts_;
  std::vector<int64_t> counts_;
  std::vector<int64_t> shares_;  // by operand, then by member
  std::vector<double> times_;
  Piece piece_;
  Buffer<float> values_;
  Buffer<float> stripe_;
  size_t part_ = 0;  // where loading or storing is
  int64_t done_ = 0;
  Reduction* reduction_ = nullptr;
};

}  // namespace rueda
