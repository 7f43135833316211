// Operations of more than 2^31 elements, on two ranks that share memory. Every value is checked.
// Takes up to 9 GiB; with less than 12 GiB free it is skipped.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "test/support/jobs.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

constexpr int64_t kBeyond32Bits = (int64_t{1} << 31) + 12'345;

int64_t AvailableGiB() {
  std::ifstream lines("/proc/meminfo");
  std::string word;
  int64_t kib = 0;
  while (lines >> word && word != "MemAvailable:") {
  }
  lines >> kib;
  return kib >> 20;
}

class Large : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer needs several times the memory, and the time";
    if (AvailableGiB() < 12) GTEST_SKIP() << "only " << AvailableGiB() << " GiB of 12 are free";
  }
};

// 0 to 63; neither a power of two nor a block apart are two places alike.
int8_t Value(int rank, int64_t i) {
  return static_cast<int8_t>((i ^ (i >> 7) ^ (i >> 20) ^ (rank * 21)) & 63);
}

std::unique_ptr<int8_t[]> Filled(int rank, int64_t elements) {
  std::unique_ptr<int8_t[]> data(new int8_t[static_cast<size_t>(elements)]);
  for (int64_t i = 0; i < elements; ++i) data[static_cast<size_t>(i)] = Value(rank, i);
  return data;
}

// The number of values that are not `expected(i)`.
template <typename Fn>
int64_t Wrong(const int8_t* data, int64_t elements, Fn expected) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < elements; ++i) wrong += data[i] != expected(i);
  return wrong;
}

TEST_F(Large, AnAllreduceOfMoreElementsThan32BitsCount) {
  RunRanks({2, ShmSetups()[0]}, [](rueda_context* context, int rank) {
    const std::unique_ptr<int8_t[]> data = Filled(rank, kBeyond32Bits);
    const TensorOf tensor(data.get(), {kBeyond32Bits}, RUEDA_INT8);
    ASSERT_EQ(Execute(context, Allreduce("large", tensor.get())), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(Wrong(data.get(), kBeyond32Bits,
                    [](int64_t i) { return static_cast<int8_t>(Value(0, i) + Value(1, i)); }),
              0);
  });
}

TEST_F(Large, AnAllgatherWhoseResultHasMoreElementsThan32BitsCount) {
  RunRanks({2, ShmSetups()[0]}, [](rueda_context* context, int rank) {
    const int64_t rows[] = {kBeyond32Bits / 2 + 77, kBeyond32Bits / 2};
    const std::unique_ptr<int8_t[]> data = Filled(rank, rows[rank]);
    const TensorOf tensor(data.get(), {rows[rank]}, RUEDA_INT8);
    const rueda_operation operation = Allgather("large", tensor.get());
    rueda_result result = ExecuteAndTake(context, operation);
    ASSERT_EQ(result.tensor.shape[0], rows[0] + rows[1]);
    const auto* all = static_cast<const int8_t*>(result.tensor.data);
    EXPECT_EQ(Wrong(all, rows[0], [](int64_t i) { return Value(0, i); }), 0);
    EXPECT_EQ(Wrong(all + rows[0], rows[1], [](int64_t i) { return Value(1, i); }), 0);
    rueda_result_free(&result);
  });
}

}  // namespace
}  // namespace rueda::testing
