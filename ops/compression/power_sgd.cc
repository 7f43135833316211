#include "ops/compression/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "ops/kernels/quantize.h"

namespace rueda {
namespace {

bool IsFinite(float value) {
  return value - value == 0;
}

// Numbers that all members make alike.
void FillRandom(uint64_t seed, float* values, int64_t count) {
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<int64_t>(random() >> 40) - (1 << 23)) / (1 << 23);
  }
}

double Squares(const float* values, int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += double{values[i]} * values[i];
  return squares;
}

}  // namespace

absl::Status PowerSgd::Start(const ReductionArgs& args) {
  args_ = args;
  plans_.clear();
  left_elements_ = right_elements_ = 0;
  for (const Operand& operand : args.operands) {
    Plan plan;
    plan.rows = std::max<int64_t>(operand.rows, 1);
    plan.columns = operand.elements / plan.rows;
    plan.rank =
        std::min({static_cast<int64_t>(args.compression.parameter), plan.rows, plan.columns});
    if ((plan.rows + plan.columns) * plan.rank >= operand.elements) {
      plan.rank = 0;
      plan.columns = operand.elements;  // one row: it is copied at once
      plan.rows = 1;
    }
    plan.left = left_elements_;
    plan.right = right_elements_;
    left_elements_ += plan.rank == 0 ? operand.elements : plan.rows * plan.rank;
    right_elements_ += plan.columns * plan.rank;
    plans_.push_back(plan);
  }
  RUEDA_RETURN_IF_ERROR(left_.Reserve(left_elements_));
  RUEDA_RETURN_IF_ERROR(right_.Reserve(right_elements_));
  Begin(Step::kLeft);
  return absl::OkStatus();
}

void PowerSgd::Begin(Step step) {
  step_ = step;
  operand_ = 0;
  row_ = 0;
}

// The right factor to begin with. A column that has come to nothing would stay so.
void PowerSgd::Prepare(size_t i) {
  const Operand& operand = args_.operands[i];
  const Plan& plan = plans_[i];
  const auto count = static_cast<size_t>(plan.columns * plan.rank);
  float* const right = right_.data() + plan.right;
  std::vector<float>* const last = operand.state == nullptr ? nullptr : &operand.state->factor;
  const bool warm = last != nullptr && last->size() == count;
  for (int64_t k = 0; k < plan.rank; ++k) {
    float* const column = right + k * plan.columns;
    if (warm) {
      std::copy_n(last->data() + k * plan.columns, plan.columns, column);
      const kernels::Extremes extremes = kernels::ExtremesOf(column, plan.columns);
      const bool is_finite = IsFinite(extremes.least) && IsFinite(extremes.largest);
      if (is_finite && (extremes.least != 0 || extremes.largest != 0)) continue;
    }
    FillRandom(operand.identity + static_cast<uint64_t>(k), column, plan.columns);
  }
}

void PowerSgd::LeftRow(size_t i, int64_t row) {
  const Operand& operand = args_.operands[i];
  const Plan& plan = plans_[i];
  float* const left = left_.data() + plan.left;
  float* const values = operand.values + row * plan.columns;
  if (plan.rank == 0) {
    std::copy_n(values, plan.columns, left);
    return;
  }
  if (row == 0) Prepare(i);
  if (args_.Remembers(operand)) {
    const float* const residual = operand.state->sent.Of(operand.begin, operand.elements);
    if (!args_.IsAbsent(self_)) {
      kernels::AddScaled(1, residual + row * plan.columns, values, plan.columns);
    }
  }
  for (int64_t k = 0; k < plan.rank; ++k) {
    left[k * plan.rows + row] =
        kernels::Dot(values, right_.data() + plan.right + k * plan.columns, plan.columns);
  }
}

// Modified Gram-Schmidt, in float64 and one after another: the same bits on all members. Twice is
// enough (Giraud, Langou, Rozloznik 2005). What is left of a column that the earlier ones have
// nearly whole is rounding, in any direction: made a unit vector, it would add to the result what
// is there already.
void PowerSgd::Orthogonalise(const Plan& plan, int64_t k) {
  constexpr double kRounding = 1e-10;  // of a column's square, in float32
  float* const left = left_.data() + plan.left;
  float* const column = left + k * plan.rows;
  const double before = Squares(column, plan.rows);
  for (int time = 0; time < 2; ++time) {
    for (int64_t earlier = 0; earlier < k; ++earlier) {
      const float* const other = left + earlier * plan.rows;
      double dot = 0;
      for (int64_t i = 0; i < plan.rows; ++i) dot += double{column[i]} * other[i];
      for (int64_t i = 0; i < plan.rows; ++i) {
        column[i] = static_cast<float>(column[i] - dot * other[i]);
      }
    }
  }
  const double squares = Squares(column, plan.rows);
  const double inverse = squares <= kRounding * before ? 0 : 1 / std::sqrt(squares);
  for (int64_t i = 0; i < plan.rows; ++i) {
    column[i] = static_cast<float>(column[i] * inverse);
  }
}

void PowerSgd::RightRow(size_t i, int64_t row) {
  const Plan& plan = plans_[i];
  float* const right = right_.data() + plan.right;
  if (row == 0) std::fill_n(right, plan.columns * plan.rank, 0.0f);
  const float* const values = args_.operands[i].values + row * plan.columns;
  for (int64_t k = 0; k < plan.rank; ++k) {
    kernels::AddScaled(left_.data()[plan.left + k * plan.rows + row], values,
                       right + k * plan.columns, plan.columns);
  }
}

// Before the right factors are added up: what is missing of this member's matrix.
void PowerSgd::RestRow(size_t i, int64_t row) {
  const Operand& operand = args_.operands[i];
  const Plan& plan = plans_[i];
  if (!args_.Remembers(operand) || args_.IsAbsent(self_)) return;
  float* const residual =
      operand.state->sent.Of(operand.begin, operand.elements) + row * plan.columns;
  std::copy_n(operand.values + row * plan.columns, plan.columns, residual);
  for (int64_t k = 0; k < plan.rank; ++k) {
    kernels::AddScaled(-left_.data()[plan.left + k * plan.rows + row],
                       right_.data() + plan.right + k * plan.columns, residual, plan.columns);
  }
  for (int64_t j = 0; j < plan.columns; ++j) {
    residual[j] = IsFinite(residual[j]) ? residual[j] : 0;
  }
}

void PowerSgd::ProductRow(size_t i, int64_t row) {
  const Operand& operand = args_.operands[i];
  const Plan& plan = plans_[i];
  float* const values = operand.values + row * plan.columns;
  if (plan.rank == 0) {
    std::copy_n(left_.data() + plan.left, plan.columns, values);
  } else {
    std::fill_n(values, plan.columns, 0.0f);
    for (int64_t k = 0; k < plan.rank; ++k) {
      kernels::AddScaled(left_.data()[plan.left + k * plan.rows + row],
                         right_.data() + plan.right + k * plan.columns, values, plan.columns);
    }
  }
  for (int64_t j = 0; j < plan.columns; ++j) values[j] = args_.Scaled(values[j]);
  if (row == 0 && plan.rank > 0 && operand.state != nullptr) {
    const float* const right = right_.data() + plan.right;
    operand.state->factor.assign(right, right + plan.columns * plan.rank);
  }
}

// Does the step for some more rows, or columns of a left factor; returns whether those were all.
bool PowerSgd::NextRows() {
  for (int64_t left = kElementsAtOnce; left > 0 && operand_ < plans_.size();) {
    const Plan& plan = plans_[operand_];
    const bool by_columns = step_ == Step::kOrthogonalise;
    const bool as_it_is = plan.rank == 0 && step_ != Step::kLeft && step_ != Step::kProduct;
    const int64_t end = as_it_is ? 0 : by_columns ? plan.rank : plan.rows;
    if (row_ == end) {
      ++operand_;
      row_ = 0;
      continue;
    }
    left -=
        by_columns ? plan.rows * (2 * row_ + 1) : plan.columns * std::max<int64_t>(plan.rank, 1);
    Row(operand_, row_++);
  }
  return operand_ == plans_.size();
}

void PowerSgd::Row(size_t i, int64_t row) {
  switch (step_) {
    case Step::kLeft:
      return LeftRow(i, row);
    case Step::kOrthogonalise:
      return Orthogonalise(plans_[i], row);
    case Step::kRight:
      return RightRow(i, row);
    case Step::kRest:
      return RestRow(i, row);
    default:
      return ProductRow(i, row);
  }
}

absl::StatusOr<Progress> PowerSgd::Advance() {
  if (step_ == Step::kAddLeft || step_ == Step::kAddRight) {
    RUEDA_ASSIGN_OR_RETURN(const Progress progress, communicator_.Advance());
    if (progress != Progress::kDone) return progress;
    // Without any matrix the sums are there.
    Begin(step_ == Step::kAddLeft && right_elements_ > 0 ? Step::kOrthogonalise : Step::kProduct);
    return Progress::kMoved;
  }
  if (!NextRows()) return Progress::kMoved;
  if (step_ == Step::kProduct) return Progress::kDone;
  if (step_ == Step::kOrthogonalise || step_ == Step::kRight) {
    Begin(step_ == Step::kRight ? Step::kRest : Step::kRight);
    return Progress::kMoved;
  }
  // Who is absent brings zeros.
  const bool first = step_ == Step::kLeft;
  float* const factors = first ? left_.data() : right_.data();
  step_ = first ? Step::kAddLeft : Step::kAddRight;
  StartExchange(OpKind::kAllreduce, DType::kFloat32,
                {factors, factors, first ? left_elements_ : right_elements_}, {});
  return Progress::kMoved;
}

}  // namespace rueda
