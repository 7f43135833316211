// Adasum (arXiv 2006.02924) on top of any communicator: each member gets its slice of everybody's
// tensors, adds up its part of their dot products, and the sums of those tell every member with
// what factors the tensors are combined; it does so with its slice, and the slices are gathered.
//
// By tensor, not by bucket: each piece has its own dot products. Other operations go straight
// through.
#pragma once

#include <memory>
#include <vector>

#include "ops/backend/decorator.h"
#include "ops/backend/pieces.h"

namespace rueda {

class AdasumCommunicator : public Decorator {
 public:
  // For member `self` of `members`.
  AdasumCommunicator(std::unique_ptr<Communicator> inner, int members, int self)
      : Decorator(std::move(inner)), members_(members), self_(self) {}

  void Start(const BucketOperation& operation) override;
  absl::StatusOr<Progress> Advance() override;
  PhaseTimes phase_times() const override {
    return operation_.reduce_op == ReduceOp::kAdasum ? PhaseTimes() : inner().phase_times();
  }

 private:
  enum class Step { kNone, kSlices, kMultiply, kProducts, kCombine, kGather };
  // What a piece has in this member's slice, in elements of the bucket.
  struct Part {
    size_t piece;
    int64_t begin;
    int64_t end;
  };

  bool Allocate();
  void StartSlices();
  void StartProducts();
  void StartGather();
  bool WorkOn(bool multiply);
  void SetFactors();
  int64_t SliceBegin(int member) const;
  int64_t SliceElements(int member) const { return SliceBegin(member + 1) - SliceBegin(member); }

  const int members_;
  const int self_;

  Step step_ = Step::kNone;
  BucketOperation operation_;  // the caller's
  BucketOperation part_;       // the inner one's
  Pieces pieces_;
  size_t element_bytes_ = 1;
  std::vector<int> live_;  // members that take part
  bool out_of_memory_ = false;
  std::unique_ptr<char[]> packed_;    // the bucket, if it has several pieces: inputs, then results
  std::unique_ptr<char[]> received_;  // this member's slice of everybody's, one after another
  std::vector<Part> parts_;
  size_t part_at_ = 0;  // where WorkOn is
  int64_t done_ = 0;
  std::vector<double> products_;  // by piece, then as AddProducts has them
  std::vector<double> factors_;   // by piece, then by live member
  std::vector<int64_t> counts_;
  Piece piece_;
};

}  // namespace rueda
