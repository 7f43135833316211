/* A piece of code for each function of the C API. The documentation (docs/api) shows what stands
 * between the marks; the tests run all of it:
 *
 *     ruedarun -np 2 c_snippets
 */
#include <pthread.h>
#include <rueda/rueda.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, rueda_last_error()); \
      exit(1);                                                                                \
    }                                                                                         \
  } while (0)

static rueda_context* start(void) {
  //! [init]
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;  // what ruedarun says
  const char* const knobs[] = {"stall_warn_s", "30"};
  options.knobs = knobs;
  options.knob_count = 1;
  rueda_context* context = NULL;
  if (rueda_init(RUEDA_VERSION, &options, &context) != RUEDA_OK) {
    fprintf(stderr, "%s\n", rueda_last_error());
    exit(1);
  }
  //! [init]
  return context;
}

static void stop(rueda_context* context) {
  //! [shutdown]
  CHECK(rueda_shutdown(context) == RUEDA_OK);  // waits for all ranks
  rueda_context_destroy(context);
  //! [shutdown]
}

static void status(void) {
  //! [status]
  const rueda_status wrong = rueda_init(RUEDA_VERSION, NULL, NULL);
  printf("%s: %s\n", rueda_status_name(wrong), rueda_last_error());
  printf("version %u.%u\n", rueda_version() >> 16, rueda_version() >> 8 & 0xFF);
  //! [status]
  CHECK(wrong == RUEDA_INVALID_ARGUMENT);
}

static void who(rueda_context* context) {
  //! [who]
  printf("rank %d of %d, on its host %d of %d, across hosts %d of %d%s\n",  //
         rueda_rank(context), rueda_size(context),                          //
         rueda_local_rank(context), rueda_local_size(context),              //
         rueda_cross_rank(context), rueda_cross_size(context),
         rueda_is_homogeneous(context) ? "" : "; hosts differ");
  //! [who]
  CHECK(rueda_local_size(context) == rueda_size(context));
}

static void current(rueda_context* context) {
  //! [current]
  rueda_set_default_context(context);  // for the whole process
  rueda_set_thread_context(context);   // for this thread, whatever the process's is
  if (rueda_is_initialized(rueda_current_context())) puts("ready");
  rueda_set_thread_context(NULL);
  //! [current]
  //! [thread_waits]
  CHECK(rueda_thread_waits(context, 1) == RUEDA_OK);  // ahead of a join of threads that use it
  CHECK(rueda_thread_waits(context, 0) == RUEDA_OK);
  //! [thread_waits]
  CHECK(rueda_current_context() == context);
}

//! [group]
struct member {
  rueda_group* group;
  int rank;
  int32_t size;
};

static void* run_rank(void* user) {
  struct member* member = user;
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.group = member->group;
  options.group_rank = member->rank;
  rueda_context* context = NULL;
  CHECK(rueda_init(RUEDA_VERSION, &options, &context) == RUEDA_OK);
  member->size = rueda_size(context);
  CHECK(rueda_shutdown(context) == RUEDA_OK);
  rueda_context_destroy(context);
  return NULL;
}

// Two ranks that are threads of this process.
static void thread_ranks(void) {
  rueda_group* group = NULL;
  CHECK(rueda_group_create(2, &group) == RUEDA_OK);
  struct member members[2] = {{group, 0, 0}, {group, 1, 0}};
  pthread_t other;
  CHECK(pthread_create(&other, NULL, run_rank, &members[1]) == 0);
  run_rank(&members[0]);
  pthread_join(other, NULL);
  rueda_group_destroy(group);
  CHECK(members[0].size == 2 && members[1].size == 2);
}
//! [group]

static void execute(rueda_context* context) {
  //! [execute]
  float gradient[2][3] = {{1, 2, 3}, {4, 5, 6}};
  int64_t shape[2] = {2, 3};
  const rueda_tensor tensor = {gradient, {RUEDA_CPU, 0}, 2, RUEDA_FLOAT32, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_SUM;
  operation.name = "gradient";
  operation.input = &tensor;  // and no output: in place
  CHECK(rueda_execute(context, &operation, 1, RUEDA_FOREVER, NULL) == RUEDA_OK);
  //! [execute]
  CHECK(gradient[1][2] == 6.0f * (float)rueda_size(context));
}

//! [submit]
struct ending {
  rueda_status status;
  sem_t called;
};

static void say(void* user, rueda_handle handle, rueda_status status) {
  struct ending* ending = user;  // on the context's callback thread
  (void)handle;
  ending->status = status;
  sem_post(&ending->called);
}

static void submit(rueda_context* context) {
  int32_t value = rueda_rank(context);
  int64_t shape[1] = {1};
  const rueda_tensor tensor = {&value, {RUEDA_CPU, 0}, 1, RUEDA_INT32, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_BROADCAST;
  operation.root = 1;
  operation.input = &tensor;

  struct ending ending;
  sem_init(&ending.called, 0, 0);
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.callback = say;
  completion.user = &ending;
  rueda_handle handle = 0;
  CHECK(rueda_submit(context, &operation, 1, &completion, &handle) == RUEDA_OK);
  CHECK(rueda_on_completion(context, handle, &completion) == RUEDA_OK);  // another one, later
  int32_t done = 0;
  CHECK(rueda_poll(context, handle, &done) == RUEDA_OK);  // never blocks
  const int64_t minute_ns = INT64_C(60000000000);
  if (rueda_wait(context, handle, minute_ns) == RUEDA_DEADLINE_EXCEEDED &&
      rueda_explain(context, handle) == RUEDA_DEADLINE_EXCEEDED) {
    fprintf(stderr, "%s\n", rueda_last_error());  // it goes on; which ranks are missing
  }
  if (rueda_wait(context, handle, RUEDA_FOREVER) != RUEDA_OK) {
    rueda_error error = RUEDA_ERROR_INIT;
    CHECK(rueda_handle_error(context, handle, &error) == RUEDA_OK);
    fprintf(stderr, "%s%s\n", error.message, error.recoverable ? "; try a new membership" : "");
  }
  CHECK(rueda_wait_on_stream(context, handle, NULL) == RUEDA_OK);  // the CPU has no streams
  // Where this rank can't wait without a limit for the others; here the operation has ended.
  CHECK(rueda_wait_or_abort(context, handle, "this rank gave it up") == RUEDA_OK);
  CHECK(rueda_release(context, handle) == RUEDA_OK);
  sem_wait(&ending.called);  // `ending` lives until both callbacks have come
  sem_wait(&ending.called);
  CHECK(value == 1 && ending.status == RUEDA_OK);
}
//! [submit]

static void result(rueda_context* context) {
  //! [result]
  int32_t rows[4] = {7, 7, 7, 7};
  int64_t shape[1] = {rueda_rank(context) + 1};  // as many rows as each rank likes
  const rueda_tensor tensor = {rows, {RUEDA_CPU, 0}, 1, RUEDA_INT32, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLGATHER;
  operation.input = &tensor;
  rueda_handle handle = 0;
  CHECK(rueda_execute(context, &operation, 1, RUEDA_FOREVER, &handle) == RUEDA_OK);
  rueda_result all = RUEDA_RESULT_INIT;
  CHECK(rueda_result_take(context, handle, 0, &all) == RUEDA_OK);
  int64_t splits[2] = {0, 0};
  size_t count = 0;
  CHECK(rueda_result_splits(context, handle, 0, splits, 2, &count) == RUEDA_OK);
  CHECK(rueda_release(context, handle) == RUEDA_OK);
  printf("%d rows: %d of rank 0, %d of rank 1\n", (int)all.tensor.shape[0], (int)splits[0],
         (int)splits[1]);
  CHECK(all.tensor.shape[0] == 3 && splits[0] == 1 && splits[1] == 2 && count == 2);
  rueda_result_free(&all);
  //! [result]
}

static void bytes(rueda_context* context) {
  //! [bytes]
  const char* words = rueda_rank(context) == 0 ? "hello" : "you";
  rueda_result heard = RUEDA_RESULT_INIT;
  CHECK(rueda_broadcast_bytes(context, RUEDA_WORLD, "greeting", 0, words, strlen(words), &heard) ==
        RUEDA_OK);
  printf("%.*s\n", (int)heard.tensor.shape[0], (const char*)heard.tensor.data);  // hello

  rueda_result all = RUEDA_RESULT_INIT;
  int64_t sizes[2] = {0, 0};  // one for each rank
  CHECK(rueda_allgather_bytes(context, RUEDA_WORLD, NULL, words, strlen(words), &all, sizes) ==
        RUEDA_OK);
  printf("%.*s\n", (int)all.tensor.shape[0], (const char*)all.tensor.data);  // helloyou
  //! [bytes]
  CHECK(heard.tensor.shape[0] == 5 && memcmp(heard.tensor.data, "hello", 5) == 0);
  CHECK(sizes[0] == 5 && sizes[1] == 3 && memcmp(all.tensor.data, "helloyou", 8) == 0);
  rueda_result_free(&heard);
  rueda_result_free(&all);
}

static void process_sets(rueda_context* context) {
  //! [process_sets]
  const int32_t ranks[] = {1};
  int32_t set = -1;
  CHECK(rueda_process_set_add(context, ranks, 1, RUEDA_FOREVER, &set) == RUEDA_OK);
  if (rueda_process_set_rank(context, set) >= 0) {  // this rank is in it
    rueda_operation operation = RUEDA_OPERATION_INIT;
    operation.kind = RUEDA_BARRIER;
    operation.process_set = set;
    CHECK(rueda_execute(context, &operation, 1, RUEDA_FOREVER, NULL) == RUEDA_OK);
  }
  int32_t members[8] = {0};
  size_t count = 0;
  CHECK(rueda_process_set_ranks(context, set, members, 8, &count) == RUEDA_OK);
  printf("set %d has %d ranks, the first is %d\n", set, rueda_process_set_size(context, set),
         members[0]);
  CHECK(rueda_process_set_remove(context, set, RUEDA_FOREVER) == RUEDA_OK);
  //! [process_sets]
  CHECK(count == 1 && members[0] == 1);
}

static void join(rueda_context* context) {
  //! [join]
  const int batches = 3 + rueda_rank(context);  // rank 1 has one more
  for (int batch = 0; batch < batches; ++batch) {
    double loss = 1;
    const rueda_tensor tensor = {&loss, {RUEDA_CPU, 0}, 0, RUEDA_FLOAT64, NULL, NULL, 0};
    rueda_operation operation = RUEDA_OPERATION_INIT;
    operation.kind = RUEDA_ALLREDUCE;
    operation.reduce_op = RUEDA_AVERAGE_LIVE;
    operation.name = "loss";
    operation.input = &tensor;
    CHECK(rueda_execute(context, &operation, 1, RUEDA_FOREVER, NULL) == RUEDA_OK);
    CHECK(loss == 1);
  }
  int32_t last = -1;
  CHECK(rueda_join(context, RUEDA_WORLD, RUEDA_FOREVER, &last) == RUEDA_OK);
  printf("rank %d joined last\n", last);
  //! [join]
  CHECK(last == 1);
}

//! [cuda]
// Adds up device memory in the order of `stream`, a cudaStream_t, without waiting for the device.
static void add_up(rueda_context* context, void* memory, int64_t elements, void* stream) {
  rueda_exec exec = RUEDA_EXEC_INIT;
  CHECK(rueda_local_device(context, RUEDA_CUDA, &exec.device) == RUEDA_OK);
  exec.stream = stream;
  const rueda_tensor tensor = {memory, exec.device, 1, RUEDA_FLOAT32, &elements, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_SUM;
  operation.name = "on the device";
  operation.input = &tensor;
  operation.exec = &exec;
  rueda_handle handle;
  CHECK(rueda_submit(context, &operation, 1, NULL, &handle) == RUEDA_OK);
  CHECK(rueda_wait_on_stream(context, handle, stream) == RUEDA_OK);
  CHECK(rueda_release(context, handle) == RUEDA_OK);
  // What `stream` is given from here on finds the sums.
}
//! [cuda]

// This program has no device memory of its own to add up.
static void cuda(rueda_context* context) {
  rueda_device device;
  if (rueda_local_device(context, RUEDA_CUDA, &device) == RUEDA_OK) {
    add_up(context, NULL, 0, NULL);
  } else {
    printf("no CUDA: %s\n", rueda_last_error());
  }
}

static void memory(rueda_context* context) {
  //! [memory]
  void* memory = NULL;
  CHECK(rueda_mem_alloc(context, 1000 * sizeof(float), &memory) == RUEDA_OK);
  float* gradient = memory;  // zeroed; allreduces touch every byte once
  CHECK(gradient[999] == 0);
  CHECK(rueda_mem_free(memory) == RUEDA_OK);
  //! [memory]
  //! [neighbors]
  int32_t neighbors[64];
  size_t neighbor_count = 0;
  CHECK(rueda_neighbor_ranks(context, neighbors, 64, &neighbor_count) == RUEDA_OK);
  CHECK(rueda_mem_alloc(context, 1000, &memory) == RUEDA_OK);
  uint64_t offset = 0;  // which the neighbors must be told; the same on all ranks here
  CHECK(rueda_mem_offset(memory, &offset) == RUEDA_OK);
  for (size_t i = 0; i < neighbor_count; ++i) {
    const void* theirs = NULL;  // what that rank has written: also when it has died
    CHECK(rueda_mem_open(context, neighbors[i], offset, 1000, &theirs) == RUEDA_OK);
    CHECK(rueda_mem_free((void*)theirs) == RUEDA_OK);
  }
  //! [neighbors]
  //! [kept]
  // Before others go on from it; in an elastic job it outlives all ranks of this host.
  CHECK(rueda_mem_keep(context, memory, 1000, "moments", 7, 6, 0) == RUEDA_OK);
  // In a later membership: of rank 2 of membership 1, which was lost.
  const void* kept = NULL;
  size_t kept_bytes = 0;
  uint64_t checksum = 0;
  if (rueda_mem_kept(context, "moments", 7, 1, 2, &kept, &kept_bytes, &checksum) == RUEDA_OK) {
    CHECK(rueda_mem_free((void*)kept) == RUEDA_OK);
  }
  //! [kept]
  CHECK(rueda_mem_free(memory) == RUEDA_OK);
}

static void compression(rueda_context* context) {
  //! [compression]
  float gradient[1000] = {0.5f};
  int64_t shape[] = {1000};
  const rueda_tensor tensor = {gradient, {RUEDA_CPU, 0}, 1, RUEDA_FLOAT32, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_AVERAGE;
  operation.name = "gradient";
  operation.input = &tensor;
  operation.compressor = "int8";  // a quarter of the bytes; what is lost is added the next time
  CHECK(rueda_execute(context, &operation, 1, RUEDA_FOREVER, NULL) == RUEDA_OK);
  // Into a checkpoint, one of each rank, and back: all ranks' on every rank.
  rueda_result lost = RUEDA_RESULT_INIT;
  CHECK(rueda_compression_save(context, RUEDA_WORLD, &lost) == RUEDA_OK);
  const size_t bytes = (size_t)lost.tensor.shape[0];
  int64_t sizes[2];
  rueda_result all = RUEDA_RESULT_INIT;
  CHECK(rueda_allgather_bytes(context, RUEDA_WORLD, "lost", lost.tensor.data, bytes, &all, sizes) ==
        RUEDA_OK);
  const char* begin = all.tensor.data;
  const void* data[] = {begin, begin + sizes[0]};
  const size_t data_bytes[] = {(size_t)sizes[0], (size_t)sizes[1]};
  CHECK(rueda_compression_load(context, RUEDA_WORLD, data, data_bytes, 2) == RUEDA_OK);
  rueda_result_free(&lost);
  rueda_result_free(&all);
  //! [compression]
}

static void timeline(rueda_context* context) {
  //! [timeline]
  CHECK(rueda_timeline_start(context, "snippets_c.json") == RUEDA_OK);
  rueda_operation barrier = RUEDA_OPERATION_INIT;
  CHECK(rueda_execute(context, &barrier, 1, RUEDA_FOREVER, NULL) == RUEDA_OK);
  CHECK(rueda_timeline_stop(context) == RUEDA_OK);  // open the file in chrome://tracing
  //! [timeline]
}

static void memberships(rueda_context* context) {
  //! [memberships]
  rueda_operation barrier = RUEDA_OPERATION_INIT;
  rueda_status first = rueda_execute(context, &barrier, 1, RUEDA_FOREVER, NULL);
  CHECK(first == RUEDA_OK || first == RUEDA_ABORTED);  // it may see the failure already
  if (rueda_rank(context) == 0) CHECK(rueda_abort(context, "rank 0 has had enough") == RUEDA_OK);
  while (rueda_execute(context, &barrier, 1, RUEDA_FOREVER, NULL) != RUEDA_ABORTED) {
  }
  rueda_error error = RUEDA_ERROR_INIT;
  CHECK(rueda_context_error(context, &error) == RUEDA_OK);
  fprintf(stderr, "%s\n", error.message);
  rueda_dump_state(2);  // what the threads did last; from a signal handler too
  CHECK(rueda_context_reset(context) == RUEDA_OK);  // meets the same ranks again
  uint64_t membership = 0;
  CHECK(rueda_context_membership(context, &membership) == RUEDA_OK);
  //! [memberships]
  CHECK(membership == 2);
}

static void elastic(rueda_context* context) {
  //! [elastic]
  rueda_membership info = RUEDA_MEMBERSHIP_INIT;
  CHECK(rueda_membership_info(context, &info) == RUEDA_OK);
  if (rueda_membership_due(context) != 0) puts("this rank has heard of a change");
  int32_t change = 0;  // after each commit of the program's state, on all ranks:
  CHECK(rueda_check_membership(context, &change) == RUEDA_OK);
  if ((change & RUEDA_RANKS_REMOVED) != 0) {
    int32_t leaving[64];  // whose state the others take over
    size_t count = 0;
    CHECK(rueda_leaving_ranks(context, leaving, 64, &count) == RUEDA_OK);
  }
  if (change != 0 || info.number == 0) {  // 0: this process has come later, and comes in
    const uint64_t commits = 7;           // how often the state was kept
    CHECK(rueda_regroup(context, commits) == RUEDA_OK);
  }
  //! [elastic]
  CHECK(info.ranks == 2 && change == 0);
  CHECK(rueda_regroup(context, 0) == RUEDA_FAILED_PRECONDITION);  // this job is not elastic
}

static void warned(rueda_context* context) {
  //! [stop]
  for (int step = 0; step < 3; ++step) {
    rueda_operation barrier = RUEDA_OPERATION_INIT;  // in place of a training step
    CHECK(rueda_execute(context, &barrier, 1, RUEDA_FOREVER, NULL) == RUEDA_OK);
    if (rueda_should_stop(context) == 1) break;  // all ranks after the same step: save, exit
  }
  //! [stop]
}

int main(void) {
  rueda_context* context = start();
  CHECK(rueda_size(context) == 2);
  status();
  who(context);
  current(context);
  thread_ranks();
  execute(context);
  submit(context);
  result(context);
  bytes(context);
  process_sets(context);
  join(context);
  cuda(context);
  memory(context);
  compression(context);
  timeline(context);
  elastic(context);
  warned(context);
  memberships(context);
  stop(context);
  return 0;
}
