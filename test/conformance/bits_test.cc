// The bits of a sum: the same on all ranks whatever moves the bytes, and but for Gloo alone the
// same always, in rank order, on several hosts host by host, wherever the tensors lie, whatever
// shares a bucket with them and whoever is late. The values are such that the order of summation
// matters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string_view>

#include "test/support/bfloat16.h"
#include "test/support/float16.h"
#include "test/support/jobs.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

class Bits : public JobTest {
 protected:
  // On how many hosts the ranks are, each of whose sums is one, in rank order; 0: Gloo's order is
  // its own.
  int Hosts() const {
    int hosts = 1;
    for (const auto& [name, value] : GetParam().knobs) {
      if (name == "backend") return 0;
      if (name == "hosts_fake") hosts = std::stoi(value);
    }
    return hosts;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Bits, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });
INSTANTIATE_TEST_SUITE_P(Hosts, Bits, ::testing::ValuesIn(HostsSetups()),
                         [](const auto& setup) { return setup.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Bits);

// Every number of ranks; one where operations take long.
std::vector<int> Worlds() {
  if (takes_long) return {3};
  return {2, 3, 4};
}

constexpr int kOffsets = 64;  // byte by byte over a cache line
const rueda_dtype kDTypes[] = {RUEDA_FLOAT32, RUEDA_FLOAT16, RUEDA_BFLOAT16};

// Numbers as bytes ----------------------------------------------------------------------------

template <typename T>
void StoreAs(float value, char* to) {
  const T number = static_cast<T>(value);
  memcpy(to, &number, sizeof number);
}
void Store(rueda_dtype dtype, float value, char* to) {
  if (dtype.bits == 32) return StoreAs<float>(value, to);
  if (dtype.code == RUEDA_FLOAT16.code) return StoreAs<Float16>(value, to);
  StoreAs<BFloat16>(value, to);
}

template <typename T>
float LoadAs(const char* from) {
  T number;
  memcpy(&number, from, sizeof number);
  return static_cast<float>(number);
}
float Load(rueda_dtype dtype, const char* from) {
  if (dtype.bits == 32) return LoadAs<float>(from);
  if (dtype.code == RUEDA_FLOAT16.code) return LoadAs<Float16>(from);
  return LoadAs<BFloat16>(from);
}

// Numbers of very different sizes; every third of rank 1's cancels rank 0's.
float Number(int rank, int size, int64_t i) {
  if (size > 2 && rank == 1 && i % 3 == 0) return -Number(0, size, i);
  std::minstd_rand random(static_cast<uint32_t>(i * 64 + rank + 1));
  random.discard(3);
  const float fraction = static_cast<float>(random() % 65'536) / 65'536 - 0.5f;
  return std::ldexp(fraction, static_cast<int>(random() % 21) - 10);
}

std::string Input(rueda_dtype dtype, int rank, int size, int64_t elements) {
  const size_t each = dtype.bits / 8;
  std::string bytes(static_cast<size_t>(elements) * each, 0);
  for (int64_t i = 0; i < elements; ++i) {
    Store(dtype, Number(rank, size, i), &bytes[static_cast<size_t>(i) * each]);
  }
  return bytes;
}

// Summed in float32 in the order of `ranks`, host by host in equal blocks of them, and rounded.
// What travels between hosts is rounded, too.
std::string SumOf(rueda_dtype dtype, const std::vector<int>& ranks, int hosts, int64_t elements) {
  const int size = static_cast<int>(ranks.size());
  const int local = size / hosts;
  std::vector<std::string> inputs;
  for (const int rank : ranks) inputs.push_back(Input(dtype, rank, size, elements));
  const size_t each = dtype.bits / 8;
  std::string bytes(static_cast<size_t>(elements) * each, 0);
  for (size_t at = 0; at < bytes.size(); at += each) {
    float sum = 0;
    for (int first = 0; first < size; first += local) {
      float of_host = Load(dtype, &inputs[first][at]);
      for (int i = first + 1; i < first + local; ++i) of_host += Load(dtype, &inputs[i][at]);
      if (hosts > 1) {
        Store(dtype, of_host, &bytes[at]);
        of_host = Load(dtype, &bytes[at]);
      }
      sum = first == 0 ? of_host : sum + of_host;
    }
    Store(dtype, sum, &bytes[at]);
  }
  return bytes;
}

// One rank's program --------------------------------------------------------------------------

// Memory for tensors at odd places, in an arena or not.
class Buffer {
 public:
  Buffer(rueda_context* context, size_t bytes, bool in_arena) : in_arena_(in_arena) {
    if (in_arena) {
      void* memory = nullptr;
      EXPECT_EQ(rueda_mem_alloc(context, bytes, &memory), RUEDA_OK) << rueda_last_error();
      data_ = static_cast<char*>(memory);
    } else {
      data_ = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    }
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (in_arena_) {
      EXPECT_EQ(rueda_mem_free(data_), RUEDA_OK) << rueda_last_error();
    } else {
      std::free(data_);
    }
  }
  char* data() { return data_; }

 private:
  const bool in_arena_;
  char* data_ = nullptr;
};

class Program {
 public:
  // `hosts`: as Bits::Hosts says.
  Program(rueda_context* context, int rank, int size, int hosts)
      : context_(context), rank_(rank), size_(size), hosts_(hosts) {}

  void Use(rueda_dtype dtype, int64_t elements) {
    dtype_ = dtype;
    elements_ = elements;
    input_ = Input(dtype, rank_, size_, elements);
    std::vector<int> ranks(size_);
    std::iota(ranks.begin(), ranks.end(), 0);
    expected_ = SumOf(dtype, ranks, std::max(hosts_, 1), elements);
    if (size_ > 2 && elements > 1'000) {
      std::rotate(ranks.begin(), ranks.begin() + 1, ranks.end());
      ASSERT_TRUE(SumOf(dtype, ranks, 1, elements) != expected_) << "any order would do";
    }
  }

  // At every offset, in place and not.
  void Alone(bool in_arena) {
    Buffer in(context_, room(), in_arena), out(context_, room(), in_arena);
    for (int offset = 0; offset < offsets_; ++offset) {
      char* const from = in.data() + offset;
      char* const to = offset % 3 == 0 ? from : out.data() + (offset * 7 + 1) % kOffsets;
      memcpy(from, input_.data(), input_.size());
      const TensorOf input(from, {elements_}, dtype_), output(to, {elements_}, dtype_);
      rueda_operation operation = Allreduce("alone", input.get());
      operation.output = output.get();
      ASSERT_EQ(Execute(context_, operation), RUEDA_OK) << rueda_last_error();
      ASSERT_NO_FATAL_FAILURE(Look(to, offset));
    }
  }

  // One at every offset, at once with each other and with neighbours of other sizes: each rank in
  // an order of its own, `group` of them together.
  void Among(int group, bool in_arena) {
    Buffer memory(context_, offsets_ * room(), in_arena);
    std::vector<std::vector<float>> others(offsets_);
    std::vector<std::unique_ptr<TensorOf>> views;
    std::vector<rueda_operation> operations;
    names_.clear();
    for (int i = 0; i < offsets_; ++i) {
      memcpy(Place(memory, i), input_.data(), input_.size());
      others[i].assign(i * 37 % 101, 1);
      names_.push_back("t" + std::to_string(group) + "." + std::to_string(i));
    }
    for (int i = 0; i < offsets_; ++i) {
      views.push_back(std::make_unique<TensorOf>(Place(memory, i), Shape(), dtype_));
      operations.push_back(Allreduce(names_[i].c_str(), views.back()->get()));
    }
    std::vector<rueda_handle> handles;
    for (const int first : Shuffled(group)) {
      handles.emplace_back();
      ASSERT_EQ(rueda_submit(context_, &operations[first], group, nullptr, &handles.back()),
                RUEDA_OK)
          << rueda_last_error();
      views.push_back(std::make_unique<TensorOf>(others[first]));
      const std::string name = "other" + std::to_string(first);
      const rueda_operation other = Allreduce(name.c_str(), views.back()->get());
      handles.emplace_back();
      ASSERT_EQ(rueda_submit(context_, &other, 1, nullptr, &handles.back()), RUEDA_OK);
    }
    for (const rueda_handle handle : handles) {
      ASSERT_EQ(rueda_wait(context_, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
      ASSERT_EQ(rueda_release(context_, handle), RUEDA_OK);
    }
    for (int i = 0; i < offsets_; ++i) ASSERT_NO_FATAL_FAILURE(Look(Place(memory, i), i));
  }

  // All ranks have seen the same.
  void Compare() {
    const TensorOf mine(seen_);
    std::vector<int64_t> all(seen_.size() * static_cast<size_t>(size_));
    const TensorOf everybodys(all);
    rueda_operation operation = Allgather("seen", mine.get());
    operation.output = everybodys.get();
    ASSERT_EQ(Execute(context_, operation), RUEDA_OK) << rueda_last_error();
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], seen_[i % seen_.size()])
          << "result " << i % seen_.size() << " of rank " << i / seen_.size();
    }
    seen_.clear();
  }

 private:
  size_t room() const { return (input_.size() + kOffsets + 63) / 64 * 64; }
  std::vector<int64_t> Shape() const { return {elements_}; }
  char* Place(Buffer& memory, int i) const {
    return memory.data() + static_cast<size_t>(i) * room() + i;
  }

  // The first of each group.
  std::vector<int> Shuffled(int group) {
    std::vector<int> firsts;
    for (int first = 0; first < offsets_; first += group) firsts.push_back(first);
    std::shuffle(firsts.begin(), firsts.end(), own_);
    return firsts;
  }

  void Look(const char* result, int offset) {
    seen_.push_back(static_cast<int64_t>(
        std::hash<std::string_view>()(std::string_view(result, expected_.size()))));
    if (hosts_ == 0) return;
    ASSERT_EQ(memcmp(result, expected_.data(), expected_.size()), 0)
        << "dtype " << int{dtype_.code} << ", " << int{dtype_.bits} << " bits, " << elements_
        << " elements, offset " << offset;
  }

  rueda_context* const context_;
  const int rank_;
  const int size_;
  const int hosts_;
  // Gloo takes its time.
  const int offsets_ = hosts_ != 1 ? 8 : takes_long ? 16 : kOffsets;
  std::mt19937 own_{static_cast<uint32_t>(rank_)};
  rueda_dtype dtype_ = RUEDA_FLOAT32;
  int64_t elements_ = 0;
  std::string input_, expected_;
  std::vector<std::string> names_;
  std::vector<int64_t> seen_;  // a hash of each result
};

// Sizes of every path of shared memory: slots, one block, several; in arenas directly.
TEST_P(Bits, AreTheSameWhereverTheTensorsLie) {
  for (const int ranks : Worlds()) {
    RunOn(ranks, [&](rueda_context* context, int rank, int size) {
      Program program(context, rank, size, Hosts());
      for (const rueda_dtype dtype : kDTypes) {
        for (const int64_t elements : {11, 5'003, 70'001, 300'007}) {
          if (takes_long && elements > 100'000) continue;
          ASSERT_NO_FATAL_FAILURE(program.Use(dtype, elements));
          for (const bool in_arena : {false, true}) {
            ASSERT_NO_FATAL_FAILURE(program.Alone(in_arena));
          }
        }
      }
      program.Compare();
    });
  }
}

TEST_P(Bits, AreTheSameWhateverSharesTheBucket) {
  for (const int ranks : Worlds()) {
    for (const char* threshold : {"1", "50000", "67108864"}) {
      RunOn(ranks,
            [&](rueda_context* context, int rank, int size) {
              Program program(context, rank, size, Hosts());
              for (const rueda_dtype dtype : kDTypes) {
                for (const int64_t elements : {11, 3'001, 20'011}) {
                  ASSERT_NO_FATAL_FAILURE(program.Use(dtype, elements));
                  for (const int group : {1, 8}) {
                    ASSERT_NO_FATAL_FAILURE(program.Among(group, (group + elements) % 2 == 0));
                  }
                }
              }
              program.Compare();
            },
            {{"fusion_threshold", threshold}});
    }
  }
}

// What each rank gets of a reducescatter, and the root of a reduce, is what an allreduce gives
// there.
TEST_P(Bits, OfEveryReductionAreThoseOfAnAllreduce) {
  if (Hosts() != 1) GTEST_SKIP() << "promised of shared memory alone";
  for (const int ranks : Worlds()) {
    RunOn(ranks, [&](rueda_context* context, int rank, int size) {
      for (const rueda_dtype dtype : kDTypes) {
        for (const int64_t rows : {12, 6'000, 180'000}) {
          std::vector<int> all(size);
          std::iota(all.begin(), all.end(), 0);
          const std::string expected = SumOf(dtype, all, 1, rows);
          std::string input = Input(dtype, rank, size, rows);
          const size_t part = input.size() / static_cast<size_t>(size);
          std::string output(part, 0);
          const TensorOf in(input.data(), {rows}, dtype);
          const TensorOf out(output.data(), {rows / size}, dtype);
          rueda_operation operation = OfKind(RUEDA_REDUCESCATTER, "s", in.get());
          operation.reduce_op = RUEDA_SUM;
          operation.output = out.get();
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          ASSERT_TRUE(output == expected.substr(part * static_cast<size_t>(rank), part)) << rows;
          operation = OfKind(RUEDA_REDUCE, "r", in.get());
          operation.reduce_op = RUEDA_SUM;
          operation.root = size - 1;
          ASSERT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
          ASSERT_TRUE(rank != size - 1 || input == expected) << rows;
        }
      }
    });
  }
}

}  // namespace
}  // namespace rueda::testing
