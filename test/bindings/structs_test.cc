// Structs of programs that were built with another version's header: every function takes a shorter
// one and a longer one with zeros at its end, touches nothing beyond it, and refuses what it does
// not know.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "test/support/tensors.h"

namespace rueda::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kMore = 24;  // bytes that a newer version has

// Structs of `size` bytes each, at the end of a page: whoever reads or writes beyond them crashes.
template <typename T>
class Foreign {
 public:
  Foreign(const std::vector<T>& values, size_t size, unsigned char tail = 0)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    map_ = static_cast<char*>(
        mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(map_, MAP_FAILED);
    EXPECT_EQ(mprotect(map_ + page_, page_, PROT_NONE), 0);
    at_ = map_ + page_ - values.size() * size;
    for (size_t i = 0; i < values.size(); ++i) {
      char* const one = at_ + i * size;
      memcpy(one, &values[i], std::min(size, sizeof(T)));
      memcpy(one, &size, sizeof size);
      if (size > sizeof(T) && i + 1 == values.size()) one[size - 1] = static_cast<char>(tail);
    }
  }
  Foreign(const T& value, size_t size, unsigned char tail = 0)
      : Foreign(std::vector<T>{value}, size, tail) {}
  Foreign(const Foreign&) = delete;
  ~Foreign() { munmap(map_, 2 * page_); }

  T* get() const { return reinterpret_cast<T*>(at_); }
  size_t size() const {
    size_t size;
    memcpy(&size, at_, sizeof size);
    return size;
  }
  // What is there of it, the rest as in `beyond`.
  T Value(const T& beyond) const {
    T value = beyond;
    memcpy(&value, at_, std::min(size(), sizeof(T)));
    return value;
  }

 private:
  const size_t page_;
  char* map_;
  char* at_;
};

// What a case works with: a world of one rank.
struct World {
  rueda_context* context = nullptr;
  std::vector<float> values = {1, 2, 3, 4};
  TensorOf tensor{values};
};

// One function with a struct of `size` bytes, whose last byte is `tail` if it is a longer one. OK:
// the function did what it is to do.
using Use = std::function<rueda_status(World* world, size_t size, unsigned char tail)>;

struct Case {
  std::string name;  // of the struct, "In", the function
  std::string of;    // the struct
  size_t size_min;   // of the oldest version
  size_t size_now;
  Use use;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

void Count(void* user, rueda_handle, rueda_status status) {
  std::atomic<int>& ended = *static_cast<std::atomic<int>*>(user);
  if (status == RUEDA_OK) ++ended;
  ended.notify_one();
}

rueda_status Finish(World* world, rueda_status status, rueda_handle handle) {
  if (status != RUEDA_OK) return status;
  EXPECT_EQ(rueda_wait(world->context, handle, RUEDA_FOREVER), RUEDA_OK) << rueda_last_error();
  return rueda_release(world->context, handle);
}

rueda_status SubmitAll(World* world, const rueda_operation* operations, size_t count) {
  rueda_handle handle = 0;
  const rueda_status status = rueda_submit(world->context, operations, count, nullptr, &handle);
  return Finish(world, status, handle);
}

rueda_status ExecuteAll(World* world, const rueda_operation* operations, size_t count) {
  return rueda_execute(world->context, operations, count, RUEDA_FOREVER, nullptr);
}

using Run = rueda_status (*)(World* world, const rueda_operation* operations, size_t count);

// Operations of another version, one or a group of two.
Use OperationsBy(Run run, size_t count) {
  return [=](World* world, size_t size, unsigned char tail) {
    std::vector<rueda_operation> all;
    const char* const names[] = {"a", "b"};
    std::vector<float> others = {5, 6};
    const TensorOf other(others);
    for (size_t i = 0; i < count; ++i) {
      all.push_back(Allreduce(names[i], i == 0 ? world->tensor.get() : other.get()));
      all.back().postscale = 2;
    }
    world->values = {1, 2, 3, 4};
    const Foreign<rueda_operation> foreign(all, size, tail);
    const rueda_status status = run(world, foreign.get(), count);
    if (status != RUEDA_OK) return status;
    EXPECT_EQ(world->values, (std::vector<float>{2, 4, 6, 8}));
    if (count == 2) {
      EXPECT_EQ(others, (std::vector<float>{10, 12}));
    }
    return status;
  };
}

// Where operations of this version run, in a struct of another one.
Use ExecBy(Run run, size_t count) {
  return [=](World* world, size_t size, unsigned char tail) {
    const Foreign<rueda_exec> foreign(RUEDA_EXEC_INIT, size, tail);
    const Foreign<rueda_exec> second(RUEDA_EXEC_INIT, size);
    std::vector<float> others = {5, 6};
    const TensorOf other(others);
    rueda_operation operations[] = {Allreduce("a", world->tensor.get()),
                                    Allreduce("b", other.get())};
    operations[0].exec = foreign.get();
    operations[1].exec = second.get();
    return run(world, operations, count);
  };
}

rueda_status InitWith(World*, size_t size, unsigned char tail) {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.name = "other";
  const Foreign<rueda_init_options> foreign(options, size, tail);
  rueda_context* context = nullptr;
  const rueda_status status = rueda_init(RUEDA_VERSION, foreign.get(), &context);
  if (status != RUEDA_OK) return status;
  EXPECT_EQ(rueda_shutdown(context), RUEDA_OK) << rueda_last_error();
  rueda_context_destroy(context);
  return status;
}

// One that is given with the operation, or afterwards.
rueda_status Complete(World* world, size_t size, unsigned char tail, bool afterwards) {
  std::atomic<int> ended{0};
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.callback = Count;
  completion.user = &ended;
  const Foreign<rueda_completion> foreign(completion, size, tail);
  const rueda_operation operation = Allreduce("a", world->tensor.get());
  rueda_handle handle = 0;
  const rueda_status submitted =
      rueda_submit(world->context, &operation, 1, afterwards ? nullptr : foreign.get(), &handle);
  if (submitted != RUEDA_OK) return submitted;
  const rueda_status added =
      afterwards ? rueda_on_completion(world->context, handle, foreign.get()) : RUEDA_OK;
  EXPECT_EQ(Finish(world, RUEDA_OK, handle), RUEDA_OK);
  if (added != RUEDA_OK) return added;
  ended.wait(0);
  EXPECT_EQ(ended, 1);
  return RUEDA_OK;
}
rueda_status SubmitWithCompletion(World* world, size_t size, unsigned char tail) {
  return Complete(world, size, tail, /*afterwards=*/false);
}
rueda_status AddCompletion(World* world, size_t size, unsigned char tail) {
  return Complete(world, size, tail, /*afterwards=*/true);
}

// An error of `rank` -1 and with a message beyond the caller's struct.
rueda_status HandleErrorInto(World* world, size_t size, unsigned char tail) {
  const rueda_operation operation = Allreduce("a", world->tensor.get());
  rueda_handle handle = 0;
  EXPECT_EQ(rueda_submit(world->context, &operation, 1, nullptr, &handle), RUEDA_OK);
  EXPECT_EQ(rueda_wait(world->context, handle, RUEDA_FOREVER), RUEDA_OK);
  rueda_error before = RUEDA_ERROR_INIT;
  before.code = RUEDA_DATA_LOSS;
  const Foreign<rueda_error> foreign(before, size, tail);
  const rueda_status status = rueda_handle_error(world->context, handle, foreign.get());
  EXPECT_EQ(foreign.size(), size);
  if (status == RUEDA_OK) {
    EXPECT_EQ(foreign.Value(before).code, RUEDA_OK);
  }
  EXPECT_EQ(rueda_release(world->context, handle), RUEDA_OK);
  return status;
}

rueda_status ContextErrorInto(World*, size_t size, unsigned char tail) {
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.name = "doomed";
  const char* knobs[] = {"log_level", "off", "recorder_dir", ""};
  options.knobs = knobs;
  options.knob_count = 2;
  rueda_context* context = nullptr;
  EXPECT_EQ(rueda_init(RUEDA_VERSION, &options, &context), RUEDA_OK) << rueda_last_error();
  rueda_abort(context, "enough of it");
  const Foreign<rueda_error> foreign(RUEDA_ERROR_INIT, size, tail);
  const rueda_status status = rueda_context_error(context, foreign.get());
  EXPECT_EQ(foreign.size(), size);
  if (status == RUEDA_OK) {
    const rueda_error error = foreign.Value(RUEDA_ERROR_INIT);
    EXPECT_EQ(error.code, RUEDA_ABORTED);
    EXPECT_THAT(error.cause, HasSubstr("enough of it"));
    if (size >= sizeof(rueda_error)) {
      EXPECT_THAT(error.message, HasSubstr("enough of it"));
    }
  }
  rueda_context_destroy(context);
  return status;
}

rueda_status InfoInto(World* world, size_t size, unsigned char tail) {
  const Foreign<rueda_membership> foreign(RUEDA_MEMBERSHIP_INIT, size, tail);
  const rueda_status status = rueda_membership_info(world->context, foreign.get());
  EXPECT_EQ(foreign.size(), size);
  if (status == RUEDA_OK) {
    EXPECT_EQ(foreign.Value(RUEDA_MEMBERSHIP_INIT).ranks, 1);
  }
  return status;
}

// A result that `give` fills, and rueda_result_free empties.
template <typename Give>
Use ResultOf(Give give) {
  return [give](World* world, size_t size, unsigned char tail) {
    const Foreign<rueda_result> foreign(RUEDA_RESULT_INIT, size, tail);
    const rueda_status status = give(world, foreign.get());
    EXPECT_EQ(foreign.size(), size);
    if (status == RUEDA_OK) {
      EXPECT_EQ(foreign.get()->tensor.ndim, 1);
      EXPECT_NE(foreign.get()->owner, nullptr);
    }
    rueda_result_free(foreign.get());
    EXPECT_EQ(foreign.size(), size);
    if (status == RUEDA_OK) {
      EXPECT_EQ(foreign.get()->owner, nullptr);
      EXPECT_EQ(foreign.get()->tensor.data, nullptr);
    }
    return status;
  };
}

rueda_status Take(World* world, rueda_result* result) {
  rueda_handle handle = 0;
  const rueda_operation operation = Allgather("a", world->tensor.get());
  EXPECT_EQ(rueda_execute(world->context, &operation, 1, RUEDA_FOREVER, &handle), RUEDA_OK);
  const rueda_status status = rueda_result_take(world->context, handle, 0, result);
  const std::string words = rueda_last_error();
  EXPECT_EQ(rueda_release(world->context, handle), RUEDA_OK);
  EXPECT_EQ(words, rueda_last_error());
  return status;
}

rueda_status BroadcastInto(World* world, rueda_result* result) {
  return rueda_broadcast_bytes(world->context, RUEDA_WORLD, "a", 0, "1234", 4, result);
}

rueda_status AllgatherInto(World* world, rueda_result* result) {
  int64_t sizes[1] = {0};
  return rueda_allgather_bytes(world->context, RUEDA_WORLD, "a", "1234", 4, result, sizes);
}

rueda_status SaveInto(World* world, rueda_result* result) {
  return rueda_compression_save(world->context, RUEDA_WORLD, result);
}

// It returns no status: it has freed the result, or not.
rueda_status Free(World* world, size_t size, unsigned char tail) {
  rueda_result result = RUEDA_RESULT_INIT;
  EXPECT_EQ(BroadcastInto(world, &result), RUEDA_OK) << rueda_last_error();
  const Foreign<rueda_result> foreign(result, size, tail);
  rueda_result_free(foreign.get());
  if (size >= sizeof result && foreign.get()->owner == nullptr) {
    EXPECT_EQ(foreign.get()->tensor.data, nullptr);
    return RUEDA_OK;
  }
  const std::string words = rueda_last_error();
  rueda_result_free(&result);
  EXPECT_EQ(words, rueda_last_error());
  return RUEDA_INVALID_ARGUMENT;
}

std::vector<Case> Cases() {
  std::vector<Case> all;
  const auto add = [&](const char* of, size_t size_min, size_t size_now,
                       const std::vector<std::pair<const char*, Use>>& uses) {
    for (const auto& [function, use] : uses) {
      all.push_back({std::string(of) + "_in_" + function, of, size_min, size_now, use});
    }
  };
  add("rueda_init_options", offsetof(rueda_init_options, knobs), sizeof(rueda_init_options),
      {{"init", InitWith}});
  add("rueda_operation", offsetof(rueda_operation, splits), sizeof(rueda_operation),
      {{"submit", OperationsBy(SubmitAll, 1)},
       {"submit_of_a_group", OperationsBy(SubmitAll, 2)},
       {"execute", OperationsBy(ExecuteAll, 1)},
       {"execute_of_a_group", OperationsBy(ExecuteAll, 2)}});
  add("rueda_exec", offsetof(rueda_exec, ready_event), sizeof(rueda_exec),
      {{"submit", ExecBy(SubmitAll, 1)},
       {"submit_of_a_group", ExecBy(SubmitAll, 2)},
       {"execute", ExecBy(ExecuteAll, 1)},
       {"execute_of_a_group", ExecBy(ExecuteAll, 2)}});
  add("rueda_completion", offsetof(rueda_completion, flags), sizeof(rueda_completion),
      {{"submit", SubmitWithCompletion}, {"on_completion", AddCompletion}});
  add("rueda_error", offsetof(rueda_error, message), sizeof(rueda_error),
      {{"handle_error", HandleErrorInto}, {"context_error", ContextErrorInto}});
  add("rueda_membership", offsetof(rueda_membership, keeping), sizeof(rueda_membership),
      {{"membership_info", InfoInto}});
  // Whoever can't hold `owner` could free nothing.
  add("rueda_result", sizeof(rueda_result), sizeof(rueda_result),
      {{"result_take", ResultOf(Take)},
       {"result_free", Free},
       {"broadcast_bytes", ResultOf(BroadcastInto)},
       {"allgather_bytes", ResultOf(AllgatherInto)},
       {"compression_save", ResultOf(SaveInto)}});
  return all;
}

class Structs : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
    ASSERT_EQ(rueda_init(RUEDA_VERSION, &options, &world_.context), RUEDA_OK) << rueda_last_error();
  }
  void TearDown() override {
    EXPECT_EQ(rueda_shutdown(world_.context), RUEDA_OK) << rueda_last_error();
    rueda_context_destroy(world_.context);
  }
  void ExpectTaken(size_t size) {
    EXPECT_EQ(GetParam().use(&world_, size, 0), RUEDA_OK) << size << ": " << rueda_last_error();
  }
  void ExpectRefused(size_t size, unsigned char tail, const std::string& words) {
    EXPECT_EQ(GetParam().use(&world_, size, tail), RUEDA_INVALID_ARGUMENT) << size;
    EXPECT_THAT(rueda_last_error(), AllOf(HasSubstr(GetParam().of), HasSubstr(words)));
  }
  World world_;
};
INSTANTIATE_TEST_SUITE_P(All, Structs, ::testing::ValuesIn(Cases()),
                         [](const auto& one) { return one.param.name; });

TEST_P(Structs, OfAnOlderVersionWorkAndNothingBeyondThemIsTouched) {
  for (size_t size = GetParam().size_min; size <= GetParam().size_now; size += alignof(size_t)) {
    ExpectTaken(size);
  }
}

TEST_P(Structs, OfANewerVersionWorkWhereTheirNewFieldsAreZero) {
  ExpectTaken(GetParam().size_now + alignof(size_t));
  ExpectTaken(GetParam().size_now + kMore);
}

TEST_P(Structs, WithNewFieldsThatAreSetAreRefused) {
  ExpectRefused(GetParam().size_now + kMore, 1, "newer version");
  ExpectRefused(GetParam().size_now + alignof(size_t), 0x80, "newer version");
}

TEST_P(Structs, OfNoVersionsSizeAreRefused) {
  ExpectRefused(GetParam().size_min - alignof(size_t), 0, "_INIT");
  ExpectRefused(alignof(size_t), 0, "_INIT");
}

}  // namespace
}  // namespace rueda::testing
