// The C++ API: what it adds to the C API, in a world of one rank, and every function on two and
// three.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <complex>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "rueda/rueda.hpp"
#include "test/support/run_ranks.h"

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class Cpp : public ::testing::Test {
 protected:
  void SetUp() override { rueda::init(); }
  void TearDown() override { rueda::shutdown(); }
};

TEST_F(Cpp, HandlesMayOutliveTheJob) {
  std::vector<float> data(10, 1);
  const auto synchronized = rueda::allreduce_async(data, {.name = "a"});
  const auto left = rueda::allreduce_async(data, {.name = "b"});
  const auto in_place = rueda::allreduce_async_(data, {.name = "c"});
  EXPECT_EQ(rueda::synchronize(synchronized), data);
  rueda::shutdown();
  EXPECT_THROW(rueda::synchronize(left), rueda::Error);
  rueda::init();
  EXPECT_THROW(rueda::synchronize(left), rueda::Error);  // the new job is another
  EXPECT_THROW(rueda::poll(in_place), rueda::Error);
}

TEST_F(Cpp, AResultIsTakenOnce) {
  const std::vector<float> data(3, 2);
  const auto handle = rueda::allreduce_async(data, {.name = "once"});
  EXPECT_EQ(rueda::synchronize(handle), data);
  EXPECT_THAT([&] { rueda::synchronize(handle); },
              ThrowsMessage<rueda::Error>(HasSubstr("taken already")));
  const auto gathered = rueda::allgather_async(data, {.name = "gathered"});
  EXPECT_EQ(rueda::synchronize(gathered), data);
  EXPECT_THAT([&] { rueda::synchronize(gathered); },
              ThrowsMessage<rueda::Error>(HasSubstr("taken already")));
}

TEST_F(Cpp, NamesWithANulByteAreRefused) {
  std::vector<float> data(3, 2);
  EXPECT_THAT([&] { rueda::allreduce_(data, {.name = std::string("nul\0x", 5)}); },
              ThrowsMessage<rueda::Error>(HasSubstr("NUL")));
}

TEST_F(Cpp, ATimelineIsWrittenBetweenStartAndStop) {
  const std::string path = ::testing::TempDir() + "/cpp-timeline-" + std::to_string(getpid());
  std::vector<float> data(3, 2);
  rueda::allreduce_(data, {.name = "before"});
  rueda::start_timeline(path);
  rueda::allreduce_(data, {.name = "between"});
  EXPECT_THAT([&] { rueda::start_timeline(path); },
              ThrowsMessage<rueda::Error>(HasSubstr("is on already: " + path)));
  rueda::stop_timeline();
  rueda::allreduce_(data, {.name = "behind"});
  EXPECT_THAT([] { rueda::stop_timeline(); }, ThrowsMessage<rueda::Error>(HasSubstr("is off")));
  EXPECT_THAT([] { rueda::start_timeline(std::string("nul\0x", 5)); },
              ThrowsMessage<rueda::Error>(HasSubstr("NUL")));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  EXPECT_THAT(text.str(), AllOf(HasSubstr("{\"name\":\"between\"}"), EndsWith("\n]\n"),
                                Not(HasSubstr("before")), Not(HasSubstr("behind"))));
}

TEST_F(Cpp, KnobsThatComeTooLateAreRefused) {
  rueda::init();  // harmless
  EXPECT_THAT(
      [] {
        rueda::init({{"fusion_threshold", "1"}});
      },
      ThrowsMessage<rueda::Error>(HasSubstr("fusion_threshold")));
  EXPECT_EQ(rueda::size(), 1);
}

TEST_F(Cpp, ATensorKnowsItsShapeAndItsElements) {
  std::vector<float> data = {1, 2, 3, 4, 5, 6};
  const rueda::Tensor tensor = rueda::allreduce(rueda::TensorView(data.data(), {2, 3}));
  EXPECT_THAT(tensor.shape(), ElementsAre(2, 3));
  EXPECT_THAT(tensor.values<float>(), ::testing::ElementsAreArray(data));
  EXPECT_THAT([&] { tensor.values<int32_t>(); },
              ThrowsMessage<rueda::Error>(HasSubstr("of another type")));
}

TEST_F(Cpp, ATensorThatCannotBeIsAnErrorOfRuedas) {
  float data = 0;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{-3}, {int64_t{1} << 40, int64_t{1} << 40}}) {
    EXPECT_THAT([&] { rueda::allreduce(rueda::TensorView(&data, shape)); },
                ThrowsMessage<rueda::Error>(HasSubstr("too large")));
  }
  // More than a vector can have: the sanitizers end a program that asks for nearly as much.
  EXPECT_THAT([] { rueda::Tensor({int64_t{1} << 59}, RUEDA_COMPLEX128); },
              ThrowsMessage<rueda::Error>(HasSubstr("no memory for a tensor")));
}

// Pinned memory is the CPU's, under another name.
TEST_F(Cpp, PinnedMemoryIsTheCpus) {
  std::vector<float> data = {1, 2, 3};
  rueda::TensorView view(data);
  view.device = {RUEDA_CUDA_HOST, 0};
  EXPECT_THAT(rueda::allreduce(view, {.name = "a"}).values<float>(), ElementsAre(1, 2, 3));
  EXPECT_THAT(rueda::allgather(view, {.name = "g"}).values<float>(), ElementsAre(1, 2, 3));
  EXPECT_THAT(rueda::Tensor(view).values<float>(), ElementsAre(1, 2, 3));
  rueda::allreduce_(view, {.name = "b"});
  view.device.type = 10;  // another vendor's
  EXPECT_THAT([&] { rueda::allreduce(view, {.name = "c"}); },
              ThrowsMessage<rueda::Error>(HasSubstr("DLPack device type 10")));
  EXPECT_THAT([&] { rueda::Tensor copy(view); },
              ThrowsMessage<rueda::Error>(HasSubstr("DLPack device type 10")));
}

// What can't be changed, or is gone after the call, is no TensorView.
static_assert(std::is_convertible_v<std::vector<float>&, rueda::TensorView>);
static_assert(std::is_convertible_v<std::span<float>, rueda::TensorView>);
static_assert(!std::is_convertible_v<const std::vector<float>&, rueda::TensorView>);
static_assert(!std::is_convertible_v<std::vector<float>, rueda::TensorView>);
static_assert(!std::is_convertible_v<std::vector<bool>&, rueda::TensorView>);
static_assert(!std::is_convertible_v<std::vector<char>&, rueda::TensorView>);
static_assert(!std::is_convertible_v<rueda::Tensor, rueda::TensorView>);

// Nor is it taken by what goes on after the call.
template <typename T>
concept GoesOnWith = requires(T tensor, const std::string& name, rueda::ProcessSet set) {
  rueda::allreduce_async_(std::forward<T>(tensor),
                          {.name = name, .op = rueda::Sum, .process_set = {0}});
  rueda::allreduce_async_(std::forward<T>(tensor),
                          {.name = name, .op = rueda::Sum, .process_set = set});
  rueda::reduce_async_(std::forward<T>(tensor), 0, {.name = "name"});
  rueda::broadcast_async_(std::forward<T>(tensor), 0);
  rueda::recv_async(std::forward<T>(tensor), 0);
};
static_assert(GoesOnWith<std::vector<float>&>);
static_assert(GoesOnWith<std::array<float, 3>&>);
static_assert(GoesOnWith<float (&)[3]>);
static_assert(GoesOnWith<rueda::Tensor&>);
static_assert(GoesOnWith<std::span<float>>);
static_assert(GoesOnWith<rueda::TensorView>);
static_assert(GoesOnWith<const rueda::TensorView&>);
static_assert(!GoesOnWith<const std::vector<float>&>);
// Each by itself.
template <typename T>
concept AnyGoesOnWith = requires(T tensor) {
  rueda::allreduce_async_(std::forward<T>(tensor), {.name = "name"});
}
|| requires(T tensor) {
  rueda::reduce_async_(std::forward<T>(tensor), 0);
}
|| requires(T tensor) {
  rueda::broadcast_async_(std::forward<T>(tensor), 0);
}
|| requires(T tensor) {
  rueda::recv_async(std::forward<T>(tensor), 0);
};
static_assert(!AnyGoesOnWith<std::vector<float>>);
static_assert(!AnyGoesOnWith<std::array<float, 3>>);
static_assert(!AnyGoesOnWith<rueda::Tensor>);

// Braces without a word in them are options, too: this file compiles without a deprecated call.
TEST_F(Cpp, BracesAreOptions) {
  std::vector<float> data = {1, 2, 3};
  const std::vector<float> same = data;
  rueda::allreduce_(data, {});
  rueda::allreduce_({data.data(), {3}}, {.name = "view"});
  rueda::grouped_allreduce_({data, data}, {});
  rueda::synchronize(rueda::allreduce_async_(data, {}));
  rueda::synchronize(rueda::reduce_async_(data, 0, {.op = rueda::Max}));
  rueda::broadcast_(data, 0, {});
  EXPECT_EQ(rueda::allreduce(data, {}), same);
  EXPECT_EQ(rueda::reduce(data, 0, {}), same);
  EXPECT_EQ(rueda::reducescatter(data, {}), same);
  EXPECT_EQ(rueda::allgather(data, {}), same);
  EXPECT_EQ(rueda::gather(data, 0, {}), same);
  EXPECT_EQ(rueda::scatter(data, 0, {}), same);
  EXPECT_EQ(rueda::scatter(data, 0, {.splits = {3}}), same);
  EXPECT_EQ(rueda::alltoall(data, {}).tensor, same);
  EXPECT_EQ(rueda::alltoall(data, {.splits = {3}, .name = "a"}).tensor, same);
  EXPECT_EQ(rueda::broadcast_object("x", 0, {}), "x");
  EXPECT_THAT(rueda::allgather_object("x", {}), ElementsAre("x"));
}

TEST_F(Cpp, EveryOptionReachesTheOperation) {
  const auto refusal = [](const rueda::AllreduceOptions& options) {
    try {
      rueda::allreduce(std::vector<float>{1}, options);
    } catch (const rueda::Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal({.name = std::string(2000, 'n')}), HasSubstr("nnnn"));
  EXPECT_THAT(refusal({.process_set = {7}}), HasSubstr("process set 7"));
  EXPECT_THAT(refusal({.compression = "no such thing"}), HasSubstr("no such thing"));
  EXPECT_EQ(rueda::allreduce(std::vector<float>{1}, {.prescale_factor = 2, .postscale_factor = 3}),
            std::vector<float>{6});
  const rueda::AllreduceOptions urgent = {.priority = 4};
  EXPECT_EQ(rueda::detail::COperation(rueda::detail::CallOf(RUEDA_ALLREDUCE, urgent)).priority, 4);
}

TEST_F(Cpp, WhatIsNotInPlaceNeedsItsInputDuringTheCallOnly) {
  const auto handles = [] {
    std::vector<float> local(100'000, 2);
    auto pair =
        std::make_pair(rueda::allreduce_async(local, {.name = "a"}), rueda::allgather_async(local));
    std::fill(local.begin(), local.end(), 0.f);
    return pair;
  }();
  EXPECT_EQ(rueda::synchronize(handles.first), std::vector<float>(100'000, 2));
  EXPECT_EQ(rueda::synchronize(handles.second), std::vector<float>(100'000, 2));
}

// On every rank -------------------------------------------------------------------------------

struct World {
  rueda::testing::Setup setup;
  int size;
};
void PrintTo(const World& world, std::ostream* out) {
  *out << world.setup.name << " " << world.size;
}

std::vector<World> Worlds() {
  std::vector<World> worlds;
  for (const rueda::testing::Setup& setup : rueda::testing::ShmSetups()) {
    for (const int size : {2, 3}) worlds.push_back({setup, size});
  }
  return worlds;
}

class Ranks : public ::testing::TestWithParam<World> {
 protected:
  // The body's current context is its rank's.
  void Run(const std::function<void(int rank, int size)>& body, rueda::Knobs knobs = {}) {
    const auto& [setup, size] = GetParam();
    rueda::testing::RunRanks({size, setup, std::move(knobs)},
                             [&](rueda_context* context, int rank) {
                               rueda_set_thread_context(context);
                               body(rank, size);
                               rueda_set_thread_context(nullptr);
                             });
  }
};
INSTANTIATE_TEST_SUITE_P(All, Ranks, ::testing::ValuesIn(Worlds()), [](const auto& world) {
  return world.param.setup.name + "_" + std::to_string(world.param.size);
});

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

// How a call failed; fails the test when it did not.
rueda::Error Failure(const std::function<void()>& call) {
  try {
    call();
  } catch (const rueda::Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return rueda::Error(RUEDA_OK, "");
}

// 0 + 1 + ... + (size - 1).
int Sum(int size) {
  return size * (size - 1) / 2;
}

TEST_P(Ranks, AllreduceInAllItsForms) {
  Run([](int rank, int size) {
    const Floats mine(5, static_cast<float>(rank));
    const Floats sum(5, static_cast<float>(Sum(size)));
    EXPECT_EQ(rueda::allreduce(mine, {.name = "a", .op = rueda::Sum}), sum);
    EXPECT_EQ(rueda::allreduce(mine), Floats(5, static_cast<float>(size - 1) / 2));
    EXPECT_EQ(
        rueda::allreduce(
            mine, {.name = "a", .op = rueda::Sum, .prescale_factor = 2, .postscale_factor = 3}),
        Floats(5, static_cast<float>(6 * Sum(size))));
    EXPECT_EQ(
        rueda::synchronize(rueda::allreduce_async(Floats(mine), {.name = "b", .op = rueda::Sum})),
        sum);
    Floats data = mine;
    rueda::allreduce_(data, {.name = "c", .op = rueda::Sum});
    EXPECT_EQ(data, sum);
    data = mine;
    const rueda::Handle<> handle = rueda::allreduce_async_(data, {.name = "d", .op = rueda::Sum});
    rueda::synchronize(handle);
    EXPECT_TRUE(rueda::poll(handle));
    EXPECT_EQ(data, sum);
    data = mine;
    rueda::allreduce_(std::span(data).subspan(3), {.name = "e", .op = rueda::Sum});
    EXPECT_EQ(data[2], mine[2]);
    EXPECT_EQ(data[3], sum[3]);
  });
}

template <typename T>
void CheckSum(T mine, T expected) {
  EXPECT_EQ(rueda::allreduce(std::vector<T>(3, mine), {.name = "t", .op = rueda::Sum}),
            std::vector<T>(3, expected));
}

TEST_P(Ranks, EveryElementTypeIsSummed) {
  Run([](int, int size) {
    CheckSum<int8_t>(-2, static_cast<int8_t>(-2 * size));
    CheckSum<int16_t>(-300, static_cast<int16_t>(-300 * size));
    CheckSum<int32_t>(-70'000, -70'000 * size);
    CheckSum<int64_t>(-5'000'000'000, -5'000'000'000 * size);
    CheckSum<uint8_t>(70, static_cast<uint8_t>(70 * size));
    CheckSum<uint16_t>(20'000, static_cast<uint16_t>(20'000 * size));
    CheckSum<uint32_t>(1'000'000'000u, 1'000'000'000u * static_cast<uint32_t>(size));
    CheckSum<uint64_t>(1ull << 62, (1ull << 62) * static_cast<uint64_t>(size));
    CheckSum<float>(1.5f, 1.5f * static_cast<float>(size));
    CheckSum<double>(1e-9, size == 2 ? 2e-9 : 1e-9 + 1e-9 + 1e-9);
    CheckSum<std::complex<float>>({1, -2}, {static_cast<float>(size), -2.0f * size});
    CheckSum<std::complex<double>>({1, -2}, {1.0 * size, -2.0 * size});
    // 1.0 and its sums, by their bits.
    CheckSum<rueda::Float16>({0x3C00}, {static_cast<uint16_t>(size == 2 ? 0x4000 : 0x4200)});
    CheckSum<rueda::BFloat16>({0x3F80}, {static_cast<uint16_t>(size == 2 ? 0x4000 : 0x4040)});
    CheckSum<rueda::Float8E4M3fn>({0x38}, {static_cast<uint8_t>(size == 2 ? 0x40 : 0x44)});
    CheckSum<rueda::Float8E5M2>({0x3C}, {static_cast<uint8_t>(size == 2 ? 0x40 : 0x42)});
    std::array<bool, 2> flags = {rueda::rank() == 1, false};
    EXPECT_THAT(rueda::allreduce(flags, {.name = "f", .op = rueda::Max}).values<bool>(),
                ElementsAre(true, false));
    rueda::allreduce_(flags, {.name = "f", .op = rueda::Max});
    EXPECT_THAT(flags, ElementsAre(true, false));
  });
}

TEST_P(Ranks, EveryReduceOperationIsThere) {
  Run([](int rank, int size) {
    const auto reduced = [&](rueda::reduce_op op, int32_t mine) {
      return rueda::allreduce(Ints{mine}, {.name = "o", .op = op})[0];
    };
    EXPECT_EQ(reduced(rueda::Sum, rank), Sum(size));
    EXPECT_EQ(reduced(rueda::Average, 2 * rank), size - 1);
    EXPECT_EQ(reduced(rueda::AverageLive, 2 * rank), size - 1);
    EXPECT_EQ(reduced(rueda::Min, rank + 3), 3);
    EXPECT_EQ(reduced(rueda::Max, rank + 3), size + 2);
    EXPECT_EQ(reduced(rueda::Product, rank + 2), size == 2 ? 6 : 24);
    EXPECT_EQ(reduced(rueda::Band, 0xF0 | 1 << rank), 0xF0);
    EXPECT_EQ(reduced(rueda::Bor, 1 << rank), (1 << size) - 1);
    EXPECT_EQ(reduced(rueda::Bxor, 1), size % 2);
    // Orthogonal gradients are added, equal ones averaged.
    Floats gradient(4);
    gradient[static_cast<size_t>(rank)] = 2;
    const Floats sum = rueda::allreduce(gradient, {.name = "adasum", .op = rueda::Adasum});
    for (int i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(sum[static_cast<size_t>(i)], i < size ? 2 : 0);
  });
}

TEST_P(Ranks, GroupedAllreduceIsOneOperationOnAllTensors) {
  Run([](int rank, int size) {
    const auto mine = static_cast<float>(rank);
    const auto sum = static_cast<float>(Sum(size));
    const std::vector<Floats> group = {Floats(3, mine), Floats(2, 2 * mine)};
    const std::vector<Floats> expected = {Floats(3, sum), Floats(2, 2 * sum)};
    EXPECT_EQ(rueda::grouped_allreduce(group, {.name = "g", .op = rueda::Sum}), expected);
    EXPECT_EQ(rueda::synchronize(rueda::grouped_allreduce_async(group, {.op = rueda::Sum})),
              expected);
    Floats a(3, mine);
    Ints b(2, rank);
    rueda::grouped_allreduce_({a, b}, {.name = "h", .op = rueda::Sum});
    EXPECT_EQ(a, Floats(3, sum));
    EXPECT_EQ(b, Ints(2, Sum(size)));
    rueda::synchronize(rueda::grouped_allreduce_async_({a, b}, {.name = "i", .op = rueda::Max}));
    EXPECT_EQ(b, Ints(2, Sum(size)));
    const std::vector<rueda::TensorView> views = {a, b};
    const std::vector<rueda::Tensor> tensors =
        rueda::grouped_allreduce(views, {.name = "j", .op = rueda::Sum});
    EXPECT_EQ(tensors[0].values<float>()[2], sum * static_cast<float>(size));
    EXPECT_EQ(tensors[1].values<int32_t>()[1], Sum(size) * size);
    // A group of one is a group: its name has a number too.
    const rueda::Error error = Failure([&] {
      if (rank == 0) {
        rueda::allreduce_(b, {.name = "k.0", .op = rueda::Max});
      } else {
        rueda::grouped_allreduce_({a}, {.name = "k", .op = rueda::Max});
      }
    });
    EXPECT_THAT(error.what(), HasSubstr("'k.0'"));
  });
}

TEST_P(Ranks, ReduceReachesTheRootAlone) {
  Run([](int rank, int size) {
    const int root = size - 1;
    const Ints mine(3, rank + 1), sum(3, Sum(size) + size);
    EXPECT_EQ(rueda::reduce(mine, root, {.name = "r", .op = rueda::Sum}),
              rank == root ? sum : Ints());
    EXPECT_EQ(rueda::synchronize(rueda::reduce_async(mine, root, {.name = "s", .op = rueda::Sum})),
              rank == root ? sum : Ints());
    Ints data = mine;
    rueda::reduce_(data, root, {.name = "t", .op = rueda::Sum});
    EXPECT_EQ(data, rank == root ? sum : mine);
    data = mine;
    rueda::synchronize(rueda::reduce_async_(data, 0, {.name = "u", .op = rueda::Sum}));
    EXPECT_EQ(data, rank == 0 ? sum : mine);
  });
}

TEST_P(Ranks, ReducescatterGivesEachRankItsRows) {
  Run([](int rank, int size) {
    Ints mine(static_cast<size_t>(2 * size + 1));
    std::iota(mine.begin(), mine.end(), rank);  // rank 0 gets one row more
    const int first = rank == 0 ? 0 : 2 * rank + 1;
    Ints expected;
    for (int i = first; i < 2 * rank + 3; ++i) expected.push_back(size * i + Sum(size));
    EXPECT_EQ(rueda::reducescatter(mine, {.name = "r", .op = rueda::Sum}), expected);
    EXPECT_EQ(rueda::synchronize(rueda::reducescatter_async(mine, {.name = "s", .op = rueda::Sum})),
              expected);
    const std::vector<Ints> both = {mine, mine};
    EXPECT_THAT(rueda::grouped_reducescatter(both, {.name = "g", .op = rueda::Sum}),
                ElementsAre(expected, expected));
    EXPECT_THAT(rueda::synchronize(
                    rueda::grouped_reducescatter_async(both, {.name = "h", .op = rueda::Sum})),
                ElementsAre(expected, expected));
    const rueda::Tensor rows = rueda::reducescatter(rueda::TensorView(mine.data(), {size, 2}),
                                                    {.name = "v", .op = rueda::Sum});
    EXPECT_THAT(rows.shape(), ElementsAre(1, 2));
    EXPECT_THAT(rows.values<int32_t>(),
                ElementsAre(size * 2 * rank + Sum(size), size * (2 * rank + 1) + Sum(size)));
  });
}

TEST_P(Ranks, BroadcastGivesAllTheRootsTensor) {
  Run([](int rank, int size) {
    const int root = size - 1;
    const Ints mine(3, rank), roots(3, root);
    EXPECT_EQ(rueda::broadcast(mine, root, {.name = "b"}), roots);
    EXPECT_EQ(rueda::synchronize(rueda::broadcast_async(mine, root, {.name = "c"})), roots);
    Ints data = mine;
    rueda::broadcast_(data, root, {.name = "d"});
    EXPECT_EQ(data, roots);
    data = mine;
    rueda::synchronize(rueda::broadcast_async_(data, 0, {.name = "e"}));
    EXPECT_EQ(data, Ints(3, 0));
  });
}

TEST_P(Ranks, AllgatherJoinsWhatEachRankHas) {
  Run([](int rank, int size) {
    const Ints mine(static_cast<size_t>(rank), rank);  // rank 0 has nothing
    Ints all;
    std::vector<int64_t> rows;
    for (int r = 0; r < size; ++r) {
      all.insert(all.end(), static_cast<size_t>(r), r);
      rows.push_back(r);
    }
    EXPECT_EQ(rueda::allgather(mine, {.name = "a"}), all);
    const auto handle = rueda::allgather_async(Ints(mine), {.name = "b"});
    EXPECT_EQ(rueda::synchronize(handle), all);
    EXPECT_EQ(rueda::received_splits(handle), rows);
    const std::vector<Ints> both = {mine, {}};
    EXPECT_THAT(rueda::grouped_allgather(both, {.name = "g"}), ElementsAre(all, Ints()));
    const auto group = rueda::grouped_allgather_async(both, {.name = "h"});
    EXPECT_THAT(rueda::synchronize(group), ElementsAre(all, Ints()));
    EXPECT_EQ(rueda::received_splits(group, 0), rows);
    std::vector<double> values(4, rank);
    const rueda::Tensor tensor =
        rueda::allgather(rueda::TensorView(values.data(), {1, 2, 2}), {.name = "t"});
    EXPECT_THAT(tensor.shape(), ElementsAre(size, 2, 2));
    EXPECT_EQ(tensor.values<double>().back(), size - 1);
    const rueda::Tensor none =
        rueda::allgather(rueda::TensorView(values.data(), {0, 2}), {.name = "n"});
    EXPECT_THAT(none.shape(), ElementsAre(0, 2));
  });
}

TEST_P(Ranks, GatherReachesTheRootAlone) {
  Run([](int rank, int size) {
    Ints all;
    for (int r = 0; r < size; ++r) all.insert(all.end(), {r, r});
    const Ints mine(2, rank);
    EXPECT_EQ(rueda::gather(mine, 1, {.name = "g"}), rank == 1 ? all : Ints());
    const auto handle = rueda::gather_async(mine, 0, {.name = "h"});
    EXPECT_EQ(rueda::synchronize(handle), rank == 0 ? all : Ints());
    if (rank == 0) {
      EXPECT_EQ(rueda::received_splits(handle), std::vector<int64_t>(size, 2));
    }
    Ints copy = mine;
    const rueda::Tensor tensor = rueda::gather(rueda::TensorView(copy), 0);
    EXPECT_THAT(tensor.shape(), ElementsAre(rank == 0 ? 2 * size : 0));
  });
}

TEST_P(Ranks, ScatterGivesEachRankItsRowsOfTheRoots) {
  Run([](int rank, int size) {
    Ints whole;
    std::vector<int64_t> splits;
    for (int r = 0; r < size; ++r) {  // r rows for rank r
      whole.insert(whole.end(), static_cast<size_t>(r), r);
      splits.push_back(r);
    }
    const Ints mine = rank == 1 ? whole : Ints();
    const Ints expected(static_cast<size_t>(rank), rank);
    EXPECT_EQ(rueda::scatter(mine, 1, {.splits = splits, .name = "s"}), expected);
    EXPECT_EQ(rueda::synchronize(rueda::scatter_async(mine, 1, {.splits = splits, .name = "t"})),
              expected);
    Ints equal(static_cast<size_t>(2 * size));
    std::iota(equal.begin(), equal.end(), 0);
    EXPECT_THAT(rueda::scatter(equal, 0, {.name = "e"}), ElementsAre(2 * rank, 2 * rank + 1));
    const rueda::Tensor row = rueda::scatter(rueda::TensorView(equal.data(), {size, 1, 2}), 0);
    EXPECT_THAT(row.shape(), ElementsAre(1, 1, 2));
  });
}

TEST_P(Ranks, AlltoallGivesEachRankWhatIsForItAndHowMuchCameFromWhom) {
  Run([](int rank, int size) {
    Ints mine, expected;
    std::vector<int64_t> splits;
    for (int to = 0; to < size; ++to) {  // `to` rows for rank `to`
      mine.insert(mine.end(), static_cast<size_t>(to), 10 * rank + to);
      splits.push_back(to);
      expected.insert(expected.end(), static_cast<size_t>(rank), 10 * to + rank);
    }
    const std::vector<int64_t> received(static_cast<size_t>(size), rank);
    const rueda::Received<Ints> result = rueda::alltoall(mine, {.splits = splits, .name = "a"});
    EXPECT_EQ(result.tensor, expected);
    EXPECT_EQ(result.splits, received);
    const auto handle = rueda::alltoall_async(mine, {.splits = splits, .name = "b"});
    const auto later = rueda::synchronize(handle);
    EXPECT_EQ(later.tensor, expected);
    EXPECT_EQ(later.splits, received);
    std::vector<float> equal(static_cast<size_t>(2 * size), static_cast<float>(rank));
    const auto tensor = rueda::alltoall(rueda::TensorView(equal.data(), {size, 2})).tensor;
    EXPECT_THAT(tensor.shape(), ElementsAre(size, 2));
    EXPECT_EQ(tensor.values<float>().back(), static_cast<float>(size - 1));
  });
}

TEST_P(Ranks, SendAndRecvGoAroundInARing) {
  Run([](int rank, int size) {
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    Ints got(4, -1), again(4, -1);
    const auto sent = rueda::send_async(Ints(4, rank), next, {.name = "halo"});  // the input may go
    rueda::recv(got, previous, {.name = "halo"});
    rueda::synchronize(sent);
    EXPECT_EQ(got, Ints(4, previous));
    const auto received = rueda::recv_async(again, previous);
    const Ints mine(4, rank);
    rueda::send(mine, next);
    rueda::synchronize(received);
    EXPECT_EQ(again, Ints(4, previous));
  });
}

TEST_P(Ranks, ObjectsAreStringsOfBytesOfAnySize) {
  Run([](int rank, int size) {
    const std::string mine(static_cast<size_t>(1000 * rank), static_cast<char>(rank));
    EXPECT_EQ(rueda::broadcast_object(mine, 1, {.name = "o"}), std::string(1000, '\1'));
    EXPECT_EQ(rueda::broadcast_object(mine, 0), "");
    const std::vector<std::string> all = rueda::allgather_object(mine, {.name = "p"});
    ASSERT_EQ(all.size(), static_cast<size_t>(size));
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(all[static_cast<size_t>(r)],
                std::string(static_cast<size_t>(1000 * r), static_cast<char>(r)));
    }
  });
}

TEST_P(Ranks, JoinTellsWhoWasLastAndAverageLiveCountsTheOthers) {
  Run([](int rank, int size) {
    if (rank != 0) {  // completes only when rank 0 has joined
      const Floats ones(3, 1);
      EXPECT_EQ(rueda::allreduce(ones, {.name = "live", .op = rueda::AverageLive}), ones);
      EXPECT_EQ(rueda::allreduce(ones, {.name = "sum", .op = rueda::Sum}),
                Floats(3, static_cast<float>(size - 1)));
    }
    EXPECT_GT(rueda::join(), 0);
    rueda::barrier();
    rueda::synchronize(rueda::barrier_async());
  });
}

TEST_P(Ranks, ProcessSetsComeAndGo) {
  Run(
      [](int rank, int size) {
        EXPECT_THAT(rueda::ProcessSet{1}.ranks(), ElementsAre(0));  // from the start
        std::vector<int> others(static_cast<size_t>(size - 1));
        std::iota(others.begin(), others.end(), 1);
        const rueda::ProcessSet set = rueda::add_process_set(others);
        EXPECT_EQ(set.size(), size - 1);
        EXPECT_EQ(set.ranks(), others);
        EXPECT_EQ(set.included(), rank > 0);
        EXPECT_EQ(set.rank(), rank - 1);
        if (set.included()) {
          EXPECT_EQ(
              rueda::allreduce(Ints{rank}, {.name = "s", .op = rueda::Sum, .process_set = set}),
              Ints{Sum(size)});
          EXPECT_EQ(rueda::allgather_object("x", {.process_set = set}).size(), others.size());
          EXPECT_GT(rueda::join(set), 0);
          rueda::barrier(set);
        }
        rueda::barrier();
        rueda::remove_process_set(set);
        EXPECT_FALSE(set.included());
        EXPECT_THROW(rueda::remove_process_set(set), rueda::Error);
      },
      {{"process_sets", "0"}});
}

TEST_P(Ranks, MemoryOfTheSharedAllocatorIsReducedLikeAnyOther) {
  Run([](int rank, int size) {
    std::vector<float, rueda::SharedAllocator<float>> data(100'000, static_cast<float>(rank));
    rueda::allreduce_(data, {.name = "s", .op = rueda::Sum});
    EXPECT_EQ(data.front(), static_cast<float>(Sum(size)));
    EXPECT_EQ(data.back(), static_cast<float>(Sum(size)));
  });
}

TEST_P(Ranks, DisagreementIsNotRecoverable) {
  Run([](int rank, int) {
    const Ints mine(static_cast<size_t>(rank + 1));
    const auto check = [](const rueda::MismatchError& error) {
      EXPECT_EQ(error.status(), RUEDA_INVALID_ARGUMENT);
      EXPECT_FALSE(error.recoverable());
      EXPECT_EQ(error.rank(), -1);
      EXPECT_EQ(error.operation(), "allreduce");
      EXPECT_EQ(error.tensor(), "shape");
      EXPECT_EQ(error.host() + error.cause(), "");
      EXPECT_EQ(error.membership(), rueda::membership());
    };
    try {
      rueda::allreduce(mine, {.name = "shape"});
      ADD_FAILURE() << "no error";
    } catch (const rueda::MismatchError& error) {
      check(error);
    }
    const auto handle = rueda::allreduce_async(mine, {.name = "shape"});
    EXPECT_TRUE(handle.wait_for(std::chrono::hours(1)));  // it has ended, if not well
    try {
      rueda::synchronize(handle);
      ADD_FAILURE() << "no error";
    } catch (const rueda::MismatchError& error) {
      check(error);
    }
  });
}

// A mistake of this rank's alone is no mismatch.
TEST_F(Cpp, AMistakeOfOnesOwnIsNoMismatch) {
  try {
    rueda::broadcast(Ints{1}, 3);
    ADD_FAILURE() << "no error";
  } catch (const rueda::MismatchError& error) {
    ADD_FAILURE() << error.what();
  } catch (const rueda::Error& error) {
    EXPECT_EQ(error.status(), RUEDA_INVALID_ARGUMENT);
    EXPECT_EQ(error.operation() + error.host() + error.cause() + error.tensor(), "");
  }
}

TEST_P(Ranks, WaitForTellsWhetherAnOperationHasEnded) {
  Run([](int rank, int) {
    Ints data = {1};
    if (rank == 0) {
      const rueda::Handle<> handle = rueda::allreduce_async_(data, {.name = "late"});
      EXPECT_FALSE(handle.wait_for(std::chrono::milliseconds(1)));
      EXPECT_FALSE(handle.wait_for(std::chrono::seconds(-1)));
      rueda::barrier();  // the others come to the operation behind it
      EXPECT_TRUE(handle.wait_for(std::chrono::duration<double>::max()));
      EXPECT_TRUE(handle.wait_for(std::chrono::nanoseconds(0)));
    } else {
      rueda::barrier();
      rueda::allreduce_(data, {.name = "late"});
    }
  });
}

TEST_P(Ranks, ThenIsCalledOnceHoweverItEnds) {
  Run([](int rank, int size) {
    struct Calls {
      std::mutex mutex;
      std::condition_variable changed;
      std::vector<std::string> texts;
      void Add(const rueda::Error* error) {
        const std::lock_guard lock(mutex);
        const auto* mismatch = dynamic_cast<const rueda::MismatchError*>(error);
        texts.push_back(error == nullptr ? "well" : mismatch == nullptr ? "" : mismatch->tensor());
        changed.notify_all();
      }
      void Await(size_t count) {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return texts.size() == count; });
      }
    } calls;
    const auto add = [&](const rueda::Error* error) { calls.Add(error); };
    const Ints mine(3, rank);
    const auto handle = rueda::allreduce_async(mine, {.name = "a", .op = rueda::Sum});
    handle.then(add);
    EXPECT_EQ(rueda::synchronize(handle), Ints(3, Sum(size)));
    handle.then(add);  // it has ended
    calls.Await(2);
    // Nobody has the handle when it fails.
    rueda::allreduce_async(Ints(static_cast<size_t>(rank + 1)), {.name = "b"}).then(add);
    calls.Await(3);
    EXPECT_THAT(calls.texts, ElementsAre("well", "well", "b"));
    // A callback may take the result, and start what comes next.
    const auto next = rueda::allreduce_async(mine, {.name = "c", .op = rueda::Sum});
    Ints sums;
    next.then([&, next](const rueda::Error* error) {
      sums = rueda::allreduce(rueda::synchronize(next), {.name = "d", .op = rueda::Max});
      calls.Add(error);
    });
    calls.Await(4);
    EXPECT_EQ(sums, Ints(3, Sum(size)));
    // Memory that is borrowed is free when the handle has gone, whatever was to come then.
    {
      Ints local(50'000, rank);
      rueda::allreduce_async_(local, {.name = "e", .op = rueda::Sum}).then(add);
      EXPECT_EQ(local, Ints(50'000, Sum(size)));
    }
    calls.Await(5);
  });
}

TEST_P(Ranks, WaitAllGivesResultsInOrderOrTheFirstError) {
  Run([](int rank, int size) {
    std::vector<rueda::Handle<Ints>> handles;
    for (int i = 0; i < 5; ++i) {
      handles.push_back(rueda::allreduce_async(Ints{i + rank}, {.op = rueda::Sum}));
    }
    const std::vector<Ints> sums = rueda::wait_all(handles);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)], Ints{i * size + Sum(size)});
    Ints a = {rank}, b = {rank};
    const auto first = rueda::allreduce_async_(a, {.op = rueda::Sum});
    rueda::wait_all({first, rueda::allreduce_async_(b, {.op = rueda::Max})});
    EXPECT_EQ(a, Ints{Sum(size)});
    EXPECT_EQ(b, Ints{size - 1});
    rueda::wait_all(std::vector<rueda::Handle<>>());
    // What went well is not lost with what did not.
    const Ints uneven(static_cast<size_t>(rank + 1));
    handles = {rueda::allreduce_async(Ints{rank}, {.name = "well", .op = rueda::Sum}),
               rueda::allreduce_async(uneven, {.name = "x"}),
               rueda::allreduce_async(uneven, {.name = "y"})};
    EXPECT_THAT(Failure([&] { rueda::wait_all(handles); }).what(), HasSubstr("'x'"));
    EXPECT_TRUE(rueda::poll(handles[2]));
    EXPECT_EQ(rueda::synchronize(handles[0]), Ints{Sum(size)});
  });
}

TEST_P(Ranks, NumbersAreTensorsOfNoDimension) {
  Run([](int rank, int size) {
    const double mine = rank;
    const double sum = Sum(size);
    EXPECT_EQ(rueda::allreduce(mine, {.op = rueda::Sum}), sum);
    EXPECT_EQ(rueda::allreduce(rank, {.op = rueda::Max}), size - 1);  // of int32
    EXPECT_EQ(rueda::allreduce(rank == 1, {.op = rueda::Max}), true);
    EXPECT_EQ(rueda::allreduce(std::complex<float>(0, 1), {.op = rueda::Sum}),
              std::complex<float>(0, static_cast<float>(size)));
    EXPECT_EQ(rueda::synchronize(rueda::allreduce_async(mine, {.op = rueda::Sum})), sum);
    double number = mine;
    rueda::allreduce_(number, {.op = rueda::Sum});
    EXPECT_EQ(number, sum);
    number = mine;
    rueda::synchronize(rueda::allreduce_async_(number, {.op = rueda::Sum}));
    EXPECT_EQ(number, sum);
    float half = 0.5f;
    Ints ints = {rank};
    rueda::grouped_allreduce_({half, ints}, {.op = rueda::Sum});
    EXPECT_EQ(half, 0.5f * static_cast<float>(size));
    EXPECT_EQ(rueda::reduce(mine, 1, {.op = rueda::Sum}), rank == 1 ? sum : 0);
    EXPECT_EQ(rueda::broadcast(mine, 1), 1);
    rueda::broadcast_(number, 1);
    std::vector<double> all;
    for (int r = 0; r < size; ++r) all.push_back(r);
    EXPECT_EQ(rueda::allgather(mine), all);
    EXPECT_EQ(rueda::synchronize(rueda::allgather_async(mine)), all);
    EXPECT_EQ(rueda::gather(mine, 0), rank == 0 ? all : std::vector<double>());
    EXPECT_EQ(rueda::allgather(rank == 1).values<bool>()[1], true);
    if (rank == 0) rueda::send(2.5, 1);
    if (rank == 1) rueda::recv(number, 0);
    EXPECT_EQ(number, rank == 1 ? 2.5 : sum);
    // One that meets a vector of one is told so.
    EXPECT_THAT(Failure([&] {
                  rank == 0 ? (void)rueda::allreduce(1.0, {.name = "n"})
                            : (void)rueda::allreduce(std::vector<double>{1}, {.name = "n"});
                }).what(),
                AllOf(HasSubstr("[]"), HasSubstr("[1]")));
  });
}
static_assert(std::is_convertible_v<double&, rueda::TensorView>);
static_assert(!std::is_convertible_v<const double&, rueda::TensorView>);
static_assert(!std::is_convertible_v<double, rueda::TensorView>);
static_assert(!std::is_convertible_v<char&, rueda::TensorView>);
static_assert(GoesOnWith<double&>);
static_assert(!AnyGoesOnWith<double>);
static_assert(!AnyGoesOnWith<const double&>);

// A stopped rank may write to our memory when it goes on. What can't be freed because of that is
// freed with what is freed after the rank has ended.
TEST(CppLoss, SharedMemoryThatAStoppedRankMayWriteToIsFreedLater) {
  int ready[2], stopped[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(stopped), 0);
  char byte = 0;
  int pid_of_1 = 0;
  const std::vector<int> pids =
      rueda::testing::StartProcesses({2}, [&](int rank, const rueda::testing::Join& join) {
        rueda_context* context = nullptr;
        ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
        rueda_set_default_context(context);
        if (rank == 1) {
          EXPECT_EQ(write(ready[1], &byte, 1), 1);
          while (true) pause();
        }
        rueda::SharedAllocator<int> allocator;
        int* const first = allocator.allocate(1);
        int* const second = allocator.allocate(1);
        EXPECT_EQ(read(stopped[0], &pid_of_1, sizeof pid_of_1), sizeof pid_of_1);
        rueda_abort(context, "as this test does");
        rueda_context_destroy(context);
        ::testing::internal::CaptureStderr();
        allocator.deallocate(first, 1);
        EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                    AllOf(HasSubstr("SharedAllocator: "), HasSubstr("rank 1")));
        kill(pid_of_1, SIGKILL);
        allocator.deallocate(second, 1);
        EXPECT_EQ(rueda_mem_free(first), RUEDA_NOT_FOUND) << "it was not freed";
      });
  EXPECT_EQ(read(ready[0], &byte, 1), 1);
  kill(pids[1], SIGSTOP);
  EXPECT_EQ(waitpid(pids[1], nullptr, WUNTRACED), pids[1]);
  EXPECT_EQ(write(stopped[1], &pids[1], sizeof pids[1]), sizeof pids[1]);
  EXPECT_EQ(rueda::testing::AwaitProcess(pids[0]), 0);
  EXPECT_EQ(rueda::testing::AwaitProcess(pids[1]), SIGKILL);
  for (const int end : {ready[0], ready[1], stopped[0], stopped[1]}) close(end);
}

// What was in flight then and what is refused later tell the same.
TEST(CppLoss, ErrorsTellWhoWasLost) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const std::vector<int> pids =
      rueda::testing::StartProcesses({3}, [&](int rank, const rueda::testing::Join& join) {
        rueda_context* context = nullptr;
        ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
        rueda_set_default_context(context);
        int pid_of_1 = getpid();
        if (rank == 1) {
          for (int other = 0; other < 2; ++other) {
            EXPECT_EQ(write(told[1], &pid_of_1, sizeof pid_of_1), sizeof pid_of_1);
          }
          raise(SIGKILL);
        }
        EXPECT_EQ(read(told[0], &pid_of_1, sizeof pid_of_1), sizeof pid_of_1);
        Ints data(3);
        const auto check = [&](const std::function<void()>& call) {
          try {
            call();
            ADD_FAILURE() << "no error";
          } catch (const rueda::LostRankError& error) {
            EXPECT_EQ(error.status(), RUEDA_ABORTED) << error.what();
            EXPECT_EQ(error.rank(), 1) << error.what();
            EXPECT_EQ(error.pid(), pid_of_1) << error.what();
            EXPECT_THAT(error.what(), HasSubstr("host " + error.host() + ",")) << error.host();
            EXPECT_THAT(error.what(), HasSubstr(": " + error.cause())) << error.cause();
            EXPECT_NE(error.cause(), "");
            EXPECT_EQ(error.membership(), 1u);
            EXPECT_TRUE(error.recoverable()) << error.what();
          }
        };
        check([] { rueda::barrier(); });
        check([&] { rueda::allreduce_(data, {.name = "refused"}); });
        check([&] { (void)rueda::allreduce_async_(data, {.name = "refused"}); });
        check([] { rueda::broadcast_object("", 0); });
        check([] { rueda::join(); });
        check([] { rueda::add_process_set({0}); });
        EXPECT_FALSE(rueda::is_initialized());
        check([] { rueda::shutdown(); });
      });
  for (size_t rank = 0; rank < pids.size(); ++rank) {
    EXPECT_EQ(rueda::testing::AwaitProcess(pids[rank]), rank == 1 ? SIGKILL : 0) << rank;
  }
}

TEST_P(Ranks, AnAbortEndsTheMembershipAndAResetBeginsTheNext) {
  Run([](int rank, int size) {
    const uint64_t before = rueda::membership();
    if (rank == 0) rueda::abort("enough");
    try {
      while (true) rueda::barrier();
    } catch (const rueda::LostRankError& error) {
      ADD_FAILURE() << "nobody was lost: " << error.what();
    } catch (const rueda::Error& error) {
      EXPECT_EQ(error.status(), RUEDA_ABORTED);
      EXPECT_THAT(error.what(), HasSubstr("enough"));
      EXPECT_EQ(error.rank(), 0) << "who called abort";
      EXPECT_EQ(error.pid(), 0) << "nobody was lost";
    }
    rueda::reset();
    EXPECT_EQ(rueda::membership(), before + 1);
    EXPECT_EQ(rueda::allreduce(Ints{1}, {.name = "again", .op = rueda::Sum}), Ints{size});
  });
}

}  // namespace
