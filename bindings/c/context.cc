// Contexts: init, shutdown, queries, and the one piece of global state of the project: the default
// context, the count of inits by name, and what devices still use of contexts that are gone.
#include "bindings/c/context.h"

#include <algorithm>
#include <list>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bindings/c/elastic.h"
#include "bindings/c/guard.h"
#include "bindings/c/structs.h"
#include "controller/lanes/callbacks.h"
#include "core/base/log.h"
#include "core/trace/recorder.h"

namespace rueda::capi {
namespace {

std::atomic<rueda_context*> default_context{nullptr};
thread_local rueda_context* thread_context = nullptr;

// How often a context of each name was initialized in this process.
Mutex memberships_mutex;
std::map<std::string, uint64_t>& Memberships() {
  static auto* memberships = new std::map<std::string, uint64_t>();  // outlives every other object
  return *memberships;
}

// The number of an init of a name, used up once the ranks have met: those that a start has missed
// come to the same number when they try again.
class MembershipOf {
 public:
  explicit MembershipOf(std::string name) : name_(std::move(name)) {
    MutexLock lock(memberships_mutex);
    number_ = ++Memberships()[name_];
  }
  uint64_t number() const { return number_; }
  void GiveBack() {
    MutexLock lock(memberships_mutex);
    uint64_t& last = Memberships()[name_];
    if (last == number_) --last;
  }

 private:
  const std::string name_;
  uint64_t number_;
};

// Runtimes whose device has not let go of them yet. Forked children have none of their threads.
struct Rest {
  int fork_generation;
  std::unique_ptr<Runtime> runtime;
};
Mutex rests_mutex;
std::list<Rest>& Rests() {
  static auto* rests = new std::list<Rest>();
  return *rests;
}

// Frees a runtime, or keeps it where its device still uses it; and what was kept so earlier.
void Free(std::unique_ptr<Runtime> runtime) {
  std::list<Rest> rests;
  if (runtime != nullptr) rests.push_back({ForkGeneration(), std::move(runtime)});
  {
    MutexLock lock(rests_mutex);
    rests.splice(rests.end(), Rests());
  }
  rests.remove_if(
      [](Rest& rest) { return rest.fork_generation == ForkGeneration() && rest.runtime->Close(); });
  MutexLock lock(rests_mutex);
  Rests().splice(Rests().end(), rests);
}

absl::Status Closing() {
  return absl::AbortedError("another thread resets or destroys this context");
}

absl::Status ReadOptions(const rueda_init_options& options, RuntimeOptions* out) {
  if ((options.flags & ~static_cast<uint32_t>(RUEDA_INIT_READ_ENVIRONMENT)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown bits in rueda_init_options.flags: ", options.flags,
                     "; known is RUEDA_INIT_READ_ENVIRONMENT (1)"));
  }
  out->context = options.name == nullptr ? "" : options.name;
  if (out->context.size() > kNameBytesMax) {
    return absl::InvalidArgumentError("the context's name is longer than 1,024 bytes");
  }
  if (options.flags & RUEDA_INIT_READ_ENVIRONMENT) {
    out->environment = ProcessEnvironment();
    RUEDA_RETURN_IF_ERROR(ReadEnvironment(out->environment, &out->config));
  }
  if (options.knob_count > 0 && options.knobs == nullptr) {
    return absl::InvalidArgumentError("rueda_init_options.knobs is null, knob_count is not 0");
  }
  for (size_t i = 0; i < options.knob_count; ++i) {
    const char* name = options.knobs[2 * i];
    const char* value = options.knobs[2 * i + 1];
    if (name == nullptr || value == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("knob ", i, " of rueda_init_options has a null name or value"));
    }
    RUEDA_RETURN_IF_ERROR(SetKnob(name, value, &out->config));
  }
  if (options.group != nullptr) {
    if (out->config.rank >= 0 || out->config.size >= 0) {
      return absl::UnimplementedError(
          "a group of threads inside a job of processes: ranks are either the one or the other. "
          "Don't start the program with a launcher, or don't let rueda_init read the environment");
    }
    out->group = options.group->threads;
    out->group_rank = options.group_rank;
    if (out->group_rank < 0 || out->group_rank >= out->group->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("group_rank ", out->group_rank, " in a group of ", out->group->size()));
    }
  }
  return absl::OkStatus();
}

// `begins`: it is the context's first start. `commits`, `blames`: of an elastic job.
absl::Status Start(rueda_context* context, bool begins, uint64_t commits = 0, int32_t blames = -1) {
  RuntimeOptions options = context->options;
  options.arena = ArenaFor(options.context, options.group_rank);
  if (options.group != nullptr) {
    RUEDA_ASSIGN_OR_RETURN(context->runtime, Runtime::Create(std::move(options)));
    context->completions = context->runtime->completions();
    return absl::OkStatus();
  }
  // Jobs that a program makes in the course of time, as torch.distributed does, have numbers of
  // their own: their ranks need not have been together before.
  MembershipOf job(absl::StrCat(options.config.job_id, "/", options.context)),
      name(options.context);
  options.membership = job.number();
  options.number = name.number();
  bool met = false;
  const absl::Cleanup give_back = [&] {
    if (met) return;
    job.GiveBack();
    name.GiveBack();
  };
  if (begins && ComesLater(context)) return StartAlone(context, std::move(options));
  if (options.config.elastic_fd >= 0) {
    const absl::Status status = StartElastic(context, std::move(options), commits, blames);
    met = status.ok();
    return status;
  }
  RUEDA_ASSIGN_OR_RETURN(context->runtime, Runtime::Create(std::move(options), &met));
  context->completions = context->runtime->completions();
  return absl::OkStatus();
}

absl::Status Init(uint32_t header_version, const rueda_init_options* options,
                  rueda_context** context) {
  if (context == nullptr) return absl::InvalidArgumentError("rueda_init: `context` is null");
  *context = nullptr;
  RUEDA_RETURN_IF_ERROR(CheckMayWait("rueda_init"));
  if (header_version >> 16 != RUEDA_VERSION_MAJOR ||
      ((header_version >> 8) & 0xFF) > RUEDA_VERSION_MINOR) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the program was compiled against rueda.h ", header_version >> 16, ".",
        (header_version >> 8) & 0xFF, ".", header_version & 0xFF, " and runs with librueda ",
        RUEDA_VERSION_MAJOR, ".", RUEDA_VERSION_MINOR, ".", RUEDA_VERSION_PATCH));
  }
  rueda_init_options copy;
  RUEDA_RETURN_IF_ERROR(ReadStruct(options, &copy, &options));
  Free(nullptr);  // what can be by now
  auto made = std::make_unique<rueda_context>();
  made->fork_generation = ForkGeneration();
  RUEDA_RETURN_IF_ERROR(ReadOptions(*options, &made->options));
  RUEDA_RETURN_IF_ERROR(Start(made.get(), /*begins=*/true));
  *context = made.release();
  return absl::OkStatus();
}

// Lets no call in any more, and returns what `calls` was: kClosing is in it where another thread
// has said so already.
uint32_t Close(rueda_context* context) {
  return context->calls.fetch_or(rueda_context::kClosing);
}

// Waits until the calls that are inside have left, but for `own` of them. What they wait for has
// ended.
void AwaitCalls(const rueda_context* context, uint32_t own) {
  uint32_t calls = context->calls.load();
  while ((calls & ~rueda_context::kClosing) > own) {
    context->calls.wait(calls);
    calls = context->calls.load();
  }
}

absl::Status Shutdown(rueda_context* context) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(runtime->CheckMayEnd("shutdown"));
  if (context->shut_down.exchange(true)) {
    return absl::FailedPreconditionError("this context has shut down already");
  }
  absl::Cleanup not_yet = [context] { context->shut_down = false; };  // after an exception
  absl::Status status = runtime->Shutdown();
  std::move(not_yet).Cancel();
  // A rank of an elastic job that is done has lost nothing with another one.
  const bool is_elastic = context->options.config.elastic_fd >= 0;
  return is_elastic && absl::IsAborted(status) ? absl::OkStatus() : status;
}

// Ends the membership and begins the next. `what`: the call.
absl::Status BeginNext(rueda_context* context, const Call& runtime, absl::string_view what,
                       uint64_t commits) {
  if ((Close(context) & rueda_context::kClosing) != 0) return Closing();
  const absl::Cleanup open = [context] {
    context->calls.fetch_and(~rueda_context::kClosing);
    context->calls.notify_all();
  };
  (void)runtime->Shutdown();  // of a failed membership: returns its failure
  AwaitCalls(context, 1);
  if (context->shut_down) {  // perhaps by a call that was inside
    return absl::FailedPreconditionError(absl::StrCat(what, ": this context has shut down"));
  }
  const int32_t blames = SlotOfLost(*runtime);
  runtime->ForgetBlame();
  {
    MutexLock lock(context->errors_mutex);
    context->own_error = {};
  }
  context->options.requests = context->runtime->requests();
  Free(std::move(context->runtime));
  context->options.requests->EndMembership();
  return Start(context, /*begins=*/false, commits, blames);
}

absl::Status Reset(rueda_context* context) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(runtime->CheckMayEnd("rueda_context_reset"));
  if (runtime->failure() == nullptr) {
    return absl::FailedPreconditionError("rueda_context_reset: the membership has not failed");
  }
  return BeginNext(context, runtime, "rueda_context_reset", 0);
}

absl::Status Regroup(rueda_context* context, uint64_t commits) {
  RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
  RUEDA_RETURN_IF_ERROR(runtime->CheckMayEnd("rueda_regroup"));
  if (runtime->config().elastic_fd < 0) {
    return absl::FailedPreconditionError(
        "rueda_regroup: this job is not elastic: start it with ruedarun --min-np N");
  }
  return BeginNext(context, runtime, "rueda_regroup", commits);
}

absl::Status Destroy(rueda_context* context) {
  if (context == nullptr) return absl::OkStatus();
  if (const absl::StatusOr<Call> call = RuntimeOf(context); call.ok()) {
    const absl::Status may = (*call)->CheckMayEnd("rueda_context_destroy");
    if (!may.ok()) RUEDA_LOG(Error) << may.message() << ": the context stays";
    RUEDA_RETURN_IF_ERROR(may);
  }
  rueda_context* expected = context;
  default_context.compare_exchange_strong(expected, nullptr);
  if (thread_context == context) thread_context = nullptr;
  // A forked child has none of the threads that the destructor would wait for.
  if (context->fork_generation != ForkGeneration() || context->destroyed.exchange(true)) {
    return absl::OkStatus();
  }
  // A reset, which other threads may be in, ends first.
  for (uint32_t calls; ((calls = Close(context)) & rueda_context::kClosing) != 0;) {
    context->calls.wait(calls);
  }
  if (context->runtime != nullptr) {
    context->runtime->EndWaits();
    AwaitCalls(context, 0);
    // The last callbacks come. What there is no memory for is tried again, below.
    (void)GuardOr(false, [context] { return context->runtime->Close(); });
  }
  Free(std::move(context->runtime));
  {
    MutexLock lock(context->errors_mutex);
    context->errors.clear();
  }
  static Mutex mutex;
  static rueda_context* shells = nullptr;
  {
    MutexLock lock(mutex);
    context->earlier_shell = std::exchange(shells, context);
  }
  context->options = RuntimeOptions();
  return absl::OkStatus();
}

// Fn: const World& -> int32_t. -1 and a last error for a null context.
template <typename Fn>
int32_t Ask(const rueda_context* context, Fn fn) noexcept {
  return GuardOr(-1, [&]() -> int32_t {
    const absl::StatusOr<Call> runtime = RuntimeOf(context);
    if (runtime.ok()) return fn((*runtime)->world());
    Report(runtime.status());
    return -1;
  });
}

}  // namespace

Call::~Call() {
  if (context_ == nullptr) return;
  const uint32_t calls = context_->calls.fetch_sub(1);
  if (__builtin_expect((calls & rueda_context::kClosing) != 0, 0)) context_->calls.notify_all();
}

absl::StatusOr<Call> RuntimeOf(const rueda_context* context) {
  if (__builtin_expect(context == nullptr, 0)) {
    return absl::FailedPreconditionError(
        "Rueda is not initialized: the context is null. Call init first");
  }
  if (__builtin_expect(context->fork_generation != ForkGeneration(), 0)) {
    return absl::FailedPreconditionError(
        "this process was forked after the context was initialized, and can't use it; initialize "
        "one "
        "in the child, or start it with exec");
  }
  const uint32_t calls = context->calls.fetch_add(1);
  Call call(context);
  if (__builtin_expect((calls & rueda_context::kClosing) != 0, 0) &&
      (Completions::Current() == nullptr || Completions::Current() != context->completions)) {
    if (context->destroyed) return absl::FailedPreconditionError("this context was destroyed");
    return Closing();
  }
  if (__builtin_expect(context->runtime == nullptr, 0)) {
    return absl::FailedPreconditionError("this context could not be reset; destroy it");
  }
  return call;
}

}  // namespace rueda::capi

extern "C" {

using namespace rueda;        // NOLINT: the definitions below belong to the C API
using namespace rueda::capi;  // NOLINT

rueda_status rueda_init(uint32_t header_version, const rueda_init_options* options,
                        rueda_context** context) {
  return Guard([&] { return Init(header_version, options, context); });
}

rueda_status rueda_shutdown(rueda_context* context) {
  return Guard([&] { return Shutdown(context); });
}

void rueda_context_destroy(rueda_context* context) {
  (void)Guard([&] { return Destroy(context); });
}

rueda_context* rueda_current_context(void) {
  return thread_context != nullptr ? thread_context
                                   : default_context.load(std::memory_order_acquire);
}

void rueda_set_default_context(rueda_context* context) {
  default_context.store(context, std::memory_order_release);
}

void rueda_set_thread_context(rueda_context* context) {
  thread_context = context;
}

int32_t rueda_is_initialized(const rueda_context* context) {
  return GuardOr(0, [&]() -> int32_t {
    const absl::StatusOr<Call> runtime = RuntimeOf(context);
    return runtime.ok() && !context->shut_down && (*runtime)->failure() == nullptr;
  });
}

int32_t rueda_rank(const rueda_context* context) {
  return Ask(context, [&](const World& world) {
    const int32_t waits_as = context->waits_as.load(std::memory_order_relaxed);
    return waits_as < 0 ? world.rank : waits_as;
  });
}

int32_t rueda_size(const rueda_context* context) {
  return Ask(context, [&](const World& world) {
    const int32_t waits_as = context->waits_as.load(std::memory_order_relaxed);
    return waits_as < 0 ? world.size() : waits_as + 1;
  });
}

int32_t rueda_local_rank(const rueda_context* context) {
  return Ask(context, [&](const World& world) {
    if (context->waits_as.load(std::memory_order_relaxed) < 0) return world.local_rank();
    return static_cast<int>(context->options.config.local_rank);
  });
}

int32_t rueda_local_size(const rueda_context* context) {
  return Ask(context, [&](const World& world) {
    if (context->waits_as.load(std::memory_order_relaxed) >= 0) {
      return static_cast<int>(context->options.config.local_size);
    }
    return world.topology.local_size(world.rank);
  });
}

int32_t rueda_cross_rank(const rueda_context* context) {
  return Ask(context,
             [](const World& world) { return world.topology.ranks[world.rank].cross_rank; });
}

int32_t rueda_cross_size(const rueda_context* context) {
  return Ask(context,
             [](const World& world) { return world.topology.ranks[world.rank].cross_size; });
}

int32_t rueda_is_homogeneous(const rueda_context* context) {
  return Ask(context, [](const World& world) { return world.topology.homogeneous() ? 1 : 0; });
}

rueda_status rueda_context_membership(const rueda_context* context, uint64_t* membership) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    if (membership == nullptr) {
      return absl::InvalidArgumentError("rueda_context_membership: `membership` is null");
    }
    *membership = runtime->world().membership;
    return absl::OkStatus();
  });
}

rueda_status rueda_context_epoch(const rueda_context* context, uint64_t* membership) {
  return rueda_context_membership(context, membership);
}

rueda_status rueda_context_reset(rueda_context* context) {
  return Guard([&] { return Reset(context); });
}

rueda_status rueda_regroup(rueda_context* context, uint64_t commits) {
  return Guard([&] { return Regroup(context, commits); });
}

rueda_status rueda_thread_waits(rueda_context* context, int32_t waits) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    runtime->waiting_threads().SetWaitsOutside(waits != 0);
    return absl::OkStatus();
  });
}

rueda_status rueda_abort(rueda_context* context, const char* reason) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    runtime->Abort(reason == nullptr ? "no reason given" : reason);
    return absl::OkStatus();
  });
}

rueda_status rueda_group_create(int32_t size, rueda_group** group) {
  return Guard([&]() -> absl::Status {
    if (group == nullptr) return absl::InvalidArgumentError("rueda_group_create: `group` is null");
    *group = nullptr;
    if (size < 1 || size > kLocalRanksMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("a group of ", size, " ranks; expected 1 to ", kLocalRanksMax));
    }
    *group = new rueda_group{std::make_shared<ThreadRanks>(size)};
    return absl::OkStatus();
  });
}

void rueda_group_destroy(rueda_group* group) {
  (void)Guard([&] {
    delete group;
    return absl::OkStatus();
  });
}

rueda_status rueda_timeline_start(rueda_context* context, const char* path) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    if (path == nullptr) {
      return absl::InvalidArgumentError("rueda_timeline_start: `path` is null");
    }
    return runtime->StartTimeline(path);
  });
}

rueda_status rueda_timeline_stop(rueda_context* context) {
  return Guard([&]() -> absl::Status {
    RUEDA_ASSIGN_OR_RETURN(const Call runtime, RuntimeOf(context));
    return runtime->StopTimeline();
  });
}

void rueda_dump_state(int fd) {
  rueda::trace::Dump(fd);
}

}  // extern "C"
