// The functions beyond allreduce, broadcast and allgather, against values worked out by hand; and
// the gradients of all that have one, against those of one process that holds every rank's tensors.
#include <torch/torch.h>

#include <functional>
#include <stdexcept>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"
#include "test/torch/tensors.h"

namespace hvd = rueda::libtorch;

namespace {

using rueda::test::RankSum;
using rueda::test::Same;
using rueda::test::Six;
using rueda::test::StatusOf;

using Tensors = std::vector<torch::Tensor>;

// `rows` rows that say who gives them to whom.
torch::Tensor Rows(int64_t rows, int from, int to) {
  return torch::full({rows, 2}, 10.0 * from + to);
}

// How many rows `from` gives `to`: ragged, and some pairs nothing.
int64_t RowCount(int from, int to) {
  return (2 * from + to) % 3;
}

std::vector<int64_t> MySplits() {
  std::vector<int64_t> splits;
  for (int to = 0; to < hvd::size(); ++to) splits.push_back(RowCount(hvd::rank(), to));
  return splits;
}

// What this rank gives to all, and what all give to it.
torch::Tensor Given() {
  Tensors parts;
  for (int to = 0; to < hvd::size(); ++to) {
    parts.push_back(Rows(RowCount(hvd::rank(), to), hvd::rank(), to));
  }
  return torch::cat(parts);
}
torch::Tensor Taken() {
  Tensors parts;
  for (int from = 0; from < hvd::size(); ++from) {
    parts.push_back(Rows(RowCount(from, hvd::rank()), from, hvd::rank()));
  }
  return torch::cat(parts);
}
torch::Tensor TakenSplits() {
  std::vector<int64_t> splits;
  for (int from = 0; from < hvd::size(); ++from) splits.push_back(RowCount(from, hvd::rank()));
  return torch::tensor(splits, torch::kLong);
}

RANKS_TEST(Operations, CompressionReachesTheOperation, 2) {
  const torch::Tensor tensor = torch::full({1000}, 1.0 + hvd::rank());
  EXPECT_TRUE(torch::allclose(hvd::allreduce(tensor, {.name = "a", .compression = "int8"}),
                              torch::full({1000}, 1.5), 0.01));
  EXPECT_EQ(StatusOf([&] { hvd::allreduce(tensor, {.compression = "nonsense"}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] { hvd::reducescatter(tensor, {.compression = "nonsense"}); }),
            RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Operations, AlltoallGivesEachRankItsRows, 1, 2, 3) {
  EXPECT_TRUE(Same(hvd::alltoall(Given(), {.splits = MySplits(), .name = "a"}), Taken()));
  const auto [output, splits] =
      hvd::alltoall_with_splits(Given(), {.splits = MySplits(), .name = "a"});
  EXPECT_TRUE(Same(output, Taken()));
  EXPECT_TRUE(Same(splits, TakenSplits()));
  const hvd::Handle handle = hvd::alltoall_async(Given(), {.splits = MySplits(), .name = "b"});
  EXPECT_TRUE(Same(hvd::received_splits(handle), TakenSplits()));
  EXPECT_TRUE(Same(hvd::synchronize(handle), Taken()));

  // Equal parts, of a tensor that is not contiguous, of scalars, of nothing.
  const torch::Tensor x = torch::arange(2 * hvd::size()) + 100 * hvd::rank();
  Tensors expected;
  for (int from = 0; from < hvd::size(); ++from) {
    expected.push_back(torch::arange(2 * hvd::rank(), 2 * hvd::rank() + 2) + 100 * from);
  }
  EXPECT_TRUE(Same(hvd::alltoall(x), torch::cat(expected)));
  const torch::Tensor column = torch::stack({x, x + 1000}).t();
  EXPECT_TRUE(Same(hvd::alltoall(column).select(1, 1), torch::cat(expected) + 1000));
  EXPECT_TRUE(Same(hvd::alltoall(torch::zeros({0, 3})), torch::zeros({0, 3})));
  EXPECT_EQ(StatusOf([] { hvd::alltoall(torch::tensor(1.f)); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Operations, SplitsMayBeATensorOfIntegers, 1, 2, 3) {
  for (const torch::ScalarType type :
       {torch::kLong, torch::kInt, torch::kShort, torch::kByte, torch::kUInt16}) {
    const torch::Tensor splits = torch::tensor(MySplits(), torch::kLong).to(type);
    EXPECT_TRUE(Same(hvd::alltoall(Given(), {.splits = splits, .name = "a"}), Taken()))
        << torch::toString(type);
  }
  const torch::Tensor apart = torch::stack({torch::tensor(MySplits()), torch::tensor(MySplits())});
  EXPECT_TRUE(
      Same(hvd::alltoall(Given(), {.splits = apart.t().select(1, 0), .name = "a"}), Taken()));

  std::string message;
  const auto refused = [&](const torch::Tensor& splits) {
    message.clear();
    return StatusOf([&] { hvd::alltoall(Given(), {.splits = splits, .name = "a"}); }, &message);
  };
  EXPECT_EQ(refused(torch::ones({hvd::size()})), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("`splits` is of type Float"), std::string::npos) << message;
  EXPECT_EQ(refused(torch::ones({hvd::size()}, torch::kBool)), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(refused(torch::ones({hvd::size(), 1}, torch::kLong)), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("`splits` has 2 dimensions"), std::string::npos) << message;
  EXPECT_EQ(refused(torch::ones({}, torch::kLong)), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(refused(torch::ones({0}, torch::kLong)), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(refused(torch::ones({hvd::size()}, torch::kLong).to(torch::kMeta)),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(refused(torch::Tensor()), RUEDA_INVALID_ARGUMENT);
  const torch::Tensor splits = torch::tensor(MySplits(), torch::kLong);
  EXPECT_EQ(refused(hvd::rank() == 0 ? splits.to(torch::kFloat) : splits), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("rank 0: "), std::string::npos) << message;
  EXPECT_EQ(refused(torch::full({hvd::size()}, 1'000)), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([] {
              hvd::alltoall(Given(), {.splits = {1, 2, 3, 4, 5}});
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_TRUE(Same(hvd::alltoall(Given(), {.splits = MySplits(), .name = "a"}), Taken()));
}

// The rows of rank `rank`: equal parts, the lowest ranks one row more.
torch::Tensor Part(const torch::Tensor& whole, int rank, int size) {
  const int64_t rows = whole.size(0) / size, rest = whole.size(0) % size;
  const int64_t begin = rank * rows + std::min<int64_t>(rank, rest);
  return whole.narrow(0, begin, rows + (rank < rest ? 1 : 0));
}
torch::Tensor Mine(const torch::Tensor& whole) {
  return Part(whole, hvd::rank(), hvd::size());
}

RANKS_TEST(Operations, ReducescatterGivesEachRankItsRowsOfTheResult, 1, 2, 3) {
  const int n = hvd::size();
  for (const int64_t rows : {0, 1, 2, 7}) {
    const torch::Tensor base = torch::arange(3 * rows).to(torch::kFloat).reshape({rows, 3});
    const torch::Tensor x = base + hvd::rank();
    const torch::Tensor sum = base * n + RankSum();
    EXPECT_TRUE(Same(hvd::reducescatter(x, {.name = "r", .op = hvd::Sum}), Mine(sum)));
    EXPECT_TRUE(Same(hvd::reducescatter(x, {.name = "r"}), Mine(base + RankSum() / n)));
    EXPECT_TRUE(Same(hvd::reducescatter(x, {.name = "m", .op = hvd::Max}), Mine(base + n - 1)));
    EXPECT_TRUE(Same(hvd::reducescatter(x, {.name = "s",
                                            .op = hvd::Sum,
                                            .prescale_factor = 2,
                                            .postscale_factor = 4,
                                            .process_set = hvd::global_process_set}),
                     Mine(sum * 8)));
    EXPECT_TRUE(Same(hvd::synchronize(hvd::reducescatter_async(x, {.name = "a", .op = hvd::Sum})),
                     Mine(sum)));
    const Tensors both =
        hvd::grouped_reducescatter({x, x.t().clone().t() * 2}, {.name = "g", .op = hvd::Sum});
    EXPECT_TRUE(Same(both[0], Mine(sum)));
    EXPECT_TRUE(Same(both[1], Mine(sum * 2)));
    const hvd::GroupHandle handle =
        hvd::grouped_reducescatter_async({x, x * 2}, {.name = "h", .op = hvd::Sum});
    EXPECT_TRUE(Same(hvd::synchronize(handle)[1], Mine(sum * 2)));
  }
  EXPECT_EQ(StatusOf([] { hvd::reducescatter(torch::tensor(1.f)); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Operations, GroupsAreGatheredTogether, 1, 2, 3) {
  const Tensors x = {torch::full({hvd::rank() + 1}, hvd::rank()), Six(hvd::rank())};
  Tensors first, second;
  for (int rank = 0; rank < hvd::size(); ++rank) {
    first.push_back(torch::full({rank + 1}, rank));
    second.push_back(Six(rank));
  }
  const Tensors all = hvd::grouped_allgather(x, {.name = "g"});
  EXPECT_TRUE(Same(all[0], torch::cat(first)));
  EXPECT_TRUE(Same(all[1], torch::cat(second)));
  EXPECT_TRUE(Same(hvd::synchronize(hvd::grouped_allgather_async(x))[0], torch::cat(first)));
}

RANKS_TEST(Operations, ReduceGivesTheRootTheResult, 1, 2, 3) {
  const int root = hvd::size() - 1;
  const torch::Tensor sum = Six(0) * hvd::size() + RankSum();
  torch::Tensor x = Six(hvd::rank());
  torch::Tensor transposed = Six(hvd::rank()).t();
  const torch::Tensor apart = hvd::reduce(x, root, {.name = "r", .op = hvd::Sum});
  const torch::Tensor scalar =
      hvd::synchronize(hvd::reduce_async(torch::tensor(3.f), root, {.name = "s"}));
  EXPECT_EQ(apart.defined(), hvd::rank() == root);
  EXPECT_EQ(scalar.defined(), hvd::rank() == root);
  EXPECT_TRUE(Same(x, Six(hvd::rank())));
  EXPECT_TRUE(hvd::reduce_(transposed, root, {.name = "t", .op = hvd::Sum}).is_same(transposed));
  const int64_t version = x._version();
  EXPECT_TRUE(
      hvd::synchronize(hvd::reduce_async_(x, root, {.name = "x", .op = hvd::Sum})).is_same(x));
  EXPECT_EQ(x._version() - version, hvd::rank() == root ? 1 : 0);
  if (hvd::rank() == root) {
    EXPECT_TRUE(Same(apart, sum));
    EXPECT_TRUE(Same(scalar, torch::tensor(3.f)));
    EXPECT_TRUE(Same(transposed, sum.t()));
    EXPECT_TRUE(Same(x, sum));
  } else {
    EXPECT_TRUE(Same(transposed, Six(hvd::rank()).t())) << "as it was";
    EXPECT_TRUE(Same(x, Six(hvd::rank()))) << "as it was";
  }
}

RANKS_TEST(Operations, GatherGivesTheRootAllRows, 1, 2, 3) {
  const int root = hvd::size() - 1;
  const torch::Tensor mine = torch::full({hvd::rank(), 2}, hvd::rank());
  const torch::Tensor got = hvd::gather(mine, root, {.name = "g"});
  const hvd::Handle handle = hvd::gather_async(mine, root, {.name = "h"});
  if (hvd::rank() != root) {
    EXPECT_FALSE(got.defined());
    EXPECT_FALSE(hvd::synchronize(handle).defined());
    EXPECT_EQ(StatusOf([&] { hvd::received_splits(handle); }), RUEDA_INVALID_ARGUMENT);
    return;
  }
  Tensors all;
  for (int rank = 0; rank < hvd::size(); ++rank) all.push_back(torch::full({rank, 2}, rank));
  EXPECT_TRUE(Same(got, torch::cat(all)));
  EXPECT_TRUE(Same(hvd::synchronize(handle), torch::cat(all)));
  EXPECT_TRUE(Same(hvd::received_splits(handle), torch::arange(hvd::size())));
}

RANKS_TEST(Operations, ScatterGivesEachRankItsRowsOfTheRoots, 1, 2, 3) {
  const int n = hvd::size(), root = n - 1;
  std::vector<int64_t> splits;
  for (int rank = 0; rank < n; ++rank) splits.push_back(rank + 1);
  const torch::Tensor whole = torch::arange(n * (n + 1)).reshape({-1, 2});
  const torch::Tensor row = torch::empty({0, 2}, torch::kLong);
  const int64_t begin = hvd::rank() * (hvd::rank() + 1) / 2;
  const torch::Tensor expected = whole.narrow(0, begin, hvd::rank() + 1);
  const torch::Tensor& given = hvd::rank() == root ? whole : row;
  EXPECT_TRUE(Same(hvd::scatter(given, root, {.splits = splits, .name = "s"}), expected));
  const torch::Tensor equal = torch::arange(2 * n).reshape({n, 2});
  EXPECT_TRUE(Same(hvd::synchronize(hvd::scatter_async(hvd::rank() == root ? equal : row, root)),
                   equal.narrow(0, hvd::rank(), 1)));
  EXPECT_EQ(StatusOf([] { hvd::scatter(torch::tensor(1.f), 0); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Operations, SendGoesToRecv, 2, 3) {
  const int next = (hvd::rank() + 1) % hvd::size();
  const int previous = (hvd::rank() + hvd::size() - 1) % hvd::size();
  const torch::Tensor mine = Six(hvd::rank()).t();
  const hvd::Handle sent =
      hvd::send_async(mine, next, {.name = "ring" + std::to_string(hvd::rank())});
  torch::Tensor whole = torch::full({3, 4}, -1.f);
  torch::Tensor got = whole.slice(1, 0, 4, 2);  // every other column
  EXPECT_TRUE(hvd::recv_(got, previous, {.name = "ring" + std::to_string(previous)}).is_same(got));
  EXPECT_TRUE(Same(got, Six(previous).t()));
  EXPECT_TRUE(Same(whole.slice(1, 1, 4, 2), torch::full({3, 2}, -1.f)));
  EXPECT_TRUE(hvd::synchronize(sent).is_same(mine));

  torch::Tensor scalar = torch::tensor(hvd::rank() * 1.f);
  if (hvd::rank() == 0) hvd::send(scalar, 1);
  if (hvd::rank() == 1) {
    const hvd::Handle handle = hvd::recv_async_(scalar, 0);
    EXPECT_TRUE(hvd::synchronize(handle).is_same(scalar));
    EXPECT_EQ(scalar.item<float>(), 0);
  }
  EXPECT_EQ(StatusOf([&] { hvd::recv_(torch::ones({1}).expand({4}), previous); }),
            RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Operations, AllreducesGoOnWithoutThoseThatHaveJoined, 2, 3) {
  const int n = hvd::size();
  for (int step = 0; step < hvd::rank() + 1; ++step) {
    const float live = n - step;  // ranks step, step + 1, ...
    EXPECT_EQ(hvd::allreduce(torch::tensor(6.f), {.name = "j", .op = hvd::Sum}).item<float>(),
              6 * live);
    EXPECT_EQ(
        hvd::allreduce(torch::tensor(6.f), {.name = "l", .op = hvd::AverageLive}).item<float>(), 6);
    EXPECT_FLOAT_EQ(hvd::allreduce(torch::tensor(6.f), {.name = "a"}).item<float>(), 6 * live / n);
  }
  EXPECT_EQ(hvd::join(), n - 1);
  EXPECT_TRUE(Same(hvd::alltoall(Given(), {.splits = MySplits(), .name = "after"}), Taken()));
}

RANKS_TEST(Operations, BitsAndAdasumAreReduceOperations, 2, 3) {
  const int n = hvd::size();
  const torch::Tensor bits = torch::tensor({1 << hvd::rank(), 255 - (1 << hvd::rank())});
  EXPECT_EQ(hvd::allreduce(bits, {.name = "or", .op = hvd::Bor})[0].item<int>(), (1 << n) - 1);
  EXPECT_EQ(hvd::allreduce(bits, {.name = "and", .op = hvd::Band})[1].item<int>(), 256 - (1 << n));
  EXPECT_EQ(hvd::allreduce(bits, {.name = "xor", .op = hvd::Bxor})[0].item<int>(), (1 << n) - 1);
  // Gradients that say the same are averaged by Adasum.
  EXPECT_TRUE(
      torch::allclose(hvd::allreduce(Six(1), {.name = "adasum", .op = hvd::Adasum}), Six(1)));
}

RANKS_TEST(Operations, ObjectsAreBytes, 1, 2, 3) {
  const int root = hvd::size() - 1;
  const std::string mine(static_cast<size_t>(hvd::rank()) * 5, static_cast<char>(hvd::rank()));
  EXPECT_EQ(hvd::broadcast_object(mine, root), std::string(root * 5, static_cast<char>(root)));
  EXPECT_EQ(hvd::broadcast_object("", root, {.name = "empty"}), "");
  const std::vector<std::string> all = hvd::allgather_object(mine, {.name = "all"});
  ASSERT_EQ(all.size(), static_cast<size_t>(hvd::size()));
  for (int rank = 0; rank < hvd::size(); ++rank) {
    EXPECT_EQ(all[rank], std::string(rank * 5, static_cast<char>(rank)));
  }
  EXPECT_EQ(StatusOf([] { hvd::broadcast_object("x", 7); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Operations, ProcessSetsMoveAmongThemselvesAndGo, 3) {
  const hvd::ProcessSet ends = hvd::add_process_set({0, 2});
  if (ends.included()) {
    const int other = 2 - hvd::rank();
    const torch::Tensor x = torch::tensor({hvd::rank(), hvd::rank() + 10});
    const torch::Tensor given = torch::tensor({0, 2}) + 10 * (hvd::rank() / 2);
    EXPECT_TRUE(Same(hvd::alltoall(x, {.name = "e", .process_set = ends}), given));
    EXPECT_TRUE(Same(hvd::reducescatter(x, {.name = "e", .op = hvd::Sum, .process_set = ends}),
                     torch::tensor({2 + 20 * (hvd::rank() / 2)})));
    EXPECT_EQ(hvd::reduce(x, 2, {.name = "e", .op = hvd::Sum, .process_set = ends}).defined(),
              hvd::rank() == 2);
    EXPECT_EQ(hvd::gather(x, 2, {.name = "e", .process_set = ends}).defined(), hvd::rank() == 2);
    EXPECT_EQ(hvd::scatter(x, 2, {.splits = {0, 2}, .name = "e", .process_set = ends}).size(0),
              hvd::rank());
    const hvd::Handle sent =
        hvd::send_async(x, other, {.name = "e" + std::to_string(hvd::rank()), .process_set = ends});
    torch::Tensor got = torch::zeros({2}, torch::kLong);
    hvd::recv_(got, other, {.name = "e" + std::to_string(other), .process_set = ends});
    EXPECT_EQ(got[0].item<int>(), other);
    hvd::synchronize(sent);
    EXPECT_EQ(hvd::allgather_object("x", {.name = "e", .process_set = ends}).size(), 2u);
    hvd::join(ends);
  }
  hvd::remove_process_set(ends);
  EXPECT_EQ(StatusOf([&] { hvd::remove_process_set(ends); }), RUEDA_NOT_FOUND);
}

RANKS_TEST(Operations, AfterALossCallsSayWhoWasLost, 2, 3) {
  hvd::allreduce(Six(0), {.name = "before"});
  if (hvd::rank() == 1) rueda::test::LeaveWithoutShutdown();
  const auto lost = [](const char* what, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << what << " went well";
    } catch (const hvd::Error& error) {
      EXPECT_EQ(error.status(), RUEDA_ABORTED) << what << ": " << error.what();
      EXPECT_EQ(error.rank(), 1) << what << ": " << error.what();
      EXPECT_TRUE(error.recoverable()) << what << ": " << error.what();
    }
  };
  lost("in flight", [] { hvd::allreduce(Six(0), {.name = "x"}); });
  lost("refused", [] { hvd::allreduce(Six(0), {.name = "x"}); });
  lost("refused in the background", [] { (void)hvd::allreduce_async(Six(0), {.name = "x"}); });
  lost("object", [] { hvd::broadcast_object("x", 0); });
  lost("objects", [] { hvd::allgather_object("x"); });
  lost("join", [] { hvd::join(); });
  rueda::test::LeaveWithoutShutdown();
}

TEST(OperationsAlone, HandlesThatWereNotSynchronizedSayThatTheJobIsOver) {
  hvd::init();
  const hvd::Handle handle = hvd::allreduce_async(Six(2), {.name = "x"});
  hvd::shutdown();
  EXPECT_EQ(StatusOf([&] { hvd::synchronize(handle); }), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(StatusOf([] { hvd::join(); }), RUEDA_FAILED_PRECONDITION);
  EXPECT_EQ(StatusOf([] { hvd::broadcast_object("x", 0); }), RUEDA_FAILED_PRECONDITION);
}

// Exceptions that unwind past handles ----------------------------------------------------------

// Calls `body`, which ends in an exception of its own; that one must arrive.
template <typename Body>
void Catch(Body body) {
  try {
    body();
    ADD_FAILURE() << "no exception";
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "the program's own");
  }
}
[[noreturn]] void Throw() {
  throw std::logic_error("the program's own");
}

// Calls `fn` where the stack unwinds past it.
struct AtExit {
  std::function<void()> fn;
  ~AtExit() { fn(); }
};

// On how many hosts the ranks pretend to be.
class OperationsUnwound : public testing::TestWithParam<const char*> {
 protected:
  static void Run(const std::function<void()>& body, const char* limit_s) {
    rueda::test::RunRanks(2, body,
                          {{"RUEDA_UNWIND_TIMEOUT_S", limit_s},
                           {"RUEDA_HOSTS_FAKE", GetParam()},
                           {"RUEDA_PROCESS_SETS", "0"}});
  }
  static void ExpectEndOfMembership(const std::string& label, const std::function<void()>& throws);
};
INSTANTIATE_TEST_SUITE_P(Hosts, OperationsUnwound, testing::Values("0", "2"));

// Rank 0 starts something, and nobody joins it.
void OperationsUnwound::ExpectEndOfMembership(const std::string& label,
                                              const std::function<void()>& throws) {
  const auto body = [&] {
    if (hvd::rank() == 0) Catch(throws);
    std::string message;
    EXPECT_EQ(StatusOf([] { hvd::barrier(); }, &message), RUEDA_ABORTED);
    EXPECT_NE(message.find("rank 0 aborted the job: " + label), std::string::npos) << message;
    EXPECT_NE(message.find("an exception unwound past its handle"), std::string::npos) << message;
    rueda::test::LeaveWithoutShutdown();
  };
  Run(body, "0.1");
}

TEST_P(OperationsUnwound, InPlaceThatNobodyJoinsTheMembershipEnds) {
  ExpectEndOfMembership("allreduce 'g'", [] {
    const torch::Tensor x = Six(1);
    const hvd::Handle handle = hvd::allreduce_async_(x, {.name = "g"});
    Throw();
  });
}

TEST_P(OperationsUnwound, OnMemoryOfTheCallersThatNobodyJoinsTheMembershipEnds) {
  ExpectEndOfMembership("allreduce 'g'", [] {
    std::vector<float> memory(6);
    const torch::Tensor x = torch::from_blob(memory.data(), {6});
    const hvd::Handle handle = hvd::allreduce_async(x, {.name = "g"});
    Throw();
  });
}

TEST_P(OperationsUnwound, AnOptimizersThatNobodyJoinsTheMembershipEnds) {
  ExpectEndOfMembership("allreduce 'notes of optimizer'", [] {
    const torch::Tensor w = torch::zeros({3}).requires_grad_();
    torch::optim::SGD sgd({w}, 1.0);
    const std::vector<std::pair<std::string, torch::Tensor>> named = {{"w", w}};
    hvd::DistributedOptimizer optimizer(sgd, named, {.name = "optimizer"});
    w.sum().backward();
    Throw();
  });
}

TEST_P(OperationsUnwound, InPlaceThatTheOthersJoinAreWaitedFor) {
  const auto body = [] {
    const torch::Tensor x = Six(hvd::rank()), columns = Six(hvd::rank()).reshape({2, 3}).t();
    if (hvd::rank() == 0) {
      Catch([&] {
        const hvd::Handle handle = hvd::allreduce_async_(x, {.name = "g", .op = hvd::Sum});
        const hvd::Handle copied_back =
            hvd::allreduce_async_(columns, {.name = "columns", .op = hvd::Sum});
        const AtExit before{[] { hvd::barrier(); }};
        Throw();
      });
    } else {
      hvd::barrier();
      hvd::allreduce_(x, {.name = "g", .op = hvd::Sum});
      hvd::allreduce_(columns, {.name = "columns", .op = hvd::Sum});
    }
    const torch::Tensor sum = Six(0) + Six(1);
    EXPECT_TRUE(torch::equal(x, sum)) << x;
    EXPECT_TRUE(torch::equal(columns, sum.reshape({2, 3}).t())) << columns;
  };
  Run(body, "50");
}

// They keep their tensors until they end.
TEST_P(OperationsUnwound, OnMemoryOfTheirOwnAreNotWaitedFor) {
  const auto body = [] {
    const torch::Tensor x = torch::full({1000, 2}, hvd::rank() + 1.f);
    torch::Tensor input = torch::full({1000, 2}, hvd::rank() + 1.f);
    if (hvd::rank() == 0) {
      const c10::weak_intrusive_ptr<c10::TensorImpl> weak(input.getIntrusivePtr());
      Catch([&] {
        const hvd::Handle sum = hvd::allreduce_async(input, {.name = "sum", .op = hvd::Sum});
        const hvd::GroupHandle rows = hvd::grouped_allgather_async({x, x}, {.name = "rows"});
        const hvd::SparseHandle sparse =
            hvd::sparse_allreduce_async(x.to_sparse(1), {.name = "sparse"});
        input = torch::Tensor();
        Throw();
      });
      EXPECT_FALSE(weak.expired());
      hvd::barrier();  // nothing has ended the membership
      hvd::barrier();
      while (!weak.expired()) hvd::allreduce(torch::ones(1), {.op = hvd::Sum, .process_set = {1}});
    } else {
      hvd::barrier();
      EXPECT_TRUE(torch::equal(hvd::allreduce(x, {.name = "sum", .op = hvd::Sum}),
                               torch::full({1000, 2}, 3.f)));
      EXPECT_EQ(hvd::grouped_allgather({x, x}, {.name = "rows"})[1].size(0), 2000);
      EXPECT_EQ(hvd::sparse_allreduce(x.to_sparse(1), {.name = "sparse"}).to_dense().size(0), 1000);
      hvd::barrier();
    }
  };
  Run(body, "0");
}

// Gradients ------------------------------------------------------------------------------------

// What an operation does to the tensors of all ranks, in one process: the results of each rank.
using Model = std::function<Tensors(const Tensors&)>;

// Weighs results, so that no two elements of no two ranks count alike.
torch::Tensor LossOf(const torch::Tensor& result, int rank) {
  const torch::Tensor weight = torch::arange(result.numel(), torch::kDouble) * 0.7 + rank + 1;
  return (result.reshape({-1}).pow(2) * weight).sum();
}

// This rank's gradient of all ranks' losses, first and second.
Tensors Derivatives(const torch::Tensor& loss, const torch::Tensor& x) {
  const torch::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  const torch::Tensor second =
      torch::autograd::grad({(first * first).sum()}, {x}, {}, false, false)[0];
  return {first.detach(), second};
}

// Rank r's input has `rows(r)` rows.
void CheckGradient(const std::string& what, const std::function<int64_t(int)>& rows,
                   const std::function<torch::Tensor(const torch::Tensor&)>& operation,
                   const Model& model) {
  SCOPED_TRACE(what);
  torch::manual_seed(1);
  Tensors inputs;
  for (int rank = 0; rank < hvd::size(); ++rank) {
    inputs.push_back(torch::randn({rows(rank), 2}, torch::kDouble).requires_grad_());
  }
  const Tensors results = model(inputs);
  torch::Tensor loss = torch::zeros({}, torch::kDouble);
  for (int rank = 0; rank < hvd::size(); ++rank) loss = loss + LossOf(results[rank], rank);
  // The second derivative of one process: of the sum of all ranks' squared gradients.
  const Tensors firsts = torch::autograd::grad({loss}, inputs, {}, true, true);
  torch::Tensor squares = torch::zeros({}, torch::kDouble);
  for (const torch::Tensor& first : firsts) squares = squares + (first * first).sum();
  const Tensors seconds = torch::autograd::grad({squares}, inputs);

  const torch::Tensor x = inputs[hvd::rank()].detach().clone().requires_grad_();
  const torch::Tensor y = operation(x);
  EXPECT_TRUE(torch::allclose(y, results[hvd::rank()]));
  const Tensors got = Derivatives(LossOf(y, hvd::rank()), x);
  EXPECT_TRUE(torch::allclose(got[0], firsts[hvd::rank()])) << got[0] << firsts[hvd::rank()];
  EXPECT_TRUE(torch::allclose(got[1], seconds[hvd::rank()])) << got[1] << seconds[hvd::rank()];
}

torch::Tensor SumOf(const Tensors& tensors) {
  return torch::stack(tensors).sum(0);
}

Tensors OnAll(const torch::Tensor& tensor) {
  return Tensors(hvd::size(), tensor);
}

Tensors PartsOf(const torch::Tensor& tensor) {
  Tensors parts;
  for (int rank = 0; rank < hvd::size(); ++rank) parts.push_back(Part(tensor, rank, hvd::size()));
  return parts;
}

int64_t Four(int) {
  return 4;
}
int64_t Ragged(int rank) {
  return rank;  // and rank 0 has nothing
}

RANKS_TEST(Gradients, OfAllreduce, 1, 2, 3) {
  const int n = hvd::size();
  CheckGradient(
      "sum", Four, [](const auto& x) { return hvd::allreduce(x, {.name = "x", .op = hvd::Sum}); },
      [](const Tensors& all) { return OnAll(SumOf(all)); });
  CheckGradient(
      "average, unnamed", Four, [](const auto& x) { return hvd::allreduce(x); },
      [=](const Tensors& all) { return OnAll(SumOf(all) / n); });
  CheckGradient(
      "scaled", Four,
      [](const auto& x) {
        return hvd::allreduce(
            x, {.name = "x", .op = hvd::Average, .prescale_factor = 0.5, .postscale_factor = 3});
      },
      [=](const Tensors& all) { return OnAll(SumOf(all) * 1.5 / n); });
  CheckGradient(
      "grouped", Four,
      [](const auto& x) {
        const Tensors both = hvd::grouped_allreduce({x, x.sin()}, {.name = "g", .op = hvd::Sum});
        return both[0] * both[1];
      },
      [](const Tensors& all) {
        Tensors sines;
        for (const torch::Tensor& x : all) sines.push_back(x.sin());
        return OnAll(SumOf(all) * SumOf(sines));
      });
}

RANKS_TEST(Gradients, OfBroadcast, 1, 2, 3) {
  const int root = hvd::size() - 1;
  CheckGradient(
      "broadcast", Four,
      [=](const auto& x) { return hvd::broadcast(x, root, {.name = "x"}) + 0 * x; },
      [=](const Tensors& all) {
        Tensors results;
        for (const torch::Tensor& x : all) results.push_back(all[root] + 0 * x);
        return results;
      });
}

RANKS_TEST(Gradients, OfAllgather, 1, 2, 3) {
  const auto all_of = [](const Tensors& all) { return OnAll(torch::cat(all)); };
  CheckGradient(
      "equal", Four, [](const auto& x) { return hvd::allgather(x, {.name = "x"}); }, all_of);
  CheckGradient(
      "ragged", Ragged, [](const auto& x) { return hvd::allgather(x); }, all_of);
  CheckGradient(
      "grouped", Ragged,
      [](const auto& x) {
        return torch::cat(hvd::grouped_allgather({x, x.sin()}, {.name = "g"}));
      },
      [](const Tensors& all) {
        return OnAll(torch::cat({torch::cat(all), torch::cat(all).sin()}));
      });
}

RANKS_TEST(Gradients, OfAlltoall, 1, 2, 3) {
  CheckGradient(
      "alltoall",
      [](int rank) {
        int64_t rows = 0;
        for (int to = 0; to < hvd::size(); ++to) rows += RowCount(rank, to);
        return rows;
      },
      [](const auto& x) {
        return hvd::alltoall_with_splits(x, {.splits = MySplits(), .name = "x"}).first;
      },
      [](const Tensors& all) {
        Tensors results;
        for (int to = 0; to < hvd::size(); ++to) {
          Tensors parts;
          for (int from = 0; from < hvd::size(); ++from) {
            int64_t begin = 0;
            for (int before = 0; before < to; ++before) begin += RowCount(from, before);
            parts.push_back(all[from].narrow(0, begin, RowCount(from, to)));
          }
          results.push_back(torch::cat(parts));
        }
        return results;
      });
}

RANKS_TEST(Gradients, OfReducescatter, 1, 2, 3) {
  const int n = hvd::size();
  CheckGradient(
      "sum", Four,
      [](const auto& x) { return hvd::reducescatter(x, {.name = "x", .op = hvd::Sum}); },
      [](const Tensors& all) { return PartsOf(SumOf(all)); });
  CheckGradient(
      "average, scaled", Four,
      [](const auto& x) {
        return hvd::reducescatter(x, {.name = "x",
                                      .op = hvd::Average,
                                      .prescale_factor = 0.5,
                                      .postscale_factor = 3,
                                      .process_set = hvd::global_process_set});
      },
      [=](const Tensors& all) { return PartsOf(SumOf(all) * 1.5 / n); });
  CheckGradient(
      "grouped", Four,
      [](const auto& x) {
        const Tensors both =
            hvd::grouped_reducescatter({x, x.sin()}, {.name = "g", .op = hvd::Average});
        return both[0] * both[1];
      },
      [=](const Tensors& all) {
        Tensors sines;
        for (const torch::Tensor& x : all) sines.push_back(x.sin());
        return PartsOf(SumOf(all) * SumOf(sines) / (n * n));
      });
}

RANKS_TEST(Gradients, AreRefusedWhereThereIsNone, 1, 2) {
  const torch::Tensor x = torch::ones({2, 2}, torch::requires_grad());
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::allreduce(x, {.name = "x", .op = hvd::Max}); }, &message),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("'x' requires a gradient"), std::string::npos) << message;
  EXPECT_EQ(StatusOf([&] { hvd::reducescatter(x, {.name = "x", .op = hvd::Product}); }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([&] {
              hvd::grouped_allreduce({x.detach(), x}, {.name = "x", .op = hvd::Adasum});
            }),
            RUEDA_INVALID_ARGUMENT);
  EXPECT_FALSE(hvd::allreduce(x.detach(), {.name = "x", .op = hvd::Max}).requires_grad());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(hvd::allreduce(x, {.name = "x", .op = hvd::Max}).requires_grad());
  EXPECT_FALSE(hvd::alltoall(x.repeat({hvd::size(), 1})).requires_grad());
}

// An error in a backward pass is the same kind of error.
RANKS_TEST(Gradients, OfALostRankAreAnErrorOfTheBackwardPass, 2) {
  const torch::Tensor x = torch::ones({2}, torch::requires_grad());
  const torch::Tensor loss = hvd::allreduce(x, {.name = "x"}).sum();
  if (hvd::rank() == 1) rueda::test::LeaveWithoutShutdown();
  EXPECT_EQ(StatusOf([&] { loss.backward(); }), RUEDA_ABORTED);
  rueda::test::LeaveWithoutShutdown();
}

}  // namespace
