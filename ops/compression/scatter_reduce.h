// Adding up in the quantised domain (Bagua's ScatterReduce, arXiv 2107.01499; 1-bit Adam's, arXiv
// 2102.02888), for the compressors that have a codec: each member gets its share of everybody's
// tensors, encoded; it decodes and adds them up, and sends the encoded sum to everybody.
//
// What encoding leaves out, of the tensors and of the sums, is kept by tensor and added the next
// time. How a tensor is cut does not depend on what it shares a bucket with, nor does its result.
#pragma once

#include "ops/compression/buffer.h"
#include "ops/compression/coded_ranges.h"
#include "ops/compression/reduction.h"

namespace rueda {

class ScatterReduce : public Reduction {
 public:
  using Reduction::Reduction;
  absl::Status Start(const ReductionArgs& args) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  enum class Step { kEncode, kExchange, kCombine, kGather, kDecode };
  using Range = CodedRange;

  template <typename Fn>
  bool ForSome(size_t end, Fn fn);
  void Begin(Step step, size_t range, char* coded);
  void EncodeSome(const Range& range, int64_t begin, int64_t count);
  void CombineSome(const Range& range, int64_t begin, int64_t count);
  void StartScatter();
  void StartGather();

  Compressor compressor_ = Compressor::kNone;
  std::vector<CodedRanges::Size> sizes_;  // by operand
  CodedRanges ranges_;
  std::vector<int64_t> counts_;
  int live_ = 0;

  Buffer<char> coded_;     // everybody's ranges: what this member brings, then the results
  Buffer<char> received_;  // this member's range of everybody's
  Buffer<char> sum_;       // its sums, encoded
  Buffer<float> work_;

  Step step_ = Step::kEncode;
  size_t range_ = 0;  // where a step is: a range, how far in it, and where that is when encoded
  int64_t done_ = 0;
  char* at_ = nullptr;
};

}  // namespace rueda
