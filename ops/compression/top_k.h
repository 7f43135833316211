// Adding up only the elements of largest magnitude, a share of each chunk of a tensor (Deep
// Gradient Compression, arXiv 1712.01887; memory-SGD, arXiv 1809.07599): all members get
// everybody's chosen elements with their places. What is not chosen is kept for the next time.
#pragma once

#include "ops/compression/buffer.h"
#include "ops/compression/reduction.h"

namespace rueda {

// Of a chunk, how many are chosen.
int64_t ChosenOf(uint32_t share_per_million, int64_t elements);
// Elements among which the largest are found.
inline constexpr int64_t kTopKChunk = 32 << 10;

class TopK : public Reduction {
 public:
  using Reduction::Reduction;
  absl::Status Start(const ReductionArgs& args) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  struct Entry {
    uint32_t place;  // in its chunk
    float value;
  };
  enum class Step { kChoose, kExchange, kAdd };

  void Choose(const Operand& operand, int64_t begin, int64_t count, Entry* entries);
  absl::Status Add(const Operand& operand, int64_t begin, int64_t count, int64_t entry);
  absl::StatusOr<bool> NextChunk();

  int64_t entries_ = 0;  // of a member
  int live_ = 0;
  std::vector<int64_t> counts_;
  std::vector<uint32_t> places_;
  Buffer<Entry> chosen_;
  Buffer<Entry> received_;

  Step step_ = Step::kChoose;
  size_t operand_ = 0;  // where a step is
  int64_t begin_ = 0;
  int64_t entry_ = 0;
};

}  // namespace rueda
