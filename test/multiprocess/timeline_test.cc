// The timelines of a job's ranks: every operation is in each of them with its phases, on one clock,
// whatever way the job runs and ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "test/support/check_timeline.h"
#include "test/support/run_ranks.h"
#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSteps = 3;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Timelines : public ::testing::TestWithParam<Setup> {
 protected:
  void SetUp() override { std::filesystem::create_directory(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  int SizeFor(int size) const { return GetParam().AtLeast(size); }
  RunOptions Options(int size) const {
    return {SizeFor(size),
            GetParam(),
            {{"timeline", path_}, {"log_level", "off"}, {"recorder_dir", directory_}}};
  }
  std::string FileOf(int rank, const std::string& word = "") const {
    return directory_ + "/t" + word + (rank == 0 ? "" : "." + std::to_string(rank)) + ".json";
  }
  std::vector<std::string> Files(int size, const std::string& word = "") const {
    std::vector<std::string> files;
    for (int rank = 0; rank < size; ++rank) files.push_back(FileOf(rank, word));
    return files;
  }
  void ExpectFiles(const std::vector<std::string>& files) const {
    std::vector<std::string> there;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      if (entry.path().extension() == ".json") there.push_back(entry.path().string());
    }
    EXPECT_THAT(there, ::testing::UnorderedElementsAreArray(files));
  }

  const std::string directory_ = ::testing::TempDir() + "/timelines-" + std::to_string(getpid());
  const std::string path_ = directory_ + "/t.json";
};
INSTANTIATE_TEST_SUITE_P(All, Timelines, ::testing::ValuesIn(AllSetups()),
                         [](const auto& setup) { return setup.param.name; });

// Submits all, then waits for all.
void ExecuteTogether(rueda_context* context, const std::vector<rueda_operation>& operations,
                     const rueda_completion* completion) {
  std::vector<rueda_handle> handles;
  for (const rueda_operation& operation : operations) {
    handles.emplace_back();
    ASSERT_EQ(rueda_submit(context, &operation, 1, completion, &handles.back()), RUEDA_OK)
        << rueda_last_error();
  }
  for (const rueda_handle handle : handles) {
    EXPECT_EQ(rueda_wait(context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_release(context, handle), RUEDA_OK);
  }
}

void ExecuteGroup(rueda_context* context, const std::vector<rueda_operation>& operations) {
  EXPECT_EQ(rueda_execute(context, operations.data(), operations.size(), RUEDA_FOREVER, nullptr),
            RUEDA_OK)
      << rueda_last_error();
}

// One of each kind; half of the ranks submit in another order.
void RunStep(rueda_context* context, int rank) {
  std::vector<float> values[6];
  std::vector<std::unique_ptr<TensorOf>> tensors;
  for (size_t i = 0; i < 6; ++i) {
    values[i].assign(100'000 >> (2 * i), 1);
    tensors.push_back(std::make_unique<TensorOf>(values[i]));
  }
  std::vector<rueda_operation> operations = {
      Allreduce("a \"quoted\" name", tensors[0]->get()), Allreduce("b", tensors[1]->get()),
      Allgather("gathered", tensors[2]->get()), Broadcast("cast", tensors[3]->get(), 0)};
  if (rank % 2 == 1) std::reverse(operations.begin(), operations.end());
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.callback = [](void*, rueda_handle, rueda_status) {};
  if (rank % 2 == 1) completion.flags = RUEDA_COMPLETION_INLINE;
  ExecuteTogether(context, operations, &completion);
  std::vector<float> nothing;
  TensorOf empty(nothing);
  ExecuteGroup(context, {Allreduce("g0", tensors[4]->get()), Allreduce("empty", empty.get()),
                         Allreduce("g1", tensors[5]->get())});
  EXPECT_EQ(Execute(context, Barrier("gate")), RUEDA_OK) << rueda_last_error();
  EXPECT_EQ(Execute(context, Barrier()), RUEDA_OK) << rueda_last_error();
}

TEST_P(Timelines, HaveEveryPhaseOfEveryOperationOnEveryRank) {
  const int size = SizeFor(3);
  RunRanks(Options(3), [&](rueda_context* context, int rank) {
    for (int step = 0; step < kSteps; ++step) RunStep(context, rank);
    int32_t set = 0;
    const int32_t ranks[] = {0, 1};
    ASSERT_EQ(rueda_process_set_add(context, ranks, 2, RUEDA_FOREVER, &set), RUEDA_OK)
        << rueda_last_error();
    if (rank >= 2) return;
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    rueda_operation operation = Allreduce("b", tensor.get());
    operation.process_set = set;
    EXPECT_EQ(Execute(context, operation), RUEDA_OK) << rueda_last_error();
  });
  ExpectFiles(Files(size));
  const std::string steps = std::to_string(kSteps);
  std::vector<std::string> options;
  for (const char* each : {"a \"quoted\" name=ALLREDUCE", "b=ALLREDUCE", "gathered=ALLGATHER",
                           "cast=BROADCAST", "g0=ALLREDUCE", "g1=ALLREDUCE", "gate=BARRIER"}) {
    options.push_back("--tensor=" + std::string(each) + ":" + steps);
  }
  for (const char* span : {"WAIT", "CALLBACK", "NEGOTIATE_ADD_PROCESS_SET"}) {
    options.push_back("--span=" + std::string(span));
  }
  options.push_back("--instant=PROCESS_SET=process set 1: ranks 0, 1");
  options.push_back("--instant=LEFT=rank 0 has shut down");
  // The group is fused: it has a buffer of its own, which is packed before anything moves.
  const std::string world = ReadFile(FileOf(0));
  if (world.find("\"lane 0 (gloo)\"") != std::string::npos) {
    options.push_back("--span=MEMCPY_IN_FUSION_BUFFER");
    options.push_back("--span=MEMCPY_OUT_FUSION_BUFFER");
  } else {
    EXPECT_THAT(world,
                AllOf(AnyOf(HasSubstr("\"lane 0 (shm)\""), HasSubstr("\"lane 0 (hierarchical)\"")),
                      HasSubstr("\"memcpy_in_ns\":")));
  }
  EXPECT_EQ(TimelineComplaint(options, Files(size)), "");
  EXPECT_EQ(TimelineComplaint({"--tensor=b (set 1)=ALLREDUCE:1"}, {FileOf(0), FileOf(1)}), "");
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_THAT(ReadFile(FileOf(rank)),
                HasSubstr("{\"name\":\"rank " + std::to_string(rank) + " ("));
  }
}

TEST_P(Timelines, StartAndStopWhenAsked) {
  constexpr int kRounds = 4;
  RunOptions run = Options(2);
  run.knobs.erase(run.knobs.begin());
  RunRanks(run, [&](rueda_context* context, int rank) {
    EXPECT_EQ(rueda_timeline_stop(context), RUEDA_FAILED_PRECONDITION);
    for (int round = 0; round < kRounds; ++round) {
      RunStep(context, rank);
      const std::string path = directory_ + "/t" + std::to_string(round) + ".json";
      ASSERT_EQ(rueda_timeline_start(context, path.c_str()), RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_timeline_start(context, path.c_str()), RUEDA_FAILED_PRECONDITION);
      for (int step = 0; step <= round; ++step) RunStep(context, rank);
      ASSERT_EQ(rueda_timeline_stop(context), RUEDA_OK) << rueda_last_error();
    }
    EXPECT_EQ(rueda_timeline_stop(context), RUEDA_FAILED_PRECONDITION);
    EXPECT_THAT(rueda_last_error(), HasSubstr("the timeline is off"));
  });
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<std::string> files = Files(run.size, std::to_string(round));
    EXPECT_EQ(TimelineComplaint({"--tensor=b=ALLREDUCE:" + std::to_string(round + 1),
                                 "--tensor=g1=ALLREDUCE:" + std::to_string(round + 1)},
                                files),
              "");
  }
}

// While another thread keeps the job busy.
TEST_P(Timelines, AreWholeThoughStartedAndStoppedInTheMiddle) {
  RunOptions run = Options(2);
  run.knobs.erase(run.knobs.begin());
  RunRanks(run, [&](rueda_context* context, int rank) {
    std::atomic<bool> over{false};
    std::thread busy([&] {  // both ranks stop behind the same round
      for (float go_on = 1; go_on != 0;) {
        RunStep(context, rank);
        std::vector<float> flag = {over ? 0.0f : 1.0f};
        const TensorOf tensor(flag);
        ASSERT_EQ(Execute(context, Allreduce("go on", tensor.get(), RUEDA_MAX)), RUEDA_OK);
        go_on = flag[0];
      }
    });
    for (int round = 0; round < 5; ++round) {
      const std::string path = directory_ + "/t" + std::to_string(round) + ".json";
      EXPECT_EQ(rueda_timeline_start(context, path.c_str()), RUEDA_OK) << rueda_last_error();
      const std::string own = FileOf(rank, std::to_string(round));
      while (ReadFile(own).find("\"ALLREDUCE\"") == std::string::npos) usleep(1'000);
      EXPECT_EQ(rueda_timeline_stop(context), RUEDA_OK) << rueda_last_error();
    }
    over = true;
    busy.join();
  });
  for (int round = 0; round < 5; ++round) {
    for (const std::string& file : Files(run.size, std::to_string(round))) {
      EXPECT_EQ(TimelineComplaint({"--middle"}, {file}), "");
    }
  }
}

TEST_P(Timelines, TellWhatWasRejectedAndWhy) {
  const int size = SizeFor(2);
  RunRanks(Options(2), [&](rueda_context* context, int rank) {
    std::vector<float> values(rank == 0 ? 10 : 20, 1);
    const TensorOf tensor(values);
    EXPECT_EQ(Execute(context, Allreduce("odd", tensor.get())), RUEDA_INVALID_ARGUMENT);
    std::vector<float> gathered(3);
    const TensorOf wrong(gathered);
    rueda_operation operation = Allgather("too small", tensor.get());
    operation.output = wrong.get();
    EXPECT_EQ(Execute(context, operation), RUEDA_INVALID_ARGUMENT);
  });
  EXPECT_EQ(TimelineComplaint({"--span=NEGOTIATE_ALLREDUCE",
                               "--instant=ERROR='odd': the ranks disagree on the shape",
                               "--tensor=odd=ALLREDUCE:0", "--tensor=too small=ALLGATHER:1",
                               "--instant=ERROR='too small': the result has shape"},
                              Files(size)),
            "");
}

TEST_P(Timelines, EndWithTheMembershipThatFailsAndTheNextHasItsOwn) {
  const int size = SizeFor(2);
  RunJoiners(Options(2), [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    RunStep(context, rank);
    const rueda_status last = Execute(context, Barrier("last"));
    if (rank != 1) {  // the abort may overtake it
      EXPECT_THAT(last, AnyOf(RUEDA_OK, RUEDA_ABORTED)) << rueda_last_error();
    } else {
      EXPECT_EQ(last, RUEDA_OK) << rueda_last_error();
      EXPECT_EQ(rueda_abort(context, "loss is NaN"), RUEDA_OK);
    }
    EXPECT_EQ(Execute(context, Barrier("never")), RUEDA_ABORTED);
    // It ends by itself, if we don't come first.
    EXPECT_THAT(rueda_timeline_stop(context), AnyOf(RUEDA_OK, RUEDA_FAILED_PRECONDITION));
    EXPECT_EQ(rueda_timeline_start(context, path_.c_str()), RUEDA_FAILED_PRECONDITION);
    EXPECT_THAT(rueda_last_error(), HasSubstr("the membership has failed"));
    ASSERT_EQ(rueda_context_reset(context), RUEDA_OK) << rueda_last_error();
    RunStep(context, rank);
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
  EXPECT_EQ(TimelineComplaint(
                {"--instant=FAILURE=rank 1 aborted the job: loss is NaN", "--tensor=b=ALLREDUCE:1"},
                Files(size)),
            "");
  EXPECT_EQ(TimelineComplaint({"--tensor=b=ALLREDUCE:1"}, Files(size, ".membership2")), "");
}

TEST_P(Timelines, EndWithAContextThatIsDestroyed) {
  RunJoiners(Options(2), [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    RunStep(context, rank);
    EXPECT_THAT(Execute(context, Barrier("last")), AnyOf(RUEDA_OK, RUEDA_ABORTED));
    rueda_context_destroy(context);
  });
  EXPECT_EQ(TimelineComplaint({"--instant=FAILURE=without shutting down"}, Files(SizeFor(2))), "");
}

// A file that one rank can't write: none begins to train.
TEST_P(Timelines, ThatCantBeWrittenEndTheStartOnEveryRank) {
  std::filesystem::create_directory(FileOf(1));
  RunJoiners(Options(2), [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    const rueda_status status = join(&context);
    if (rank == 1) {
      EXPECT_NE(status, RUEDA_OK);
      EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr(FileOf(1)), HasSubstr("Is a directory")));
      return;
    }
    if (status == RUEDA_OK) {  // the abort comes when it comes
      EXPECT_EQ(Execute(context, Barrier()), RUEDA_ABORTED);
    }
    EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr("rank 1"), HasSubstr(FileOf(1))));
    rueda_context_destroy(context);
  });
}

// Processes only ------------------------------------------------------------------------------

class KilledTimelines : public Timelines {};
INSTANTIATE_TEST_SUITE_P(All, KilledTimelines, ::testing::ValuesIn([] {
                           std::vector<Setup> setups;
                           for (const Setup& setup : AllSetups()) {
                             if (setup.ranks == Ranks::kProcesses) setups.push_back(setup);
                           }
                           return setups;
                         }()),
                         [](const auto& setup) { return setup.param.name; });

TEST_P(KilledTimelines, AreThereAsFarAsTheyGot) {
  const int size = SizeFor(3);
  const int victim = size - 1;
  auto* rounds =
      static_cast<std::atomic<int>*>(mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const std::vector<int> pids = StartProcesses(Options(3), [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::vector<float> values(1'000, 1);
    const TensorOf tensor(values);
    while (Execute(context, Allreduce("again", tensor.get(), RUEDA_MAX)) == RUEDA_OK) {
      if (rank == victim) ++*rounds;
    }
    EXPECT_EQ(rueda_shutdown(context), RUEDA_ABORTED);
    rueda_context_destroy(context);
  });
  // Something of it is in the file by then.
  while (*rounds < 20 || ReadFile(FileOf(victim)).find("\"ALLREDUCE\"") == std::string::npos) {
    siginfo_t ended = {};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pids[victim]), &ended, WEXITED | WNOHANG | WNOWAIT),
              0);
    ASSERT_EQ(ended.si_pid, 0) << "it has ended by itself";
    usleep(100);
  }
  kill(pids[victim], SIGKILL);
  for (int rank = 0; rank < size; ++rank) {
    const int status = AwaitProcess(pids[rank]);
    if (rank != victim) {
      EXPECT_EQ(status, 0);
    }
  }
  munmap(rounds, sizeof(std::atomic<int>));
  EXPECT_EQ(TimelineComplaint({"--cut", "--dropped", "--span=ALLREDUCE"}, {FileOf(victim)}), "");
  EXPECT_EQ(TimelineComplaint({"--dropped", "--span=ALLREDUCE",
                               "--instant=FAILURE=rank " + std::to_string(victim)},
                              Files(size - 1)),
            "");
}

// Rank 1 ends when it is asked for memory, which is when rank 0 is about to begin, or has begun.
TEST(Timeline, ShowsHowFarAnOperationGotThatFailed) {
  const std::string directory =
      ::testing::TempDir() + "/timeline-failed-" + std::to_string(getpid());
  std::filesystem::create_directory(directory);
  const std::string path = directory + "/t.json";
  const RunOptions options{2,
                           {"processes", Ranks::kProcesses, {}},
                           {{"timeline", path}, {"log_level", "off"}, {"recorder_dir", directory}}};
  const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join& join) {
    rueda_context* context = nullptr;
    ASSERT_EQ(join(&context), RUEDA_OK) << rueda_last_error();
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    rueda_operation operation = Allgather("half", tensor.get());
    if (rank == 1) {
      operation.allocate = [](void*, int32_t, const int64_t*, int32_t) -> void* { _exit(0); };
    }
    EXPECT_EQ(Execute(context, operation), RUEDA_ABORTED);
    rueda_context_destroy(context);
  });
  for (const int pid : pids) EXPECT_EQ(AwaitProcess(pid), 0);
  EXPECT_EQ(TimelineComplaint({"--span=NEGOTIATE_ALLGATHER", "--span=QUEUE", "--span=ALLGATHER",
                               "--instant=ERROR=rank 1", "--instant=FAILURE=rank 1"},
                              {path}),
            "");
  if (!HasFailure()) std::filesystem::remove_all(directory);
}

// Ranks that don't know that they are on one host compare clocks, which are one all the same.
TEST(Timeline, ShowsAllHostsByRank0sClock) {
  const std::string stem = ::testing::TempDir() + "/timeline-clocks-" + std::to_string(getpid());
  const std::string job = "clocks-" + std::to_string(getpid());
  const std::string secret = stem + ".secret";
  const int fd = open(secret.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ASSERT_EQ(write(fd, "0123456789abcdef", 16), 16);
  close(fd);
  const RunOptions options{3, {"processes", Ranks::kProcesses, {}}};
  const std::vector<int> pids = StartProcesses(options, [&](int rank, const Join&) {
    const std::vector<std::string> words = {"rank",        std::to_string(rank),
                                            "size",        "3",
                                            "job_id",      job,
                                            "host_id",     "host " + std::to_string(rank),
                                            "secret_file", secret,
                                            "timeline",    stem + ".json",
                                            "bus",         "tcp"};
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
    init.knobs = pointers.data();
    init.knob_count = pointers.size() / 2;
    rueda_context* context = nullptr;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &init, &context), RUEDA_OK) << rueda_last_error();
    EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(context);
  });
  for (const int pid : pids) EXPECT_EQ(AwaitProcess(pid), 0);
  for (const std::string rank : {"", ".1", ".2"}) {
    const std::string file = stem + rank + ".json";
    EXPECT_EQ(TimelineComplaint({}, {file}), "");
    const std::string text = ReadFile(file);
    const auto value = [&](const std::string& name) {
      const size_t at = text.find("\"" + name + "\":");
      return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 3));
    };
    if (rank.empty()) {
      EXPECT_EQ(value("clock_uncertainty_ns"), 0);
    } else {
      EXPECT_GT(value("clock_uncertainty_ns"), 0);
    }
    EXPECT_LE(std::abs(value("clock_offset_ns")), value("clock_uncertainty_ns"));
    std::filesystem::remove(file);
  }
  std::filesystem::remove(secret);
}

TEST(Timeline, TensorsForWhomNoRowIsLeftShareOne) {
  constexpr int kTensors = 10'050, kRows = 9'999;
  const std::string path =
      ::testing::TempDir() + "/timeline-rows-" + std::to_string(getpid()) + ".json";
  rueda_context* context = nullptr;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.name = "rows";
  ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK) << rueda_last_error();
  ASSERT_EQ(rueda_timeline_start(context, path.c_str()), RUEDA_OK) << rueda_last_error();
  std::vector<float> values(1, 1);
  const TensorOf tensor(values);
  for (int i = 1; i <= kTensors; ++i) {
    const std::string name = "t" + std::to_string(i);
    ASSERT_EQ(Execute(context, Allreduce(name.c_str(), tensor.get())), RUEDA_OK);
  }
  EXPECT_EQ(rueda_shutdown(context), RUEDA_OK);
  rueda_context_destroy(context);
  const std::string last = "--tensor=t" + std::to_string(kRows) + "=ALLREDUCE:1";
  const std::string beyond = "--tensor=t" + std::to_string(kRows + 1) + "=ALLREDUCE:0";
  EXPECT_EQ(TimelineComplaint({last, beyond}, {path}), "");
  const std::string text = ReadFile(path);
  EXPECT_THAT(text, HasSubstr("{\"name\":\"all other tensors\"}"));
  int shown = 0;
  for (size_t at = 0;
       (at = text.find("\"tid\":10000,\"name\":\"ALLREDUCE\"", at)) != std::string::npos; ++at) {
    ++shown;
  }
  EXPECT_EQ(shown, kTensors - kRows);
  std::filesystem::remove(path);
}

TEST(Timeline, TellsOfStallsOnRank0) {
  const std::string path =
      ::testing::TempDir() + "/timeline-stall-" + std::to_string(getpid()) + ".json";
  const RunOptions options{2,
                           {"processes", Ranks::kProcesses, {}},
                           {{"stall_warn_s", "0.05"}, {"timeline", path}, {"log_level", "error"}}};
  RunRanks(options, [&](rueda_context* context, int rank) {
    std::vector<float> values(10, 1);
    const TensorOf tensor(values);
    if (rank == 1) usleep(200'000);  // time itself is under test
    ASSERT_EQ(Execute(context, Allreduce("slow", tensor.get())), RUEDA_OK);
  });
  EXPECT_EQ(TimelineComplaint({"--instant=STALL=allreduce 'slow' has waited for 0."}, {path}), "");
  std::filesystem::remove(path);
  std::filesystem::remove(path.substr(0, path.size() - 5) + ".1.json");
}

}  // namespace
}  // namespace rueda::testing
