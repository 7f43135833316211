// One test body again and again, each time with another call refused to rank 0 (refuse.h), until
// there are no more: either nothing comes of it, or an error names the cause on every rank.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "rueda/rueda.h"
#include "test/support/refuse.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {

// The result of an operation, or of the whole job.
inline void Note(rueda_status status, std::string* first) {
  StopRefusing();
  if (status != RUEDA_OK && first->empty()) *first = rueda_last_error();
}

// What an error says whose cause is that there is no memory.
inline auto NamesMissingMemory() {
  return ::testing::AnyOf(::testing::HasSubstr("bad_alloc"), ::testing::HasSubstr("out of memory"),
                          ::testing::HasSubstr("no memory"));
}

// Whether rank 0 was refused anything, which may be a process of its own.
class Refusal {
 public:
  Refusal() { EXPECT_EQ(pipe2(ends_, O_NONBLOCK), 0); }
  ~Refusal() {
    close(ends_[0]);
    close(ends_[1]);
  }
  // At rank 0: nothing is refused any more.
  void Tell() {
    StopRefusing();
    const char was = WasRefused() ? 1 : 0;
    EXPECT_EQ(write(ends_[1], &was, 1), 1);
  }
  // When all have ended.
  bool Ask() {
    char was = 0;
    EXPECT_EQ(read(ends_[0], &was, 1), 1) << "rank 0 did not get there";
    return was != 0;
  }

 private:
  int ends_[2];
};

// The n-th such call of rank 0 is refused, n = 0, 1, ... until none is. Who fails at the call
// itself has ended its own part; the others hear it from the membership's end. `work(context,
// first)` is the body; what it calls by Call counts. `first` is its first error, whose words are
// `cause`.
template <typename Cause, typename Work>
void RefuseEach(Refusable what, RunOptions options, const Cause& cause, const Work& work) {
  constexpr int kCallsMax = 2'000;
  options.may_fail = true;
  options.knobs.emplace_back("log_level", "off");
  options.knobs.emplace_back("recorder_dir", "/nowhere");
  bool was_refused = true;
  for (int n = 0; was_refused && n < kCallsMax; n += n < 40 ? 1 : 7) {
    SCOPED_TRACE(std::string(NameOf(what)) + " " + std::to_string(n));
    Refusal refusal;
    RunRanks(options, [&](rueda_context* context, int rank) {
      SetExempt(true);
      std::string first;
      const rueda_status begun = Execute(context, Barrier());
      // Rank 0 goes on, and may have ended the membership before this one knows.
      ASSERT_TRUE(begun == RUEDA_OK || (rank != 0 && begun == RUEDA_ABORTED)) << rueda_last_error();
      if (rank == 0) RefuseNth(what, n);
      work(context, &first);
      if (rank == 0) refusal.Tell();
      if (first.empty()) return;
      EXPECT_THAT(first, cause);
      (void)rueda_abort(context, first.c_str());  // the others must not wait for what it left out
    });
    was_refused = refusal.Ask();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_FALSE(was_refused) << "there are more calls than were tried";
}

}  // namespace rueda::testing
