// Exceptions that unwind past handles of the C++ API: nobody waits without a limit, and memory that
// an operation uses is there until its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rueda/rueda.hpp"
#include "test/support/run_ranks.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

class Unwind : public ::testing::TestWithParam<rueda::testing::Setup> {
 protected:
  // On two ranks, the body's current context being its rank's. `limit_s`: the knob.
  void Run(const std::string& limit_s, const std::function<void(int rank)>& body,
           bool may_fail = false) {
    rueda::testing::RunOptions options{2, GetParam(), {{"unwind_timeout_s", limit_s}}, may_fail};
    rueda::testing::RunRanks(options, [&](rueda_context* context, int rank) {
      rueda_set_thread_context(context);
      body(rank);
      rueda_set_thread_context(nullptr);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(All, Unwind, ::testing::ValuesIn(rueda::testing::FewSetups()),
                         [](const auto& setup) { return setup.param.name; });

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

std::string Failure(const std::function<void()>& call, rueda_status status) {
  try {
    call();
  } catch (const rueda::Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Calls `fn` where the stack unwinds past it.
struct AtExit {
  std::function<void()> fn;
  ~AtExit() { fn(); }
};

void AwaitWhatWasLeftBehind() {
  while (rueda::detail::left_behind.load() != nullptr) {
    rueda::detail::Sweep();
    std::this_thread::yield();
  }
}

TEST_P(Unwind, PastAnOperationInPlaceThatNobodyJoinsTheMembershipEnds) {
  struct Case {
    const char* label;
    std::function<rueda::Handle<>(Floats& data)> start;
  };
  for (const Case& of : {
           Case{"allreduce 'g'",
                [](Floats& data) { return rueda::allreduce_async_(data, {.name = "g"}); }},
           Case{"reduce 'g'",
                [](Floats& data) { return rueda::reduce_async_(data, 1, {.name = "g"}); }},
           Case{"broadcast 'g'",
                [](Floats& data) { return rueda::broadcast_async_(data, 1, {.name = "g"}); }},
           Case{"recv", [](Floats& data) { return rueda::recv_async(data, 1, {.name = "g"}); }},
           Case{"allreduce 'g.0'",
                [](Floats& data) {
                  return rueda::grouped_allreduce_async_({rueda::TensorView(data)}, {.name = "g"});
                }},
       }) {
    Run(
        "0.1",
        [&](int rank) {
          if (rank == 0) {
            Catch([&] {
              Floats data(1000, 1);
              const rueda::Handle<> handle = of.start(data);
              Throw();
            });
          }
          EXPECT_THAT(Failure([] { rueda::barrier(); }, RUEDA_ABORTED),
                      AllOf(HasSubstr("rank 0 aborted the job"), HasSubstr(of.label),
                            HasSubstr("an exception unwound past its handle"),
                            HasSubstr("within 0.1 s (RUEDA_UNWIND_TIMEOUT_S)")));
        },
        /*may_fail=*/true);
    if (HasFailure()) break;
  }
}

// One of them, and not each, takes the limit.
TEST_P(Unwind, PastManyOperationsInPlaceTheMembershipEndsOnce) {
  Run(
      "0.1",
      [](int rank) {
        if (rank == 0) {
          Catch([] {
            std::vector<Floats> data(1000, Floats(3, 1));
            std::vector<rueda::Handle<>> handles;
            for (Floats& each : data) handles.push_back(rueda::allreduce_async_(each));
            Throw();
          });
        }
        Failure([] { rueda::barrier(); }, RUEDA_ABORTED);
      },
      /*may_fail=*/true);
}

// The others join it when the exception is unwinding already.
TEST_P(Unwind, PastAnOperationInPlaceThatTheOthersJoinItIsWaitedFor) {
  Run("50", [](int rank) {
    Floats data(1000, static_cast<float>(rank + 1));
    if (rank == 0) {
      Catch([&] {
        const auto handle = rueda::allreduce_async_(data, {.name = "g", .op = rueda::Sum});
        const AtExit before{[] { rueda::barrier(); }};
        Throw();
      });
    } else {
      rueda::barrier();
      rueda::allreduce_(data, {.name = "g", .op = rueda::Sum});
    }
    EXPECT_EQ(data, Floats(1000, 3));
    EXPECT_EQ(rueda::allreduce(Floats{1}, {.name = "goes on", .op = rueda::Sum}), Floats{2});
  });
}

TEST_P(Unwind, PastAnOperationWithItsOwnMemoryNobodyWaits) {
  Run("0", [](int rank) {
    if (rank == 0) {
      Catch([] {
        Floats data(1000, 1);
        const auto sum = rueda::allreduce_async(data, {.name = "sum", .op = rueda::Sum});
        const auto rows = rueda::allgather_async(data, {.name = "rows"});
        const auto sent = rueda::send_async(data, 1, {.name = "sent"});
        Throw();
      });
      EXPECT_NE(rueda::detail::left_behind.load(), nullptr);
      rueda::barrier();  // nothing has ended the membership
      rueda::barrier();
      AwaitWhatWasLeftBehind();
    } else {
      rueda::barrier();
      Floats data(1000, 2);
      EXPECT_EQ(rueda::allreduce(data, {.name = "sum", .op = rueda::Sum}), Floats(1000, 3));
      EXPECT_EQ(rueda::allgather(data, {.name = "rows"})[999], 1);
      rueda::recv(data, 0, {.name = "sent"});
      EXPECT_EQ(data, Floats(1000, 1));
      rueda::barrier();
    }
  });
}

TEST_P(Unwind, PastAnOperationWithItsOwnMemoryThatNobodyJoinsTheRankCanLeave) {
  Run("0", [](int rank) {
    if (rank == 1) {
      EXPECT_THAT(Failure([] { rueda::barrier(); }, RUEDA_FAILED_PRECONDITION),
                  HasSubstr("rank 0 has shut down"));
      return;
    }
    Catch([] {
      const auto handle = rueda::allreduce_async(Floats(1000, 1), {.name = "g"});
      Throw();
    });
  });
  AwaitWhatWasLeftBehind();  // of ranks that are threads: their contexts are gone
}

// Counted from where it was started, whatever has moved it since.
TEST_P(Unwind, AHandleThatIsMovedOutOfTheWayIsNotUnwoundPast) {
  Run("0", [](int rank) {
    Floats data(1000, static_cast<float>(rank + 1));
    std::optional<rueda::Handle<>> kept;
    Catch([&] {
      auto handle = rueda::allreduce_async_(data, {.name = "g", .op = rueda::Sum});
      kept = std::move(handle);
      Throw();
    });
    kept.reset();
    EXPECT_EQ(data, Floats(1000, 3));
  });
}

// A destructor that runs meanwhile may use handles of its own: they are not what is unwound past.
TEST_P(Unwind, AHandleThatIsMadeMeanwhileWaits) {
  Run("0", [](int rank) {
    Floats data(1000, static_cast<float>(rank + 1));
    Catch([&] {
      const AtExit meanwhile{[&] {
        const auto handle = rueda::allreduce_async_(data, {.name = "g", .op = rueda::Sum});
      }};
      Throw();
    });
    EXPECT_EQ(data, Floats(1000, 3));
  });
}

// A late handle does not wait for, nor release, what is another's.
TEST_P(Unwind, AHandleOfAnEarlierMembershipIsStillThatOfItsOperation) {
  Run("0", [](int rank) {
    const Floats data(1000, 1);
    const uint64_t first = rueda::membership();
    const auto good = rueda::allreduce_async(data, {.name = "good"});
    const Floats other(static_cast<size_t>(3 + rank), 1);
    const auto mismatched = rueda::allreduce_async(other, {.name = "mismatched"});
    rueda::barrier();  // they have ended
    std::optional<rueda::Handle<Floats>> bad;
    if (rank == 0) {
      bad = rueda::allreduce_async(data, {.name = "bad"});
      rueda::barrier();  // the other goes on to its loop
      rueda::abort("enough");
    }
    Failure(
        [] {
          while (true) rueda::barrier();
        },
        RUEDA_ABORTED);
    rueda::reset();
    const auto next = rueda::allreduce_async(data, {.name = "next"});
    EXPECT_TRUE(rueda::poll(good));
    EXPECT_EQ(rueda::synchronize(good), data);
    try {
      (void)rueda::synchronize(mismatched);
      ADD_FAILURE() << "no error";
    } catch (const rueda::MismatchError& error) {
      EXPECT_EQ(error.membership(), first);
    }
    if (bad.has_value()) Failure([&] { (void)rueda::synchronize(*bad); }, RUEDA_ABORTED);
    bad.reset();
    EXPECT_EQ(rueda::synchronize(next), data);
  });
}

}  // namespace
