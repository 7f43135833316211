// PowerSGD (arXiv 1905.13727, algorithms 1 and 2): of each matrix the product of two thin ones,
// found by one power iteration that goes on from the last one's right factor. Both factors are
// added up as float32. Vectors, and matrices that would not become smaller, are added up as they
// are.
//
// What the product leaves out of a member's own matrix is kept for the next time.
#pragma once

#include "ops/compression/buffer.h"
#include "ops/compression/reduction.h"

namespace rueda {

class PowerSgd : public Reduction {
 public:
  using Reduction::Reduction;
  absl::Status Start(const ReductionArgs& args) override;
  absl::StatusOr<Progress> Advance() override;

 private:
  enum class Step { kLeft, kAddLeft, kOrthogonalise, kRight, kRest, kAddRight, kProduct };
  // What becomes of a operand. Factors lie column by column.
  struct Plan {
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t rank = 0;   // 0: it is added up as it is
    int64_t left = 0;   // where its left factor begins, or itself
    int64_t right = 0;  // its right factor
  };

  void Prepare(size_t i);
  void LeftRow(size_t i, int64_t row);
  void RightRow(size_t i, int64_t row);
  void ProductRow(size_t i, int64_t row);
  void RestRow(size_t i, int64_t row);
  void Orthogonalise(const Plan& plan, int64_t k);
  void Row(size_t i, int64_t row);
  bool NextRows();
  void Begin(Step step);

  std::vector<Plan> plans_;  // by operand
  int64_t left_elements_ = 0;
  int64_t right_elements_ = 0;
  Buffer<float> left_, right_;
  Step step_ = Step::kLeft;
  size_t operand_ = 0;  // where a step is
  int64_t row_ = 0;
};

}  // namespace rueda
