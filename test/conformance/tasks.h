// Operations as all ranks know them, what each must give, and one of them in flight on one rank:
// what the tests with many kinds at once are made of. Values are small integers, so that every
// result is exact.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "test/support/bfloat16.h"
#include "test/support/float16.h"
#include "test/support/tensors.h"

namespace rueda::testing {

enum class Type {
  kBool,
  kInt8,
  kUInt8,
  kUInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kCount
};

inline rueda_dtype DTypeOf(Type type) {
  const rueda_dtype kDTypes[] = {RUEDA_BOOL,    RUEDA_INT8,    RUEDA_UINT8,    RUEDA_UINT16,
                                 RUEDA_INT32,   RUEDA_INT64,   RUEDA_FLOAT16,  RUEDA_BFLOAT16,
                                 RUEDA_FLOAT32, RUEDA_FLOAT64, RUEDA_COMPLEX64};
  return kDTypes[static_cast<int>(type)];
}

inline bool IsInteger(Type type) {
  return type >= Type::kInt8 && type <= Type::kInt64;
}

// What may be reduced with what, and exactly so.
inline std::vector<rueda_reduce_op> OpsOf(Type type) {
  if (type == Type::kBool) {
    return {RUEDA_SUM, RUEDA_MIN, RUEDA_MAX, RUEDA_PRODUCT, RUEDA_BAND, RUEDA_BOR, RUEDA_BXOR};
  }
  std::vector<rueda_reduce_op> ops = {RUEDA_SUM, RUEDA_PRODUCT, RUEDA_AVERAGE, RUEDA_AVERAGE_LIVE};
  if (type != Type::kComplex64) ops.insert(ops.end(), {RUEDA_MIN, RUEDA_MAX});
  if (IsInteger(type)) ops.insert(ops.end(), {RUEDA_BAND, RUEDA_BOR, RUEDA_BXOR});
  return ops;
}

// One operation as all ranks know it.
struct Task {
  rueda_kind kind = RUEDA_ALLREDUCE;
  std::string name;  // empty: unnamed
  int32_t set = RUEDA_WORLD;
  std::vector<int> members;
  rueda_reduce_op op = RUEDA_SUM;
  Type type = Type::kFloat32;
  int root = -1;  // of a send/recv: who sends
  int peer = -1;  // of a send/recv: who receives
  int64_t rows = 0;
  int64_t row = 1;
  uint32_t seed = 0;
  int round = 0;  // of the name's uses: other values each time
  int parts = 1;  // more: a group
  int64_t prescale = 1;
  int64_t postscale = 1;
  int priority = 0;

  bool reduces() const {
    return kind == RUEDA_ALLREDUCE || kind == RUEDA_REDUCE || kind == RUEDA_REDUCESCATTER;
  }
  bool Has(int rank) const {
    if (kind == RUEDA_SEND) return rank == root || rank == peer;
    return std::find(members.begin(), members.end(), rank) != members.end();
  }
  // How many rows a rank brings to a kind in which they differ by rank.
  int64_t RowsOf(int rank) const { return (rows + rank * (seed % 7)) % 50; }
  // How many rows `from` gives `to` in an alltoall or a scatter.
  int64_t RowsBetween(int from, int to) const { return (rows + from * 3 + to * (seed % 5)) % 20; }
};

// Every kind. A send is a recv on its `peer`.
inline constexpr rueda_kind kTaskKinds[] = {
    RUEDA_ALLREDUCE,     RUEDA_BROADCAST, RUEDA_ALLGATHER, RUEDA_BARRIER, RUEDA_ALLTOALL,
    RUEDA_REDUCESCATTER, RUEDA_REDUCE,    RUEDA_GATHER,    RUEDA_SCATTER, RUEDA_SEND};

// A small one that `seed` varies, in the world of `size` ranks, at least two.
inline Task SmallTask(rueda_kind kind, std::string name, int size, uint32_t seed) {
  Task task;
  task.kind = kind;
  task.name = std::move(name);
  for (int rank = 0; rank < size; ++rank) task.members.push_back(rank);
  task.type = static_cast<Type>(seed % static_cast<uint32_t>(Type::kCount));
  task.root = static_cast<int>(seed) % size;
  if (kind == RUEDA_SEND) task.peer = (task.root + 1) % size;
  task.rows = 1 + seed % 11;
  task.row = 1 + seed % 3;
  task.seed = seed;
  return task;
}

// By how many the sum of an average is divided; 1 of other reductions. `live`: how many submitted
// it.
inline int64_t Divisor(const Task& task, size_t live) {
  return static_cast<int64_t>(task.op == RUEDA_AVERAGE        ? task.members.size()
                              : task.op == RUEDA_AVERAGE_LIVE ? live
                                                              : 1);
}

// Element i of what a rank brings to part `part`: 0 to 3; to an average, multiples of 12, which any
// 2, 3 or 4 divide.
inline int64_t Value(const Task& task, int rank, int part, int64_t i) {
  const int64_t value =
      (rank * 3 + part + task.round + static_cast<int64_t>(task.seed % 13) + i * 7 + i / 5) % 4;
  if (task.type == Type::kBool) return value % 2;
  return task.op == RUEDA_AVERAGE || task.op == RUEDA_AVERAGE_LIVE ? value % 2 * 12 : value;
}

inline int64_t Combined(rueda_reduce_op op, int64_t a, int64_t b) {
  switch (op) {
    case RUEDA_MIN:
      return std::min(a, b);
    case RUEDA_MAX:
      return std::max(a, b);
    case RUEDA_PRODUCT:
      return a * b;
    case RUEDA_BAND:
      return a & b;
    case RUEDA_BOR:
      return a | b;
    case RUEDA_BXOR:
      return a ^ b;
    default:
      return a + b;
  }
}

inline int64_t Reduced(const Task& task, const std::vector<int>& live, int part, int64_t i) {
  int64_t result = Value(task, live[0], part, i) * task.prescale;
  for (size_t r = 1; r < live.size(); ++r) {
    result = Combined(task.op, result, Value(task, live[r], part, i) * task.prescale);
  }
  if (task.type == Type::kBool) return result != 0;
  return result / Divisor(task, live.size()) * task.postscale;
}

// What a rank has after the operation; nothing where it has no result. `live`: who submitted it.
inline std::vector<int64_t> Expected(const Task& task, int rank, int part,
                                     const std::vector<int>& live) {
  std::vector<int64_t> values;
  const auto brought = [&](int from, int64_t first_row, int64_t rows) {
    for (int64_t i = first_row * task.row; i < (first_row + rows) * task.row; ++i) {
      values.push_back(Value(task, from, part, i));
    }
  };
  const auto given = [&](int from, int to) {
    int64_t first = 0;
    for (const int member : task.members) {
      if (member == to) break;
      first += task.RowsBetween(from, member);
    }
    brought(from, first, task.RowsBetween(from, to));
  };
  const int members = static_cast<int>(task.members.size());
  const int index = static_cast<int>(std::find(task.members.begin(), task.members.end(), rank) -
                                     task.members.begin());
  switch (task.kind) {
    case RUEDA_ALLREDUCE:
    case RUEDA_REDUCE:
      if (task.kind == RUEDA_REDUCE && rank != task.root) {
        brought(rank, 0, task.rows);
        break;
      }
      for (int64_t i = 0; i < task.rows * task.row; ++i) {
        values.push_back(Reduced(task, live, part, i));
      }
      break;
    case RUEDA_REDUCESCATTER: {
      const int64_t each = task.rows / members, more = task.rows % members;
      const int64_t first = each * index + std::min<int64_t>(index, more);
      for (int64_t i = first * task.row; i < (first + each + (index < more)) * task.row; ++i) {
        values.push_back(Reduced(task, live, part, i));
      }
      break;
    }
    case RUEDA_BROADCAST:
    case RUEDA_SEND:
      brought(task.root, 0, task.rows);
      break;
    case RUEDA_ALLGATHER:
    case RUEDA_GATHER:
      if (task.kind == RUEDA_GATHER && rank != task.root) break;
      for (const int from : task.members) brought(from, 0, task.RowsOf(from));
      break;
    case RUEDA_ALLTOALL:
      for (const int from : task.members) given(from, rank);
      break;
    case RUEDA_SCATTER:
      given(task.root, rank);
      break;
    default:
      break;
  }
  return values;
}

inline void Store(Type type, void* data, int64_t i, int64_t value) {
  switch (type) {
    case Type::kBool:
    case Type::kInt8:
    case Type::kUInt8:
      static_cast<uint8_t*>(data)[i] = static_cast<uint8_t>(value);
      break;
    case Type::kUInt16:
      static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(value);
      break;
    case Type::kInt32:
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
      break;
    case Type::kInt64:
      static_cast<int64_t*>(data)[i] = value;
      break;
    case Type::kFloat16:
      static_cast<Float16*>(data)[i] = static_cast<Float16>(value);
      break;
    case Type::kBFloat16:
      static_cast<BFloat16*>(data)[i] = BFloat16(static_cast<float>(value));
      break;
    case Type::kFloat32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case Type::kComplex64:
      static_cast<std::complex<float>*>(data)[i] = static_cast<float>(value);
      break;
    default:
      static_cast<double*>(data)[i] = static_cast<double>(value);
  }
}

inline std::complex<double> Load(Type type, const void* data, int64_t i) {
  switch (type) {
    case Type::kInt8:
      return static_cast<const int8_t*>(data)[i];
    case Type::kBool:
    case Type::kUInt8:
      return static_cast<const uint8_t*>(data)[i];
    case Type::kUInt16:
      return static_cast<const uint16_t*>(data)[i];
    case Type::kInt32:
      return static_cast<const int32_t*>(data)[i];
    case Type::kInt64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case Type::kFloat16:
      return static_cast<double>(static_cast<const Float16*>(data)[i]);
    case Type::kBFloat16:
      return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
    case Type::kFloat32:
      return static_cast<const float*>(data)[i];
    case Type::kComplex64:
      return static_cast<const std::complex<float>*>(data)[i];
    default:
      return static_cast<const double*>(data)[i];
  }
}

// One operation in flight on one rank.
class Running {
 public:
  Running(rueda_context* context, const Task& task, int rank)
      : context_(context), task_(task), rank_(rank) {}

  void Submit(const rueda_completion* completion = nullptr) {
    const std::vector<rueda_operation> operations = Parts();
    ASSERT_EQ(rueda_submit(context_, operations.data(), operations.size(), completion, &handle_),
              RUEDA_OK)
        << Words() << rueda_last_error();
  }
  void Execute() {
    const std::vector<rueda_operation> operations = Parts();
    ASSERT_EQ(
        rueda_execute(context_, operations.data(), operations.size(), RUEDA_FOREVER, &handle_),
        RUEDA_OK)
        << Words() << rueda_last_error();
  }
  rueda_handle handle() const { return handle_; }

  // `live`: who has submitted it.
  void Check(const std::vector<int>& live) {
    ASSERT_EQ(rueda_wait(context_, handle_, RUEDA_FOREVER), RUEDA_OK)
        << Words() << rueda_last_error();
    ASSERT_NO_FATAL_FAILURE(CheckValues(live));
    ASSERT_EQ(rueda_release(context_, handle_), RUEDA_OK);
  }

  // Of an operation that has ended.
  void CheckValues(const std::vector<int>& live) {
    for (int part = 0; part < task_.parts && task_.kind != RUEDA_BARRIER; ++part) {
      ASSERT_NO_FATAL_FAILURE(CheckPart(part, Expected(task_, rank_, part, live)));
    }
  }

 private:
  std::string Words() const {
    return "kind " + std::to_string(task_.kind) + " '" + task_.name + "' of set " +
           std::to_string(task_.set) + ", dtype " + std::to_string(static_cast<int>(task_.type)) +
           " op " + std::to_string(task_.op) + " on rank " + std::to_string(rank_) + ": ";
  }

  int64_t RowsBrought() {
    switch (task_.kind) {
      case RUEDA_ALLGATHER:
      case RUEDA_GATHER:
        return task_.RowsOf(rank_);
      case RUEDA_ALLTOALL:
      case RUEDA_SCATTER:
        splits_.clear();
        for (const int to : task_.members) splits_.push_back(task_.RowsBetween(rank_, to));
        return std::accumulate(splits_.begin(), splits_.end(), int64_t{0});
      default:
        return task_.rows;
    }
  }

  std::vector<rueda_operation> Parts() {
    std::vector<rueda_operation> operations;
    for (int part = 0; part < task_.parts; ++part) operations.push_back(Part(part));
    return operations;
  }
  rueda_operation Part(int part) {
    rueda_operation operation = RUEDA_OPERATION_INIT;
    operation.kind = task_.kind == RUEDA_SEND && rank_ == task_.peer ? RUEDA_RECV : task_.kind;
    operation.process_set = task_.set;
    operation.priority = task_.priority;
    names_.push_back(task_.name + (part > 0 ? "." + std::to_string(part) : ""));
    operation.name = task_.name.empty() ? nullptr : names_.back().c_str();
    if (task_.kind == RUEDA_BARRIER) return operation;
    const int64_t rows = RowsBrought();
    data_.emplace_back(rows * task_.row);
    for (int64_t i = 0; i < rows * task_.row; ++i) {
      Store(task_.type, data_.back().data(), i, Value(task_, rank_, part, i));
    }
    views_.push_back(std::make_unique<TensorOf>(
        data_.back().data(), std::vector<int64_t>{rows, task_.row}, DTypeOf(task_.type)));
    operation.input = views_.back()->get();
    operation.root = task_.root;
    if (task_.reduces()) {
      operation.reduce_op = task_.op;
      operation.prescale = static_cast<double>(task_.prescale);
      operation.postscale = static_cast<double>(task_.postscale);
    }
    if (operation.kind == RUEDA_SEND) operation.root = task_.peer;
    if (operation.kind == RUEDA_RECV) std::swap(operation.input, operation.output);
    if (task_.kind == RUEDA_ALLTOALL || (task_.kind == RUEDA_SCATTER && rank_ == task_.root)) {
      operation.splits = splits_.data();
      operation.split_count = splits_.size();
    }
    return operation;
  }

  void CheckPart(int part, const std::vector<int64_t>& expected) {
    if (task_.kind == RUEDA_GATHER && rank_ != task_.root) return;
    const void* data = data_[part].data();
    rueda_result result = RUEDA_RESULT_INIT;
    const bool taken = task_.kind == RUEDA_ALLGATHER || task_.kind == RUEDA_GATHER ||
                       task_.kind == RUEDA_ALLTOALL || task_.kind == RUEDA_SCATTER ||
                       task_.kind == RUEDA_REDUCESCATTER;
    if (taken) {
      ASSERT_EQ(rueda_result_take(context_, handle_, part, &result), RUEDA_OK)
          << Words() << rueda_last_error();
      ASSERT_EQ(result.tensor.shape[0] * task_.row, static_cast<int64_t>(expected.size()))
          << Words();
      data = result.tensor.data;
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(Load(task_.type, data, static_cast<int64_t>(i)),
                std::complex<double>(static_cast<double>(expected[i])))
          << Words() << "part " << part << " element " << i;
    }
    if (taken) rueda_result_free(&result);
  }

  rueda_context* const context_;
  const Task& task_;
  const int rank_;
  std::vector<std::string> names_ = Reserved<std::string>();
  std::vector<std::vector<double>> data_ = Reserved<std::vector<double>>();
  std::vector<std::unique_ptr<TensorOf>> views_;
  std::vector<int64_t> splits_;
  rueda_handle handle_ = 0;

  // Pointers into it stay valid while parts are added.
  template <typename T>
  static std::vector<T> Reserved() {
    std::vector<T> vector;
    vector.reserve(8);
    return vector;
  }
};

}  // namespace rueda::testing
