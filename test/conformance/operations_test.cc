// What every operation must do, on every way to run a job: results against a plain model, all
// dtypes and reduce operations, all sizes that take different paths, fusion, groups, process sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "test/support/bfloat16.h"
#include "test/support/float16.h"
#include "test/support/jobs.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

class Operations : public JobTest {};
INSTANTIATE_TEST_SUITE_P(All, Operations, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// Values -------------------------------------------------------------------------------------

// Element i of a rank's input: small integers, exact in every dtype and in any order of summation.
double Value(int rank, int64_t i) {
  return static_cast<double>((rank * 3 + i * 7) % 4);
}

double Combine(rueda_reduce_op op, int size, int64_t i) {
  double result = Value(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double x = Value(rank, i);
    const int a = static_cast<int>(result), b = static_cast<int>(x);
    result = op == RUEDA_MIN       ? std::min(result, x)
             : op == RUEDA_MAX     ? std::max(result, x)
             : op == RUEDA_PRODUCT ? result * x
             : op == RUEDA_BAND    ? a & b
             : op == RUEDA_BOR     ? a | b
             : op == RUEDA_BXOR    ? a ^ b
                                   : result + x;
  }
  return op == RUEDA_AVERAGE || op == RUEDA_AVERAGE_LIVE ? result / size : result;
}

// Positive normal numbers and zero.
template <int kMantissaBits, int kBias>
struct Float8 {
  uint8_t bits = 0;
  Float8() = default;
  explicit Float8(double value) {
    if (value == 0) return;
    const int exponent = std::ilogb(value);
    // In units of the last place; a carry is right as it is.
    const double units = std::nearbyint(std::ldexp(value, kMantissaBits - exponent));
    bits = static_cast<uint8_t>(((exponent + kBias - 1) << kMantissaBits) + units);
  }
  friend bool operator==(Float8 a, Float8 b) { return a.bits == b.bits; }
};
using Float8E4M3FN = Float8<3, 7>;
using Float8E5M2 = Float8<2, 15>;

struct Bool {
  uint8_t byte = 0;
  Bool() = default;
  explicit Bool(double value) : byte(value != 0) {}
  friend bool operator==(Bool a, Bool b) { return a.byte == b.byte; }
};

template <typename T>
rueda_dtype DTypeOf() {
  if constexpr (std::is_same_v<T, BFloat16>) return RUEDA_BFLOAT16;
  if constexpr (std::is_same_v<T, Float16>) return RUEDA_FLOAT16;
  if constexpr (std::is_same_v<T, Float8E4M3FN>) return RUEDA_FLOAT8_E4M3FN;
  if constexpr (std::is_same_v<T, Float8E5M2>) return RUEDA_FLOAT8_E5M2;
  if constexpr (std::is_same_v<T, Bool>) return RUEDA_BOOL;
  return kDTypeOf<T>;
}

// Expected result of the reduction in T: exact, but for a division.
template <typename T>
T Expected(rueda_reduce_op op, int size, int64_t i) {
  if constexpr (std::is_same_v<T, Bool>) {
    int trues = 0;
    for (int rank = 0; rank < size; ++rank) trues += Value(rank, i) != 0;
    if (op == RUEDA_BXOR) return Bool(trues % 2);
    return Bool(op == RUEDA_SUM || op == RUEDA_MAX || op == RUEDA_BOR ? trues > 0 : trues == size);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(Combine(op, size, i));  // an average is truncated
  } else {
    // Float32 for the narrow types, for float32 itself and for complex64.
    constexpr bool kWide = std::is_same_v<T, double> || std::is_same_v<T, std::complex<double>>;
    return T(static_cast<std::conditional_t<kWide, double, float>>(Combine(op, size, i)));
  }
}

template <typename T>
void CheckAllreduce(rueda_context* context, int rank, int size, int64_t elements,
                    rueda_reduce_op op) {
  std::vector<T> input(elements), output(elements);
  for (int64_t i = 0; i < elements; ++i) input[i] = T(Value(rank, i));
  const TensorOf in(input.data(), {elements}, DTypeOf<T>());
  const TensorOf out(output.data(), {elements}, DTypeOf<T>());
  rueda_operation operation = Allreduce("t", in.get(), op);
  operation.output = out.get();
  ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
  for (int64_t i = 0; i < elements; ++i) {
    ASSERT_TRUE(output[i] == Expected<T>(op, size, i))
        << "element " << i << " of " << elements << ", op " << op;
    ASSERT_TRUE(input[i] == T(Value(rank, i))) << "the input was changed";
  }
}

template <typename T>
std::vector<rueda_reduce_op> OpsOf() {
  std::vector<rueda_reduce_op> ops = {RUEDA_SUM, RUEDA_PRODUCT};
  const auto add = [&](std::initializer_list<rueda_reduce_op> more) {
    ops.insert(ops.end(), more);
  };
  constexpr bool kBool = std::is_same_v<T, Bool>;
  constexpr bool kComplex =
      std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;
  if (!kBool) add({RUEDA_AVERAGE, RUEDA_AVERAGE_LIVE});
  if (!kComplex) add({RUEDA_MIN, RUEDA_MAX});
  if (kBool || std::is_integral_v<T>) add({RUEDA_BAND, RUEDA_BOR, RUEDA_BXOR});
  return ops;
}

template <typename T>
void CheckAllreduces(rueda_context* context, int rank, int size) {
  for (const int64_t elements : {0, 1, 7, 1'000, 40'001}) {
    for (const rueda_reduce_op op : OpsOf<T>()) {
      CheckAllreduce<T>(context, rank, size, elements, op);
    }
  }
}

TEST_P(Operations, AllreduceOfEveryDtypeWithEveryReduceOperation) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    CheckAllreduces<float>(context, rank, size);
    CheckAllreduces<double>(context, rank, size);
    CheckAllreduces<int32_t>(context, rank, size);
    CheckAllreduces<int64_t>(context, rank, size);
    CheckAllreduces<uint8_t>(context, rank, size);
    CheckAllreduces<int8_t>(context, rank, size);
    CheckAllreduces<int16_t>(context, rank, size);
    CheckAllreduces<uint16_t>(context, rank, size);
    CheckAllreduces<uint32_t>(context, rank, size);
    CheckAllreduces<uint64_t>(context, rank, size);
    CheckAllreduces<Float8E4M3FN>(context, rank, size);
    CheckAllreduces<Float8E5M2>(context, rank, size);
    CheckAllreduces<std::complex<float>>(context, rank, size);
    CheckAllreduces<std::complex<double>>(context, rank, size);
    CheckAllreduces<Float16>(context, rank, size);
    CheckAllreduces<BFloat16>(context, rank, size);
    CheckAllreduces<Bool>(context, rank, size);
  });
}

// Integers whose sums leave their type.
template <typename T>
T Extreme(int rank, int64_t i) {
  constexpr T kMax = std::numeric_limits<T>::max(), kMin = std::numeric_limits<T>::min();
  const T values[] = {kMax, kMin, T(kMax - rank), T(kMin + rank), T(kMax / 2 + 9), T(100 + rank)};
  return rank == 1 && i % 7 == 6 ? kMin : values[i % 7 % 6];
}

// Of at most 32 bits the exact sum is divided, of 64 bits the one that has wrapped around.
template <typename T>
T AverageOfExtremes(int size, int64_t i) {
  __int128 sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += Extreme<T>(rank, i);
  if (sizeof(T) == sizeof(int64_t)) sum = static_cast<T>(sum);
  return static_cast<T>(sum / size);
}

template <typename T>
void CheckAveragesOfExtremes(rueda_context* context, int rank, int size) {
  for (const int64_t rows : {1, 1'000, 40'001}) {
    std::vector<T> input(rows);
    for (int64_t i = 0; i < rows; ++i) input[i] = Extreme<T>(rank, i);
    const TensorOf in(input.data(), {rows}, DTypeOf<T>());
    const auto check = [&](rueda_operation operation, int64_t begin, int64_t count) {
      std::vector<T> output(count);
      const TensorOf out(output.data(), {count}, DTypeOf<T>());
      operation.input = in.get();
      operation.output = count > 0 || operation.kind != RUEDA_REDUCE ? out.get() : nullptr;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(output[i], AverageOfExtremes<T>(size, begin + i))
            << "element " << begin + i << " of " << rows << ", kind " << operation.kind;
      }
    };
    rueda_operation operation = Allreduce("t", in.get(), RUEDA_AVERAGE);
    check(operation, 0, rows);
    operation.reduce_op = RUEDA_AVERAGE_LIVE;
    check(operation, 0, rows);
    operation.reduce_op = RUEDA_AVERAGE;
    operation.kind = RUEDA_REDUCE;
    operation.root = 1;
    check(operation, 0, rank == 1 ? rows : 0);
    operation.kind = RUEDA_REDUCESCATTER;
    operation.root = 0;
    const int64_t share = rows / size, more = rows % size;
    check(operation, share * rank + std::min<int64_t>(rank, more), share + (rank < more ? 1 : 0));
  }
}

TEST_P(Operations, AveragesOfIntegersAreExactUpTo32Bits) {
  for (const int ranks : {2, 3}) {
    RunOn(ranks, [](rueda_context* context, int rank, int size) {
      CheckAveragesOfExtremes<int8_t>(context, rank, size);
      CheckAveragesOfExtremes<uint8_t>(context, rank, size);
      CheckAveragesOfExtremes<int16_t>(context, rank, size);
      CheckAveragesOfExtremes<uint16_t>(context, rank, size);
      CheckAveragesOfExtremes<int32_t>(context, rank, size);
      CheckAveragesOfExtremes<uint32_t>(context, rank, size);
      CheckAveragesOfExtremes<int64_t>(context, rank, size);
      CheckAveragesOfExtremes<uint64_t>(context, rank, size);
    });
  }
}

std::vector<float> RandomFloats(int seed, int64_t elements) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(elements);
  for (float& value : values) value = uniform(random);
  return values;
}

// All ranks of the set hold the same bytes.
void ExpectEqualOnAllRanks(rueda_context* context, const std::vector<float>& values) {
  std::vector<float> reference = values;
  const TensorOf tensor(reference);
  ASSERT_EQ(Execute(context, Broadcast("reference", tensor.get(), 0)), RUEDA_OK);
  ASSERT_EQ(memcmp(reference.data(), values.data(), values.size() * sizeof(float)), 0);
}

TEST_P(Operations, AllreduceOfAnySizeIsTheSameOnAllRanks) {
  for (const int ranks : {2, 4}) {
    RunOn(ranks, [](rueda_context* context, int rank, int size) {
      // Around the borders of slots, blocks and cache lines.
      for (const int64_t elements :
           {2, 15, 17, 8'191, 8'192, 8'193, 65'535, 65'536, 65'537, 131'072, 200'003, 1'000'003}) {
        std::vector<float> values = RandomFloats(rank, elements);
        std::vector<double> expected(elements, 0);
        for (int r = 0; r < size; ++r) {
          const std::vector<float> other = RandomFloats(r, elements);
          for (int64_t i = 0; i < elements; ++i) expected[i] += other[i];
        }
        const TensorOf tensor(values);
        ASSERT_EQ(Execute(context, Allreduce("t", tensor.get())), RUEDA_OK) << rueda_last_error();
        for (int64_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(values[i], expected[i], 1e-6 * size) << "element " << i << " of " << elements;
        }
        ExpectEqualOnAllRanks(context, values);
      }
    });
  }
}

TEST_P(Operations, ScaleFactorsApplyBeforeAndAfter) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    for (const int64_t elements : {5, 20'000}) {
      std::vector<float> values(elements, static_cast<float>(rank + 1));
      const TensorOf tensor(values);
      rueda_operation operation = Allreduce("t", tensor.get());
      operation.prescale = 0.5;
      operation.postscale = 3;
      ASSERT_EQ(Execute(context, operation), RUEDA_OK);
      EXPECT_EQ(values[0], 3 * 0.5f * static_cast<float>(size * (size + 1) / 2));
      EXPECT_EQ(values.back(), values[0]);
    }
  });
}

TEST_P(Operations, BroadcastFromEveryRoot) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int root = 0; root < size; ++root) {
      for (const int64_t elements : {0, 1, 1'000, 100'000}) {
        std::vector<int64_t> input(elements), output(elements, -1);
        for (int64_t i = 0; i < elements; ++i) input[i] = rank * 1'000'000 + i;
        const TensorOf in(input);
        const TensorOf out(output);
        rueda_operation operation = Broadcast("b", in.get(), root);
        operation.output = out.get();
        ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
        for (int64_t i = 0; i < elements; ++i) ASSERT_EQ(output[i], root * 1'000'000 + i);
        ASSERT_EQ(Execute(context, Broadcast("b", in.get(), root)), RUEDA_OK);  // in place
        ASSERT_EQ(input, output);
      }
    }
  });
}

// Rank r brings `rows(r)` rows of `row` elements; what they hold tells rank and place.
void CheckAllgather(rueda_context* context, int rank, int size, int64_t row,
                    const std::function<int64_t(int)>& rows, bool by_allocator) {
  std::vector<int32_t> input(rows(rank) * row);
  for (size_t i = 0; i < input.size(); ++i) input[i] = rank * 10'000'000 + static_cast<int32_t>(i);
  const TensorOf in(input.data(), {rows(rank), row}, RUEDA_INT32);
  rueda_operation operation = Allgather("g", in.get());
  std::vector<int32_t> memory;
  if (by_allocator) {
    operation.allocate = [](void* user, int32_t part, const int64_t* shape, int32_t ndim) -> void* {
      EXPECT_EQ(part, 0);
      EXPECT_EQ(ndim, 2);
      auto* vector = static_cast<std::vector<int32_t>*>(user);
      vector->resize(shape[0] * shape[1] + 1);
      return vector->data();
    };
    operation.allocate_user = &memory;
  }
  rueda_result result = ExecuteAndTake(context, operation);
  int64_t total = 0;
  for (int r = 0; r < size; ++r) total += rows(r);
  ASSERT_EQ(result.tensor.ndim, 2);
  ASSERT_EQ(result.tensor.shape[0], total);
  ASSERT_EQ(result.tensor.shape[1], row);
  const int32_t* at = static_cast<const int32_t*>(result.tensor.data);
  if (by_allocator) {
    EXPECT_EQ(at, memory.data());
  }
  for (int r = 0; r < size; ++r) {
    for (int64_t i = 0; i < rows(r) * row; ++i)
      ASSERT_EQ(*at++, r * 10'000'000 + i) << "rank " << r;
  }
  rueda_result_free(&result);
}

TEST_P(Operations, AllgatherOfRaggedFirstDimensions) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (const bool by_allocator : {false, true}) {
      CheckAllgather(
          context, rank, size, 3, [](int r) { return r + 1; }, by_allocator);
      CheckAllgather(
          context, rank, size, 2, [](int r) { return r == 1 ? 0 : 5; }, by_allocator);
      CheckAllgather(
          context, rank, size, 1, [](int) { return 0; }, by_allocator);
      CheckAllgather(
          context, rank, size, 100, [](int r) { return 700 + 333 * r; }, by_allocator);
      CheckAllgather(
          context, rank, size, 0, [](int) { return 4; }, by_allocator);
    }
  });
}

TEST_P(Operations, AllgatherIntoACallersBufferOfTheWrongShapeFailsThereOnly) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<float> input(2, 1.0f), output(rank == 0 ? 3 : 2 * size);
    const TensorOf in(input), out(output);
    rueda_operation operation = Allgather("g", in.get());
    operation.output = out.get();
    const rueda_status status = Execute(context, operation);
    EXPECT_EQ(status, rank == 0 ? RUEDA_INVALID_ARGUMENT : RUEDA_OK) << rueda_last_error();
    if (rank != 0) {
      EXPECT_EQ(output, std::vector<float>(2 * size, 1.0f));
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

TEST_P(Operations, BarrierWaitsForEverybody) {
  RunOn(3, [](rueda_context* context, int, int) {
    for (int i = 0; i < 20; ++i)
      ASSERT_EQ(Execute(context, Barrier(i % 2 ? "b" : nullptr)), RUEDA_OK);
  });
}

// Every rank submits the same tensors in an order of its own, without waiting in between.
void SubmitShuffled(rueda_context* context, int rank, int size, int tensors, int round) {
  std::vector<std::vector<float>> data(tensors);
  std::vector<std::unique_ptr<TensorOf>> views;
  std::vector<int> order(tensors);
  std::iota(order.begin(), order.end(), 0);
  // The test's own seed is 0 but in test/soak.
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed() * 10'000u + rank * 1'000 +
                      round);
  std::shuffle(order.begin(), order.end(), random);
  for (int t = 0; t < tensors; ++t) {
    data[t].assign(1 + t * 7 % 300, static_cast<float>(rank + t + round));
    views.push_back(std::make_unique<TensorOf>(data[t]));
  }
  std::vector<rueda_handle> handles(tensors);
  for (const int t : order) {
    const std::string name = "tensor" + std::to_string(t);
    const rueda_operation operation =
        Allreduce(name.c_str(), views[t]->get(), t % 10 == 0 ? RUEDA_MAX : RUEDA_SUM);
    ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles[t]), RUEDA_OK)
        << rueda_last_error();
  }
  std::shuffle(order.begin(), order.end(), random);
  for (const int t : order) {
    ASSERT_EQ(rueda_wait(context, handles[t], RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    ASSERT_EQ(rueda_release(context, handles[t]), RUEDA_OK);
    const int sum = size * (t + round) + size * (size - 1) / 2;
    const float expected = static_cast<float>(t % 10 == 0 ? size - 1 + t + round : sum);
    for (const float value : data[t]) ASSERT_EQ(value, expected) << "tensor " << t;
  }
}

TEST_P(Operations, ManyTensorsInAnyOrder) {
  const int rounds = takes_long ? 3 : 50;
  const int tensors = takes_long ? 200 : 1'000;
  RunOn(4, [&](rueda_context* context, int rank, int size) {
    for (int round = 0; round < rounds; ++round) {
      SubmitShuffled(context, rank, size, tensors, round);
    }
  });
}

TEST_P(Operations, FusionThresholdDoesNotChangeResults) {
  RunOn(2,
        [](rueda_context* context, int rank, int size) {
          for (int round = 0; round < 3; ++round) SubmitShuffled(context, rank, size, 100, round);
        },
        {{"fusion_threshold", "2000"}});
}

TEST_P(Operations, GroupOfMixedDtypesIsOneOperation) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    for (int round = 0; round < 3; ++round) {
      std::vector<float> a(3, static_cast<float>(rank));
      std::vector<int64_t> b(5, rank + 1);
      std::vector<float> c(40'000, 1);
      const TensorOf ta(a), tb(b), tc(c);
      const rueda_operation operations[] = {Allreduce("a", ta.get()), Allreduce("b", tb.get()),
                                            Allreduce("c", tc.get())};
      rueda_handle handle = 0;
      ASSERT_EQ(rueda_submit(context, operations, 3, nullptr, &handle), RUEDA_OK)
          << rueda_last_error();
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      EXPECT_EQ(a, std::vector<float>(3, static_cast<float>(size * (size - 1) / 2)));
      EXPECT_EQ(b, std::vector<int64_t>(5, size * (size + 1) / 2));
      EXPECT_EQ(c, std::vector<float>(40'000, static_cast<float>(size)));
    }
  });
}

TEST_P(Operations, GroupedAllgatherHasOneResultATensor) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<int32_t> a(rank + 1, rank), b(2, 10 + rank);
    const TensorOf ta(a), tb(b);
    const rueda_operation operations[] = {Allgather("a", ta.get()), Allgather("b", tb.get())};
    rueda_handle handle = 0;
    ASSERT_EQ(rueda_execute(context, operations, 2, RUEDA_FOREVER, &handle), RUEDA_OK)
        << rueda_last_error();
    rueda_result first = RUEDA_RESULT_INIT, second = RUEDA_RESULT_INIT;
    ASSERT_EQ(rueda_result_take(context, handle, 0, &first), RUEDA_OK);
    ASSERT_EQ(rueda_result_take(context, handle, 1, &second), RUEDA_OK);
    EXPECT_EQ(rueda_result_take(context, handle, 1, &second), RUEDA_FAILED_PRECONDITION);
    EXPECT_EQ(rueda_result_take(context, handle, 2, &second), RUEDA_INVALID_ARGUMENT);
    ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
    EXPECT_EQ(first.tensor.shape[0], size * (size + 1) / 2);
    EXPECT_EQ(second.tensor.shape[0], 2 * size);
    EXPECT_EQ(static_cast<int32_t*>(first.tensor.data)[0], 0);
    EXPECT_EQ(static_cast<int32_t*>(second.tensor.data)[2 * size - 1], 10 + size - 1);
    rueda_result_free(&first);
    rueda_result_free(&second);
  });
}

TEST_P(Operations, ProcessSetsWorkSideBySide) {
  RunOn(4, [](rueda_context* context, int rank, int) {
    const int32_t low[] = {0, 1}, odd[] = {1, 3};
    int32_t low_id = -1, odd_id = -1;
    ASSERT_EQ(rueda_process_set_add(context, low, 2, RUEDA_FOREVER, &low_id), RUEDA_OK)
        << rueda_last_error();
    ASSERT_EQ(rueda_process_set_add(context, odd, 2, RUEDA_FOREVER, &odd_id), RUEDA_OK);
    EXPECT_EQ(low_id, 1);
    EXPECT_EQ(odd_id, 2);
    for (int round = 0; round < 10; ++round) {
      for (const auto& [id, ranks] : {std::pair{low_id, low}, std::pair{odd_id, odd}}) {
        const bool in = rank == ranks[0] || rank == ranks[1];
        EXPECT_EQ(rueda_process_set_rank(context, id), in ? (rank == ranks[0] ? 0 : 1) : -1);
        std::vector<float> values(round * 1'000 + 1, static_cast<float>(rank));
        const TensorOf tensor(values);
        rueda_operation operation = Allreduce("t", tensor.get());
        operation.process_set = id;
        const rueda_status status = Execute(context, operation);
        EXPECT_EQ(status, in ? RUEDA_OK : RUEDA_INVALID_ARGUMENT) << rueda_last_error();
        if (in) {
          EXPECT_EQ(values.back(), static_cast<float>(ranks[0] + ranks[1]));
        }
      }
    }
  });
}

// Rank 1 is in two sets and waits in the one whose other member is late; meanwhile the other set
// works.
TEST_P(Operations, OneSetNeverWaitsForAnother) {
  RunOn(3, [](rueda_context* context, int rank, int) {
    const int32_t first[] = {0, 1}, second[] = {1, 2};
    int32_t first_id, second_id;
    ASSERT_EQ(rueda_process_set_add(context, first, 2, RUEDA_FOREVER, &first_id), RUEDA_OK);
    ASSERT_EQ(rueda_process_set_add(context, second, 2, RUEDA_FOREVER, &second_id), RUEDA_OK);
    std::vector<float> a(100'000, 1), b(100'000, 1);
    const TensorOf ta(a), tb(b);
    rueda_operation late = Allreduce("late", ta.get());
    late.process_set = second_id;
    rueda_operation prompt = Allreduce("prompt", tb.get());
    prompt.process_set = first_id;
    rueda_handle handle = 0;
    if (rank == 1) {
      ASSERT_EQ(rueda_submit(context, &late, 1, nullptr, &handle), RUEDA_OK);
    }
    if (rank <= 1) {
      for (int i = 0; i < 20; ++i) ASSERT_EQ(Execute(context, prompt), RUEDA_OK);
    }
    // Rank 2 comes only after the first set has done its work: the barrier says so.
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    if (rank == 2) {
      ASSERT_EQ(Execute(context, late), RUEDA_OK);
    }
    if (rank == 1) {
      ASSERT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handle), RUEDA_OK);
      EXPECT_EQ(a[0], 2.0f);
      EXPECT_EQ(b[0], 1024.0f * 1024.0f);
    }
  });
}

TEST_P(Operations, UnnamedOperationsMatchByOrder) {
  RunOn(2, [](rueda_context* context, int rank, int size) {
    std::vector<std::vector<int64_t>> data;
    std::vector<std::unique_ptr<TensorOf>> views;
    std::vector<rueda_handle> handles(50);
    for (int i = 0; i < 50; ++i) data.emplace_back(1 + i % 3, rank + i);
    for (int i = 0; i < 50; ++i) {
      views.push_back(std::make_unique<TensorOf>(data[i]));
      const rueda_operation operation = Allreduce(nullptr, views[i]->get());
      ASSERT_EQ(rueda_submit(context, &operation, 1, nullptr, &handles[i]), RUEDA_OK);
    }
    for (int i = 49; i >= 0; --i) {
      ASSERT_EQ(rueda_wait(context, handles[i], RUEDA_FOREVER), RUEDA_OK);
      ASSERT_EQ(rueda_release(context, handles[i]), RUEDA_OK);
      EXPECT_EQ(data[i][0], size * i + size * (size - 1) / 2);
    }
  });
}

TEST_P(Operations, MismatchIsTheSameErrorOnEveryRankAndTheJobGoesOn) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    for (int round = 0; round < 2; ++round) {  // with and without an id
      std::vector<float> values(rank == 1 ? 1'001 : 1'000, 1);
      const TensorOf tensor(values);
      EXPECT_EQ(Execute(context, Allreduce("w", tensor.get())), RUEDA_INVALID_ARGUMENT);
      const std::string others = size == 3 ? "ranks 0, 2 " : "ranks 0, 2, 3 ";
      EXPECT_EQ(std::string(rueda_last_error()),
                "tensor 'w': the ranks disagree on the shape: " + others +
                    "sent allreduce(sum) float32[1000]; rank 1 sent allreduce(sum) float32[1001]");
      std::vector<float> good(1'000, 1);
      const TensorOf same(good);
      EXPECT_EQ(Execute(context, Allreduce("w", same.get())), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(good[999], static_cast<float>(size));
    }
  });
}

TEST_P(Operations, MismatchOfKindRootDtypeAndReduceOperation) {
  RunOn(2, [](rueda_context* context, int rank, int) {
    std::vector<float> floats(10, 1);
    std::vector<int32_t> ints(10, 1);
    const TensorOf f(floats), i(ints);
    const bool odd = rank == 1;
    const std::vector<std::pair<rueda_operation, std::string>> cases = {
        {Allreduce("t", odd ? i.get() : f.get()), "dtype"},
        {Allreduce("t", f.get(), odd ? RUEDA_MAX : RUEDA_SUM), "reduce operation"},
        {Broadcast("t", f.get(), odd ? 1 : 0), "root"},
        {odd ? Allgather("t", f.get()) : Allreduce("t", f.get()), "kind of operation"},
    };
    for (const auto& [operation, word] : cases) {
      EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
      EXPECT_THAT(rueda_last_error(), ::testing::HasSubstr("disagree on the " + word));
    }
    EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK);
  });
}

// Memory of rueda_mem_alloc on all ranks, or on some of them only.
TEST_P(Operations, TensorsInArenas) {
  RunOn(3, [](rueda_context* context, int rank, int size) {
    constexpr int64_t kElements = 300'001;
    void* memory = nullptr;
    ASSERT_EQ(rueda_mem_alloc(context, 2 * kElements * sizeof(float), &memory), RUEDA_OK)
        << rueda_last_error();
    float* in_arena = static_cast<float*>(memory);
    std::vector<float> elsewhere(kElements);
    for (int round = 0; round < 6; ++round) {
      // Rounds 0 and 1: everybody's is in an arena; 2 and 3: all but rank 1's; 4 and 5: only rank
      // 0's.
      const bool resident = round < 2 || (round < 4 ? rank != 1 : rank == 0);
      float* input = resident ? in_arena : elsewhere.data();
      const bool in_place = round % 2 == 0;
      float* output = in_place ? input : resident ? in_arena + kElements : elsewhere.data();
      for (int64_t i = 0; i < kElements; ++i) input[i] = static_cast<float>((i + rank) % 1'000);
      const TensorOf in(input, {kElements}, RUEDA_FLOAT32);
      const TensorOf out(output, {kElements}, RUEDA_FLOAT32);
      rueda_operation operation = Allreduce("arena", in.get());
      operation.output = out.get();
      ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
      for (int64_t i = 0; i < kElements; ++i) {
        float expected = 0;
        for (int r = 0; r < size; ++r) expected += static_cast<float>((i + r) % 1'000);
        ASSERT_EQ(output[i], expected) << "element " << i << ", round " << round;
      }
    }
    ASSERT_EQ(Execute(context, Barrier()), RUEDA_OK);
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_OK);
    EXPECT_EQ(rueda_mem_free(memory), RUEDA_NOT_FOUND);
  });
}

}  // namespace
}  // namespace rueda::testing
