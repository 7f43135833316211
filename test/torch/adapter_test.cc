// Every function of the adapter on tensors, against values worked out by hand.
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <thread>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"
#include "test/torch/tensors.h"

namespace hvd = rueda::libtorch;

namespace {

using rueda::test::RankSum;
using rueda::test::Same;
using rueda::test::Six;
using rueda::test::StatusOf;

RANKS_TEST(Adapter, AllreduceCombinesAndLeavesItsInputAlone, 1, 2, 3) {
  const int n = hvd::size();
  const torch::Tensor x = Six(hvd::rank() + 1);
  torch::Tensor product = torch::ones({2, 3});
  for (int rank = 0; rank < n; ++rank) product *= Six(rank + 1);

  EXPECT_TRUE(Same(hvd::allreduce(x), Six(1 + RankSum() / n)));
  EXPECT_TRUE(Same(hvd::allreduce(x, {.name = "sum", .op = hvd::Sum}), Six(1) * n + RankSum()));
  EXPECT_TRUE(Same(hvd::allreduce(x, {.name = "min", .op = hvd::Min}), Six(1)));
  EXPECT_TRUE(Same(hvd::allreduce(x, {.name = "max", .op = hvd::Max}), Six(n)));
  EXPECT_TRUE(Same(hvd::allreduce(x, {.name = "product", .op = hvd::Product}), product));
  EXPECT_TRUE(Same(
      hvd::allreduce(
          x, {.name = "scaled", .op = hvd::Sum, .prescale_factor = 0.5, .postscale_factor = 4}),
      (Six(1) * n + RankSum()) * 2));
  EXPECT_TRUE(Same(x, Six(hvd::rank() + 1)));
}

RANKS_TEST(Adapter, InPlaceGoesInAndComesOutByPointer, 1, 2, 3) {
  torch::Tensor x = Six(hvd::rank());
  const void* data = x.data_ptr();
  const torch::Tensor result = hvd::allreduce_(x, {.name = "x", .op = hvd::Sum});
  EXPECT_TRUE(result.is_same(x));
  EXPECT_EQ(result.data_ptr(), data);
  EXPECT_TRUE(Same(x, Six(0) * hvd::size() + RankSum()));
}

// Counts the bytes of torch's tensors that are made while it lives, on any thread.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_, 100); }
  c10::DataPtr allocate(size_t bytes) override {
    bytes_ += bytes;
    return before_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    before_->copy_data(to, from, bytes);
  }
  size_t TakeBytes() { return bytes_.exchange(0); }

 private:
  c10::Allocator* const before_;
  std::atomic<size_t> bytes_{0};
};

RANKS_TEST(Adapter, ContiguousTensorsAreNotCopied, 1, 2) {
  const torch::Tensor x = torch::full({1000}, hvd::rank() + 1.f);
  const torch::Tensor rows = torch::ones({6, 10}).narrow(0, 2, 3);  // contiguous in the middle
  torch::Tensor channels = torch::ones({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast);
  CountingAllocator allocator;
  hvd::allreduce_(x, {.name = "x"});
  hvd::allreduce_(rows, {.name = "rows"});
  hvd::synchronize(hvd::broadcast_async_(x, 0));
  EXPECT_EQ(allocator.TakeBytes(), 0u);
  EXPECT_EQ(hvd::allreduce(x, {.name = "x"}).numel(), 1000);
  EXPECT_EQ(allocator.TakeBytes(), 4000u) << "the result";
  EXPECT_EQ(hvd::allgather(x).size(0), 1000 * hvd::size());
  EXPECT_EQ(allocator.TakeBytes(), 4000u * hvd::size()) << "the result";
  hvd::allreduce_(channels, {.name = "channels"});
  EXPECT_EQ(allocator.TakeBytes(), 480u) << "the copy of what is not contiguous";

  // In place is in place: nothing is left for synchronize to do.
  const hvd::Handle handle =
      hvd::allreduce_async_(x.fill_(hvd::rank()), {.name = "x", .op = hvd::Sum});
  while (!hvd::poll(handle)) std::this_thread::yield();
  EXPECT_TRUE(Same(x, torch::full({1000}, RankSum(), torch::kFloat)));
}

RANKS_TEST(Adapter, HandlesGiveResults, 1, 2, 3) {
  const int n = hvd::size();
  torch::Tensor a = Six(hvd::rank());
  const torch::Tensor b = Six(hvd::rank());
  const hvd::Handle in_place = hvd::allreduce_async_(a, {.name = "a"});
  const hvd::Handle apart = hvd::allreduce_async(b, {.name = "b", .op = hvd::Sum});
  while (!hvd::poll(apart)) std::this_thread::yield();
  EXPECT_TRUE(Same(hvd::synchronize(apart), Six(0) * n + RankSum()));
  EXPECT_TRUE(Same(hvd::synchronize(apart), Six(0) * n + RankSum())) << "a second time";
  EXPECT_TRUE(hvd::synchronize(in_place).is_same(a));
  EXPECT_TRUE(Same(a, Six(RankSum() / n)));
  EXPECT_TRUE(hvd::poll(in_place));
  EXPECT_EQ(StatusOf([] { hvd::synchronize(hvd::Handle()); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Adapter, NamesMatchInAnyOrder, 2, 3) {
  std::vector<int> order(20);
  std::iota(order.begin(), order.end(), 0);
  if (hvd::rank() == 1) std::reverse(order.begin(), order.end());
  if (hvd::rank() == 2) std::rotate(order.begin(), order.begin() + 7, order.end());
  std::vector<hvd::Handle> handles(order.size());
  for (const int i : order) {
    const std::string name = "tensor" + std::to_string(i);
    const torch::Tensor x = torch::full({i % 5, 3}, i + hvd::rank());
    if (i % 3 == 0) handles[i] = hvd::allreduce_async(x, {.name = name, .op = hvd::Sum});
    if (i % 3 == 1) handles[i] = hvd::broadcast_async(x, 1, {.name = name});
    if (i % 3 == 2) handles[i] = hvd::allgather_async(x, {.name = name});
  }
  for (int i = 19; i >= 0; --i) {
    const torch::Tensor got = hvd::synchronize(handles[i]);
    const torch::Tensor x = torch::full({i % 5, 3}, i);
    if (i % 3 == 0) {
      EXPECT_TRUE(Same(got, x * hvd::size() + static_cast<int64_t>(RankSum()))) << i;
    }
    if (i % 3 == 1) {
      EXPECT_TRUE(Same(got, x + 1)) << i;
    }
    if (i % 3 == 2) {
      std::vector<torch::Tensor> parts;
      for (int rank = 0; rank < hvd::size(); ++rank) parts.push_back(x + rank);
      EXPECT_TRUE(Same(got, torch::cat(parts))) << i;
    }
  }
}

RANKS_TEST(Adapter, GroupsAreReducedTogether, 1, 2, 3) {
  const int n = hvd::size();
  const std::vector<torch::Tensor> x = {Six(hvd::rank()), torch::full({}, 1.f),
                                        torch::full({4}, 2.f)};
  const std::vector<torch::Tensor> sum =
      hvd::grouped_allreduce(x, {.name = "group", .op = hvd::Sum});
  ASSERT_EQ(sum.size(), 3u);
  EXPECT_TRUE(Same(sum[0], Six(0) * n + RankSum()));
  EXPECT_TRUE(Same(sum[1], torch::full({}, 1.f * n)));
  EXPECT_TRUE(Same(sum[2], torch::full({4}, 2.f * n)));
  EXPECT_TRUE(Same(x[0], Six(hvd::rank())));

  std::vector<torch::Tensor> y = {Six(hvd::rank()), torch::full({4}, 2.f)};
  const hvd::GroupHandle in_place = hvd::grouped_allreduce_async_(y, {.name = "in place"});
  const hvd::GroupHandle apart = hvd::grouped_allreduce_async(x);
  EXPECT_TRUE(Same(hvd::synchronize(apart)[2], x[2]));
  EXPECT_TRUE(hvd::synchronize(in_place)[0].is_same(y[0]));
  EXPECT_TRUE(Same(y[0], Six(RankSum() / n)));
  hvd::grouped_allreduce_(y, {.name = "again", .op = hvd::Sum});
  EXPECT_TRUE(Same(y[1], torch::full({4}, 2.f * n)));
}

RANKS_TEST(Adapter, BroadcastGivesTheRootsTensor, 1, 2, 3) {
  const int root = hvd::size() - 1;
  torch::Tensor x = Six(hvd::rank());
  EXPECT_TRUE(Same(hvd::broadcast(x, root, {.name = "b"}), Six(root)));
  EXPECT_TRUE(Same(x, Six(hvd::rank())));
  EXPECT_TRUE(Same(hvd::synchronize(hvd::broadcast_async(x, root)), Six(root)));
  torch::Tensor y = Six(hvd::rank());
  EXPECT_TRUE(hvd::synchronize(hvd::broadcast_async_(y, root)).is_same(y));
  EXPECT_TRUE(Same(y, Six(root)));
  EXPECT_TRUE(hvd::broadcast_(x, 0).is_same(x));
  EXPECT_TRUE(Same(x, Six(0)));
}

RANKS_TEST(Adapter, AllgatherTakesFirstDimensionsThatDiffer, 1, 2, 3) {
  // Rank r brings r rows of r.
  const torch::Tensor mine = torch::full({hvd::rank(), 2}, hvd::rank());
  std::vector<torch::Tensor> all;
  for (int rank = 0; rank < hvd::size(); ++rank) all.push_back(torch::full({rank, 2}, rank));
  EXPECT_TRUE(Same(hvd::allgather(mine, {.name = "ragged"}), torch::cat(all)));
  EXPECT_TRUE(Same(hvd::allgather(torch::zeros({0, 2})), torch::zeros({0, 2})));
  const torch::Tensor column =
      hvd::synchronize(hvd::allgather_async(Six(hvd::rank()).t(), {.name = "t"}));
  std::vector<torch::Tensor> transposed;
  for (int rank = 0; rank < hvd::size(); ++rank) transposed.push_back(Six(rank).t());
  EXPECT_TRUE(Same(column, torch::cat(transposed)));
  EXPECT_EQ(StatusOf([] { hvd::allgather(torch::tensor(1.f)); }), RUEDA_INVALID_ARGUMENT);
}

// torch compares some types only by their bytes.
torch::Tensor Bytes(const torch::Tensor& tensor) {
  return tensor.contiguous().view(torch::kByte);
}

RANKS_TEST(Adapter, AllTypesAreMoved, 1, 2, 3) {
  const int n = hvd::size();
  for (const torch::ScalarType type :
       {torch::kByte, torch::kUInt16, torch::kUInt32, torch::kUInt64, torch::kChar, torch::kShort,
        torch::kInt, torch::kLong, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2, torch::kHalf,
        torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat,
        torch::kComplexDouble}) {
    const std::string name = torch::toString(type);
    SCOPED_TRACE(name);
    const torch::Tensor x = Six(hvd::rank(), type);
    const torch::Tensor last = Six(n - 1, type);
    const torch::Tensor sum = hvd::allreduce(x, {.name = name, .op = hvd::Sum});
    EXPECT_EQ(sum.scalar_type(), type);
    // Their sums of small integers are exact in all types but e5m2, which has two bits.
    if (type != torch::kFloat8_e5m2) {
      EXPECT_TRUE(Same(Bytes(sum), Bytes((Six(0) * n + RankSum()).to(type))));
    }
    if (!torch::isComplexType(type)) {
      EXPECT_TRUE(Same(Bytes(hvd::allreduce(x, {.name = name, .op = hvd::Max})), Bytes(last)));
    }
    EXPECT_TRUE(Same(Bytes(hvd::broadcast(x, n - 1, {.name = name})), Bytes(last)));
    const torch::Tensor all = hvd::allgather(x, {.name = name});
    ASSERT_EQ(all.size(0), 2 * n);
    EXPECT_TRUE(Same(Bytes(all.narrow(0, 2 * n - 2, 2)), Bytes(last)));
  }
  const torch::Tensor last = torch::tensor({hvd::rank() == n - 1, true});
  EXPECT_TRUE(
      Same(hvd::allreduce(last, {.name = "or", .op = hvd::Sum}), torch::tensor({true, true})));
  EXPECT_TRUE(
      Same(hvd::allreduce(last, {.name = "and", .op = hvd::Min}), torch::tensor({n == 1, true})));
  EXPECT_TRUE(Same(hvd::broadcast(last, n - 1), torch::tensor({true, true})));
  EXPECT_EQ(StatusOf([&] { hvd::allreduce(last); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Adapter, TensorsThatAreNotContiguousAreCopiedInAndOut, 1, 2, 3) {
  const int n = hvd::size();
  const torch::Tensor sum = Six(0) * n + RankSum();
  torch::Tensor transposed = Six(hvd::rank()).t();
  EXPECT_TRUE(hvd::allreduce(transposed, {.name = "t", .op = hvd::Sum}).is_contiguous());
  EXPECT_TRUE(Same(hvd::allreduce(transposed, {.name = "t", .op = hvd::Sum}), sum.t()));
  EXPECT_TRUE(hvd::allreduce_(transposed, {.name = "t", .op = hvd::Sum}).is_same(transposed));
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_TRUE(Same(transposed, sum.t()));

  // Every other column, and what lies between stays.
  const torch::Tensor whole = torch::full({2, 6}, 7.f);
  const torch::Tensor slice = whole.slice(1, 0, 6, 2);
  slice.copy_(Six(hvd::rank()));
  EXPECT_TRUE(hvd::synchronize(hvd::allreduce_async_(slice, {.name = "slice", .op = hvd::Sum}))
                  .is_same(slice));
  EXPECT_TRUE(Same(slice, sum));
  EXPECT_TRUE(Same(whole.slice(1, 1, 6, 2), torch::full({2, 3}, 7.f)));

  // A handle that is let go still brings its result.
  slice.copy_(Six(hvd::rank()));
  (void)hvd::broadcast_async_(slice, n - 1, {.name = "dropped"});
  EXPECT_TRUE(Same(slice, Six(n - 1)));

  torch::Tensor channels_last =
      torch::full({2, 3, 4, 5}, hvd::rank() * 1.f).to(torch::MemoryFormat::ChannelsLast);
  hvd::broadcast_(channels_last, n - 1, {.name = "channels last"});
  EXPECT_TRUE(Same(channels_last, torch::full({2, 3, 4, 5}, n - 1.f)));
  EXPECT_FALSE(channels_last.is_contiguous());

  // Views that only say that they are conjugated, or negated.
  const torch::Tensor conjugated = torch::conj(torch::complex(Six(0), Six(1)));
  hvd::allreduce_(conjugated, {.name = "conjugated", .op = hvd::Sum});
  EXPECT_TRUE(Same(conjugated.clone(), torch::complex(Six(0), -Six(1)) * n));
  const torch::Tensor negated = torch::_neg_view(Six(hvd::rank()));
  EXPECT_TRUE(Same(hvd::allreduce(negated, {.name = "negated", .op = hvd::Sum}), -sum));
  hvd::allreduce_(negated, {.name = "negated", .op = hvd::Sum});
  EXPECT_TRUE(Same(negated.clone(), -sum));

  const torch::Tensor expanded = torch::ones({1}).expand({4});
  EXPECT_TRUE(
      Same(hvd::allreduce(expanded, {.name = "e", .op = hvd::Sum}), torch::full({4}, n * 1.f)));
  EXPECT_EQ(StatusOf([&] { hvd::allreduce_(expanded, {.name = "e"}); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Adapter, ScalarsAndEmptyTensorsAreTensors, 1, 2, 3) {
  EXPECT_TRUE(Same(hvd::allreduce(torch::full({}, 2.f), {.name = "scalar", .op = hvd::Sum}),
                   torch::full({}, 2.f * hvd::size())));
  EXPECT_TRUE(Same(hvd::allreduce(torch::zeros({0, 3})), torch::zeros({0, 3})));
  torch::Tensor empty = torch::zeros({0});
  EXPECT_TRUE(hvd::allreduce_(empty).is_same(empty));
  EXPECT_TRUE(Same(hvd::broadcast(empty, 0), empty));
}

RANKS_TEST(Adapter, RanksThatDisagreeAllGetTheErrorAndTheJobGoesOn, 2, 3) {
  std::string message;
  const torch::Tensor odd = torch::zeros({hvd::rank() == 1 ? 3 : 2});
  EXPECT_EQ(StatusOf([&] { hvd::allreduce(odd, {.name = "odd"}); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("odd"), std::string::npos) << message;
  const hvd::Handle handle = hvd::allreduce_async(odd, {.name = "odd"});
  EXPECT_EQ(StatusOf([&] { hvd::synchronize(handle); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::synchronize(handle); }), RUEDA_INVALID_ARGUMENT) << "again";
  const torch::Tensor type = torch::zeros({2}, hvd::rank() == 1 ? torch::kInt : torch::kFloat);
  EXPECT_EQ(StatusOf([&] { hvd::broadcast(type, 0, {.name = "type"}); }), RUEDA_INVALID_ARGUMENT);
  const torch::Tensor width = torch::zeros({1, hvd::rank() == 1 ? 3 : 2});
  EXPECT_EQ(StatusOf([&] { hvd::allgather(width, {.name = "width"}); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] {
              hvd::grouped_allreduce({torch::zeros({2}), odd}, {.name = "group"});
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_TRUE(Same(hvd::allreduce(Six(0), {.name = "after"}), Six(0)));
}

RANKS_TEST(Adapter, TensorsThatItDoesNotMoveAreRefusedByName, 1, 2) {
  std::string message;
  const auto refused = [&](const torch::Tensor& tensor) {
    message.clear();
    return StatusOf([&] { hvd::allreduce(tensor, {.name = "w"}); }, &message);
  };
  EXPECT_EQ(refused(torch::zeros({2}, torch::kComplexHalf)), RUEDA_UNIMPLEMENTED);
  EXPECT_NE(message.find("'w' is of type ComplexHalf"), std::string::npos) << message;
  EXPECT_EQ(refused(torch::zeros({2}, torch::kMeta)), RUEDA_UNIMPLEMENTED);
  EXPECT_NE(message.find("'w' is on meta; this version moves tensors on the CPU and on CUDA"),
            std::string::npos)
      << message;
  EXPECT_EQ(refused(torch::eye(3).to_sparse()), RUEDA_UNIMPLEMENTED);
  EXPECT_NE(message.find("to_dense"), std::string::npos) << message;
  EXPECT_EQ(refused(torch::_nested_tensor_from_tensor_list({Six(0), Six(1)})), RUEDA_UNIMPLEMENTED);
  EXPECT_EQ(refused(torch::Tensor()), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::grouped_allreduce({}, {.name = "none"}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf(
                [&] {
                  hvd::grouped_allreduce({Six(0), torch::Tensor()}, {.name = "g"});
                },
                &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("tensor 1 of the group 'g'"), std::string::npos) << message;
  EXPECT_TRUE(Same(hvd::allreduce(Six(0), {.name = "w"}), Six(0)));
}

RANKS_TEST(Adapter, OperationsKeepTheirTensorsAlive, 2) {
  std::vector<hvd::Handle> handles;
  for (int i = 0; i < 50; ++i) {
    torch::Tensor x = torch::full({10000}, hvd::rank() + i * 1.f);
    handles.push_back(hvd::allreduce_async_(x, {.name = "x" + std::to_string(i)}));
    x = torch::Tensor();
    if (i % 3 == 0) handles.pop_back();  // waits
  }
  for (const hvd::Handle& handle : handles) EXPECT_EQ(hvd::synchronize(handle).numel(), 10000);
}

RANKS_TEST(Adapter, AutogradSeesChangesAndHandlesHaveNoHistory, 1, 2) {
  torch::Tensor weight = torch::ones({3}, torch::requires_grad());
  const torch::Tensor square = weight * weight;
  EXPECT_FALSE(hvd::synchronize(hvd::allreduce_async(square, {.name = "square"})).requires_grad());
  EXPECT_FALSE(hvd::synchronize(hvd::allgather_async(square, {.name = "square"})).requires_grad());
  hvd::broadcast_(weight, 0, {.name = "weight"});  // backward needs the old one
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_ANY_THROW(square.sum().backward());
}

RANKS_TEST(Adapter, ProcessSetsMoveAmongThemselves, 3) {
  const hvd::ProcessSet ends = hvd::add_process_set({0, 2});
  if (ends.included()) {
    EXPECT_TRUE(Same(
        hvd::allreduce(Six(hvd::rank()), {.name = "ends", .op = hvd::Average, .process_set = ends}),
        Six(1)));
    EXPECT_TRUE(
        Same(hvd::broadcast(Six(hvd::rank()), 2, {.name = "ends", .process_set = ends}), Six(2)));
    EXPECT_EQ(hvd::allgather(Six(0), {.name = "ends", .process_set = ends}).size(0), 4);
  } else {
    EXPECT_EQ(StatusOf([&] { hvd::allgather(Six(0), {.name = "ends", .process_set = ends}); }),
              RUEDA_INVALID_ARGUMENT);
  }
  hvd::barrier();
}

// `buffer` beside two parameters, one of them frozen.
struct Module : torch::nn::Module {
  explicit Module(float value) {
    weight = register_parameter("weight", torch::full({2, 3}, value));
    frozen = register_parameter("frozen", torch::full({3}, value), false);
    buffer = register_buffer("buffer", torch::full({2}, static_cast<int64_t>(value)));
  }
  torch::Tensor weight, frozen, buffer;
};

RANKS_TEST(Adapter, BroadcastParametersMakesModulesEqual, 1, 2, 3) {
  const int root = hvd::size() - 1;
  Module module(hvd::rank() + 1.f);
  hvd::broadcast_parameters(module, root);
  const Module expected(root + 1.f);
  EXPECT_TRUE(Same(module.weight, expected.weight));
  EXPECT_TRUE(Same(module.frozen, expected.frozen));
  EXPECT_TRUE(Same(module.buffer, expected.buffer));
  EXPECT_TRUE(module.weight.requires_grad());

  Module again(hvd::rank() + 1.f);
  hvd::broadcast_parameters(again.named_parameters(), root);
  EXPECT_TRUE(Same(again.weight, expected.weight));
  EXPECT_EQ(again.buffer[0].item<int64_t>(), hvd::rank() + 1);
  hvd::broadcast_parameters(again.named_buffers(), root);
  EXPECT_TRUE(Same(again.buffer, expected.buffer));
}

RANKS_TEST(Adapter, ParametersThatDifferInShapeFailAloneOnAllRanks, 2) {
  const hvd::NamedTensors tensors = {{"fine", Six(hvd::rank())},
                                     {"odd", torch::zeros({hvd::rank() + 2})},
                                     {"undefined", torch::Tensor()},
                                     {"fine too", Six(hvd::rank())}};
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::broadcast_parameters(tensors, 0); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("odd"), std::string::npos) << message;
  EXPECT_TRUE(Same(tensors[0].second, Six(0)));
  EXPECT_TRUE(Same(tensors[3].second, Six(0)));
}

TEST(AdapterAlone, FunctionsSayThatRuedaIsNotInitialized) {
  std::string message;
  EXPECT_EQ(StatusOf([] { hvd::allreduce(Six(0)); }, &message), RUEDA_FAILED_PRECONDITION);
  EXPECT_NE(message.find("init"), std::string::npos) << message;
}

TEST(AdapterAlone, HandlesThatWereSynchronizedMayOutliveTheJob) {
  hvd::init();
  const hvd::Handle handle = hvd::allreduce_async(Six(2), {.name = "x"});
  hvd::synchronize(handle);
  hvd::shutdown();
  EXPECT_TRUE(hvd::poll(handle));
  EXPECT_TRUE(Same(hvd::synchronize(handle), Six(2)));
}

// libtorch_cpu.so exports symbols of another Gloo: a call that strays into it crashes.
TEST(Gloo, WorksInAProgramThatLinksTorch) {
  Dl_info info;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&rueda_version), &info), 0);
  const auto module =
      std::filesystem::path(info.dli_fname).parent_path() / "rueda/librueda_gloo.so";
  if (!std::filesystem::exists(module)) GTEST_SKIP() << module << " was not built";
  const auto body = [] {
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(Same(hvd::allreduce(torch::full({1 << i % 16}, hvd::rank() + 1.f),
                                      {.name = "g", .op = hvd::Sum}),
                       torch::full({1 << i % 16}, hvd::size() + RankSum())));
    }
  };
  for (const int ranks : {2, 3}) rueda::test::RunRanks(ranks, body, {{"RUEDA_BACKEND", "gloo"}});
}

}  // namespace
