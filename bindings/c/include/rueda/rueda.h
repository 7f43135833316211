/** \file
 * Rueda: a collective-communication runtime for data-parallel training. The C API; a framework
 * needs nothing else. C11 and C++.
 *
 * Conventions
 *
 *  1. Functions return a rueda_status unless they say otherwise. After a status other than
 *     RUEDA_OK, rueda_last_error() says on the same thread what was wrong, where, and what to do.
 *     Nothing throws.
 *  2. A status that a function returns at once is about the call. How an operation ended is told by
 *     rueda_wait, rueda_handle_error and the callback.
 *  3. Every function may be called from any thread at any time unless it says otherwise. None of
 *     them holds a lock while it calls back.
 *  4. Structs that are passed by pointer begin with `size` and have an _INIT macro that sets it;
 *     use it, so that fields may be added at the end. Every function takes structs of older
 *     headers, which are shorter. It takes those of newer headers, too, while the fields that it
 *     does not know are zero; else it returns RUEDA_INVALID_ARGUMENT. In an array of structs all
 *     have the same size. rueda_tensor alone has no size: it has the layout of DLPack's DLTensor.
 *  5. Times are int64 nanoseconds; RUEDA_FOREVER means no limit. Sizes and counts are in bytes
 *     where the name says so, else in elements. Ranks are world ranks, in process sets too.
 *  6. Who owns what: pointers that you pass are borrowed for the call, but for tensor memory, which
 *     is borrowed from submit until the operation has ended: don't read outputs or change inputs
 *     before that. Strings that the library returns belong to it; how long they live is said beside
 *     each.
 *  7. What the ranks of a process set must agree on for one name: kind, reduce operation, dtype,
 *     shape (allgather, gather, scatter, alltoall: but for the first dimension), root, scale
 *     factors, grouping. If they don't, the operation fails with RUEDA_INVALID_ARGUMENT on every
 *     rank, with the same message, and nothing else is disturbed. Ranks may submit in any order.
 *     What is wrong by itself (a root outside the set, a null pointer; not splits) is refused at
 *     once, where it is submitted; the other ranks wait for it, and stall reports name who is
 *     missing. An unnamed operation that was refused is none: it takes no place in the order.
 *  8. If a rank is lost, every operation in flight and every later one fails with RUEDA_ABORTED and
 *     the same first cause. What outputs (and inputs used in place) hold then is undefined.
 *  9. A child process forked after rueda_init can't use the context: calls return
 *     RUEDA_FAILED_PRECONDITION. It doesn't inherit memory of rueda_mem_alloc: SIGSEGV there.
 *  10. Functions and fields are only added, at the end, within one major version (before 1.0:
 *     within one minor version).
 *  11. The compiler warns where the status of a RUEDA_NODISCARD function is ignored.
 */
#ifndef RUEDA_RUEDA_H_
#define RUEDA_RUEDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RUEDA_VERSION_MAJOR 0
#define RUEDA_VERSION_MINOR 1
#define RUEDA_VERSION_PATCH 0
#define RUEDA_VERSION \
  ((RUEDA_VERSION_MAJOR << 16) | (RUEDA_VERSION_MINOR << 8) | RUEDA_VERSION_PATCH)

#if defined(RUEDA_BUILDING_LIBRARY) /* it is C++ */
#define RUEDA_API [[gnu::visibility("default")]]
#else
#define RUEDA_API
#endif

/* The compiler warns where the status of such a function is ignored: results would be wrong, or
 * something would leak. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) || \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ > 201710L)
#define RUEDA_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define RUEDA_NODISCARD __attribute__((warn_unused_result))
#else
#define RUEDA_NODISCARD
#endif

/* Status ------------------------------------------------------------------------------------- */
/** \addtogroup c_status
 * @{ */

/** The values are those of absl::StatusCode. */
typedef enum rueda_status {
  RUEDA_OK = 0,
  RUEDA_CANCELLED = 1, /**< the operation has ended: some ranks did not submit it in time */
  RUEDA_UNKNOWN = 2,
  RUEDA_INVALID_ARGUMENT = 3,  /**< your mistake, or the ranks disagree: retrying does not help */
  RUEDA_DEADLINE_EXCEEDED = 4, /**< the call's time is up; the operation goes on. Never how an
                                    operation ends. From rueda_init and rueda_context_reset: ranks
                                    did not come in time. No operation goes on then, and
                                    rueda_init may be tried again */
  RUEDA_NOT_FOUND = 5,         /**< a handle that was never given out, or was released */
  RUEDA_ALREADY_EXISTS = 6,
  RUEDA_PERMISSION_DENIED = 7,
  RUEDA_RESOURCE_EXHAUSTED = 8,  /**< queue full, out of memory */
  RUEDA_FAILED_PRECONDITION = 9, /**< not initialized, shut down, forked, ... */
  RUEDA_ABORTED = 10,            /**< the membership has ended: a rank or the network was lost */
  RUEDA_OUT_OF_RANGE = 11,
  RUEDA_UNIMPLEMENTED = 12,
  RUEDA_INTERNAL = 13, /**< a bug in Rueda, or an exception out of a library */
  RUEDA_UNAVAILABLE = 14,
  RUEDA_DATA_LOSS = 15,
  RUEDA_UNAUTHENTICATED = 16
} rueda_status;

/** The name of a status, such as "INVALID_ARGUMENT"; never freed. */
RUEDA_API const char* rueda_status_name(rueda_status status);

/** What was wrong with the latest call on this thread that did not return RUEDA_OK. Never null;
 * valid until the next failing call on this thread. */
RUEDA_API const char* rueda_last_error(void);

/** The library's version, as RUEDA_VERSION. */
RUEDA_API uint32_t rueda_version(void);

#define RUEDA_FOREVER INT64_MAX

/** @} */

/* Tensors ------------------------------------------------------------------------------------ */
/** \addtogroup c_tensors
 * @{ */

/** As DLPack's DLDevice. */
typedef struct rueda_device {
  int32_t type; /**< one of those below; other DLPack device types are RUEDA_UNIMPLEMENTED */
  int32_t id;   /**< of CUDA: among the devices that the process sees (CUDA_VISIBLE_DEVICES) */
} rueda_device;

enum {
  RUEDA_CPU = 1,
  RUEDA_CUDA = 2,
  RUEDA_CUDA_HOST = 3,    /**< pinned memory: as the CPU's */
  RUEDA_CUDA_MANAGED = 13 /**< as the device's that the tensor names */
};

/**
 * As DLPack's DLDataType. `lanes` is 1.
 *
 * Floating types of 16 and 8 bits are summed in float32, and the result is rounded, to nearest
 * even. Between hosts a reduction sends each host's sum in 16 bits, rounded, unless the host has
 * one rank; of averages it sends the host's mean, which fits wherever the operands do.
 * RUEDA_WIRE_PRECISION=float32 sends float32 instead.
 */
typedef struct rueda_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} rueda_dtype;

static const rueda_dtype RUEDA_UINT8 = {1, 8, 1};
static const rueda_dtype RUEDA_INT8 = {0, 8, 1};
static const rueda_dtype RUEDA_INT32 = {0, 32, 1};
static const rueda_dtype RUEDA_INT64 = {0, 64, 1};
static const rueda_dtype RUEDA_FLOAT16 = {2, 16, 1};
static const rueda_dtype RUEDA_BFLOAT16 = {4, 16, 1};
static const rueda_dtype RUEDA_FLOAT32 = {2, 32, 1};
static const rueda_dtype RUEDA_FLOAT64 = {2, 64, 1};
static const rueda_dtype RUEDA_BOOL = {6, 8, 1}; /**< sum, max: or; product, min: and */
static const rueda_dtype RUEDA_INT16 = {0, 16, 1};
static const rueda_dtype RUEDA_UINT16 = {1, 16, 1};
static const rueda_dtype RUEDA_UINT32 = {1, 32, 1};
static const rueda_dtype RUEDA_UINT64 = {1, 64, 1};
static const rueda_dtype RUEDA_COMPLEX64 = {5, 64, 1};   /**< sum, average and product only */
static const rueda_dtype RUEDA_COMPLEX128 = {5, 128, 1}; /**< sum, average and product only */
/** As those of 16 bits. e4m3fn has no infinity: too large is NaN. */
static const rueda_dtype RUEDA_FLOAT8_E4M3FN = {10, 8, 1};
static const rueda_dtype RUEDA_FLOAT8_E5M2 = {12, 8, 1};

/** A borrowed tensor, as DLPack's DLTensor. Row-major and contiguous: `strides` null, or what null
 * would mean. At most 32 dimensions. */
typedef struct rueda_tensor {
  void* data;
  rueda_device device;
  int32_t ndim;
  rueda_dtype dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} rueda_tensor;

/** @} */

/* Contexts ----------------------------------------------------------------------------------- */
/** \addtogroup c_contexts
 * @{ */

/** One rank of one job. */
typedef struct rueda_context rueda_context;

/** The ranks of a job that are threads of this process. */
typedef struct rueda_group rueda_group;

/** A group of `size` ranks. Every rank's thread passes it to rueda_init with its rank. Free it when
 * all contexts made with it are destroyed. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_group_create(int32_t size, rueda_group** group);
/** Frees the group; null is fine. */
RUEDA_API void rueda_group_destroy(rueda_group* group);

enum {
  /** Take settings from the environment: RUEDA_..., HOROVOD_... (docs/reference/knobs.md). Without
   * this flag the environment is not read at all. */
  RUEDA_INIT_READ_ENVIRONMENT = 1
};

typedef struct rueda_init_options {
  size_t size;
  const char* name; /**< ranks join the context with the same name; the k-th rueda_init of that name
                       on one rank pairs with the k-th on the others; null: "" */
  uint32_t flags;
  int32_t group_rank;       /**< with a group: this thread's rank in it */
  rueda_group* group;       /**< null: ranks are processes */
  const char* const* knobs; /**< key, value, key, value, ...; they win over the environment */
  size_t knob_count;        /**< pairs */
} rueda_init_options;

#define RUEDA_INIT_OPTIONS_INIT \
  { sizeof(rueda_init_options), NULL, 0, -1, NULL, NULL, 0 }

/** Joins the job and waits for the other ranks, at most for the knob start_timeout_s.
 * `header_version`: RUEDA_VERSION. With neither a group nor a launcher it is a world of one rank.
 * INVALID_ARGUMENT: a bad or unknown knob, by name. FAILED_PRECONDITION: the ranks' settings or
 * versions differ, or a launcher's variables say that there are more ranks, but not how to reach
 * them (docs/guides/launcher.md), or it was called from an inline callback or an allocator.
 * DEADLINE_EXCEEDED names the ranks that did not come. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_init(uint32_t header_version,
                                                  const rueda_init_options* options,
                                                  rueda_context** context);

/** Leaves the job. Collective: waits until all ranks have called it. Pending operations are
 * completed first. Operations that need a rank that already left fail. Calls of other threads
 * may be under way: what they wait for ends, and what they submit from now on is
 * FAILED_PRECONDITION, as is a second shutdown. Afterwards only results, errors and
 * rueda_context_destroy. ABORTED when the membership failed, or another thread resets or destroys
 * the context; in an elastic job OK, too, when it failed as another rank was lost. Not from a
 * callback. */
RUEDA_API rueda_status rueda_shutdown(rueda_context* context);

/** Frees what the context has. If it was not shut down, the job ends for the other ranks (ABORTED).
 * Later calls with it are RUEDA_FAILED_PRECONDITION. Null is fine. Calls of other threads that are
 * under way return ABORTED, and have left before anything is freed. From a callback or an allocator
 * of this context it does nothing but log an error. Where an operation of a failed membership is
 * still on a CUDA device, as a stream of the caller's has not come to where it waits for it, what
 * the device uses is kept, with one warning, and freed by a later rueda_init, rueda_context_reset
 * or rueda_context_destroy: this waits for that stream 0.8 s at most, and the operation's tensors
 * are in use until it goes on. */
RUEDA_API void rueda_context_destroy(rueda_context* context);

/** The context that the hvd-style functions use: the calling thread's own if it set one, else the
 * process's default. Null when there is none. */
RUEDA_API rueda_context* rueda_current_context(void);
/** Sets the process's default context; null unsets it. It must outlive its use here. */
RUEDA_API void rueda_set_default_context(rueda_context* context);
/** The same for the calling thread. */
RUEDA_API void rueda_set_thread_context(rueda_context* context);

/** 1 while the context can be used, else 0: null, shut down, failed, or in a forked child. */
RUEDA_API int32_t rueda_is_initialized(const rueda_context* context);

/** This rank, from 0 on. This one and those below: -1 when the context is null; the last error then
 * says so. */
RUEDA_API int32_t rueda_rank(const rueda_context* context);
/** How many ranks there are. */
RUEDA_API int32_t rueda_size(const rueda_context* context);
/** This rank among those of its host. */
RUEDA_API int32_t rueda_local_rank(const rueda_context* context);
/** How many ranks this host has. */
RUEDA_API int32_t rueda_local_size(const rueda_context* context);
/** This rank among those with its local rank, one a host. */
RUEDA_API int32_t rueda_cross_rank(const rueda_context* context);
/** How many ranks have this local rank. */
RUEDA_API int32_t rueda_cross_size(const rueda_context* context);
/** 1 when all hosts have the same number of ranks. */
RUEDA_API int32_t rueda_is_homogeneous(const rueda_context* context);

/** With `waits` 1: until it says 0 here, the calling thread waits outside of the library for
 * threads that use the context, such as in a join. The detection of deadlocks (deadlock_timeout_s)
 * then counts those alone. Else it would take the thread for one that may come back and submit what
 * the other ranks wait for, and a deadlock would end after six times the limit. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_thread_waits(rueda_context* context, int32_t waits);

/** The number of the context's membership: 1 for the first of its name in a job; each init and
 * reset begins the next. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_context_membership(const rueda_context* context,
                                                                uint64_t* membership);
/** Deprecated: the old name of rueda_context_membership. It goes with 0.3. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_context_epoch(const rueda_context* context,
                                                           uint64_t* membership);
/** After ABORTED: meets the same ranks again in a new membership. Collective over all of them;
 * process sets but the world go, handles stay. FAILED_PRECONDITION while the membership has not
 * failed, after rueda_shutdown (also of another thread meanwhile), and from a callback or an
 * allocator. Calls of other threads that are under way return ABORTED first; those that begin
 * meanwhile do, too. DEADLINE_EXCEEDED when a rank does not come (a lost process does not come back
 * by itself), UNAVAILABLE when one has ended. After that the context is of no use: destroy it; the
 * ranks may meet again by rueda_init, also those whose reset waits. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_context_reset(rueda_context* context);
/** Ends the membership on all ranks: everything in flight fails with ABORTED and this reason. May
 * be called from a callback or an allocator; from an inline one the membership ends when that has
 * returned.
 */
RUEDA_API rueda_status rueda_abort(rueda_context* context, const char* reason);

/** The device of this type that the context's operations use: the one that the first of them was
 * on, else number (local rank modulo the number of devices) of those that the process sees. A
 * context uses one device. FAILED_PRECONDITION when operations on tensors there are not possible in
 * this process, with one line that says why: there is no device, no driver or one that is too old,
 * no NCCL, or this library was built without CUDA. CPU tensors are not affected. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_local_device(rueda_context* context, int32_t type,
                                                          rueda_device* device);

/** @} */

/* Elastic jobs ------------------------------------------------------------------------------- */
/** \addtogroup c_elastic
 * @{ */

/** What a context's membership is. In an elastic job, one that `ruedarun --min-np` has started,
 * memberships differ in their ranks: some were lost, others have come.
 *
 * A process that comes to a job that is at work is not in it after rueda_init: its membership has
 * the number 0, and operations are as in a world of one. It builds what it needs, while the others
 * work, and then calls rueda_regroup. Until then rueda_rank and rueda_size say what they would be
 * if it were in when it was started. */
typedef struct rueda_membership {
  size_t size;
  uint64_t number;   /**< as of rueda_context_membership; 0: not in one yet */
  int32_t rank;      /**< this one's */
  int32_t ranks;     /**< how many there are */
  int32_t survivors; /**< so many of them, the lowest, were in the membership before; they keep
                          their order. 0: it is the first, or the job is not elastic */
  int32_t source;    /**< the rank whose state is the newest, by what rueda_regroup was told; a
                          survivor, or in the first membership rank 0 */
  int32_t keeping;   /**< so many hosts have none of these ranks, but get new ones, which may have
                          what lost ranks kept there (rueda_mem_kept). It becomes 0 when none is
                          to be waited for any more */
} rueda_membership;

#define RUEDA_MEMBERSHIP_INIT \
  { sizeof(rueda_membership), 0, -1, 0, 0, 0, 0 }

/** What the next membership changes; bits. */
enum { RUEDA_RANKS_ADDED = 1, RUEDA_RANKS_REMOVED = 2 };

/** FAILED_PRECONDITION: there is none. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_membership_info(const rueda_context* context,
                                                             rueda_membership* membership);

/** Begins the next membership of an elastic job, in this context: after ABORTED, at a point that
 * all ranks have agreed on by rueda_check_membership, or to come in. Collective over the ranks that
 * live: waits for them, and for none that is being started. The launcher decides who is in it;
 * survivors keep their order and get the lowest ranks, so this rank's number may change. Process
 * sets other than the world are gone; names, registered memory and what compression remembers stay,
 * and so do handles, whose operations have ended. `commits`: how often the program has kept its
 * state; who has kept it most often is the next membership's `source`.
 *
 * A rank that does not come within `ruedarun --regroup-timeout` is killed. CANCELLED: the launcher
 * does not want this process any more, as its host is taken away or the job is over: destroy the
 * context, and exit with 0. UNAVAILABLE: the launcher has gone. FAILED_PRECONDITION: the job is not
 * elastic; from a callback or an allocator; after rueda_shutdown. Calls of other threads that are
 * under way return ABORTED first; those that begin meanwhile do, too. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_regroup(rueda_context* context, uint64_t commits);

/** What is due of the next membership, as far as this process knows: RUEDA_RANKS_ADDED,
 * RUEDA_RANKS_REMOVED, both or 0. Costs a system call. Other ranks may not know yet: to act on it,
 * agree first. */
RUEDA_API int32_t rueda_membership_due(const rueda_context* context);

/** The same, as all ranks know it together: all that call it at the same place of the program,
 * where they have waited for the same operations of the world, get the same answer. If it is not 0,
 * let all call rueda_regroup there. Costs no message: what one rank knows goes to all with the next
 * operations. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_check_membership(rueda_context* context,
                                                              int32_t* change);

/** Writes the first `capacity` of the ranks that leave with the next membership to `ranks`,
 * ascending, and how many there are to `count`; as far as this process knows. Once
 * rueda_check_membership says RUEDA_RANKS_REMOVED, some rank knows them all: who has something
 * alone hands it over before rueda_regroup. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_leaving_ranks(const rueda_context* context,
                                                           int32_t* ranks, size_t capacity,
                                                           size_t* count);

/** @} */

/* Stopping ----------------------------------------------------------------------------------- */
/** \addtogroup c_stop
 * @{ */

/** 1 once the job is to stop, as a warning has come to any of its ranks: SIGTERM, SIGUSR1, or a
 * file of the knob `stop_file`. All ranks that call it at the same place of the program, where they
 * have waited for the same operations of the world, get the same answer, so all of them save the
 * same step. 0 before; -1 when the context is null. Costs no message.
 *
 * From the first call on the two signals don't end this process; handlers that it had are called as
 * well. Those that it installs later are instead of this one. */
RUEDA_API int32_t rueda_should_stop(rueda_context* context);

/** @} */

/* Process sets ------------------------------------------------------------------------------- */
/** \addtogroup c_process_sets
 * @{ */

enum { RUEDA_WORLD = 0 }; /**< the process set of all ranks */

/** Makes a process set of `count` ranks, ascending. Collective over the world: all ranks call it
 * with the same list, whether they are in it or not. Every rank gets the same id. ALREADY_EXISTS:
 * there is such a set, and `id` is its. Blocks; DEADLINE_EXCEEDED after `timeout_ns`, and then the
 * set may still come to be. ABORTED, and the membership has ended: a rank had no room for it. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_process_set_add(rueda_context* context,
                                                             const int32_t* ranks, size_t count,
                                                             int64_t timeout_ns, int32_t* id);
/** Removes a process set; its id may be given to another one later. Collective over the world.
 * FAILED_PRECONDITION on every rank, naming the rank: operations of the set are in flight, and it
 * stays. NOT_FOUND: there is no such set. INVALID_ARGUMENT: the world. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_process_set_remove(rueda_context* context, int32_t id,
                                                                int64_t timeout_ns);
/** The number of ranks; -1 when there is no such set. */
RUEDA_API int32_t rueda_process_set_size(const rueda_context* context, int32_t id);
/** This rank's index in the set; -1 when it is not in it. */
RUEDA_API int32_t rueda_process_set_rank(const rueda_context* context, int32_t id);
/** Writes the first `capacity` of the set's world ranks to `ranks`, and how many there are to
 * `count`. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_process_set_ranks(const rueda_context* context,
                                                               int32_t id, int32_t* ranks,
                                                               size_t capacity, size_t* count);

/** @} */

/* Operations --------------------------------------------------------------------------------- */
/** \addtogroup c_operations
 * @{ */

/** "Rows" are what a tensor has along its first dimension. In reduce, gather, scatter, send and
 * recv too, `root` is a world rank. Where nothing else is said a result of unknown size goes to
 * `output` if that is given (and must fit exactly), else to what `allocate` returns, else it is for
 * rueda_result_take. */
typedef enum rueda_kind {
  RUEDA_ALLREDUCE = 0,     /**< input and output of one shape, the same on all ranks */
  RUEDA_BROADCAST = 1,     /**< output = the root's input */
  RUEDA_ALLGATHER = 2,     /**< result = all inputs, joined along the first dimension in rank order;
                              the first dimension may differ by rank */
  RUEDA_BARRIER = 3,       /**< no tensors */
  RUEDA_ALLTOALL = 4,      /**< `splits` rows of the input go to each rank; result = what all sent,
                              in rank order. rueda_result_splits tells how many rows came from
                               whom */
  RUEDA_REDUCESCATTER = 5, /**< the inputs, of one shape on all ranks, are reduced; result = this
                              rank's rows: equal parts, the lowest ranks one row more */
  RUEDA_REDUCE = 6,        /**< as allreduce, but only the root has an output */
  RUEDA_GATHER = 7,        /**< as allgather, but only the root has a result */
  RUEDA_SCATTER = 8, /**< `splits` rows of the root's input go to each rank. Elsewhere `input` is
                              null if `output` is given; else it tells dtype and shape of a row,
                              and its first dimension and its data are not looked at */
  RUEDA_SEND = 9,    /**< `input` goes to the rank `root`, which must receive it */
  RUEDA_RECV = 10    /**< `output` = what the rank `root` sends: same dtype, shape and name, or
                              both unnamed and in one order */
} rueda_kind;

typedef enum rueda_reduce_op {
  RUEDA_SUM = 0,
  RUEDA_AVERAGE = 1, /**< of integers: the sum, exact up to 32 bits and wrapping around in 64 bits,
                        divided and truncated toward zero; of bool: refused */
  RUEDA_MIN = 2,
  RUEDA_MAX = 3,
  RUEDA_PRODUCT = 4,
  RUEDA_BAND = 5, /**< bitwise and, or, exclusive or: of integers and bool */
  RUEDA_BOR = 6,
  RUEDA_BXOR = 7,
  RUEDA_ADASUM = 8, /**< arXiv 2006.02924: allreduces of float16, bfloat16, float32, float64 */
  RUEDA_AVERAGE_LIVE = 9, /**< the average over the ranks that have not joined */
  RUEDA_NO_REDUCE_OP = -1 /**< for the kinds that reduce nothing */
} rueda_reduce_op;

/** Memory for an output whose size was not known: called once, on a thread of the library, with no
 * lock held; must not wait for an operation. `part`: which operation of the group. Returns null
 * when there is none: then this rank's operation fails, and the others' do not. One that throws
 * has none. */
typedef void* (*rueda_allocate_fn)(void* user, int32_t part, const int64_t* shape, int32_t ndim);

/** Where an operation runs, and behind what. Null is the device of the operation's tensors and, on
 * CUDA, the legacy default stream. On the CPU stream and event are null.
 *
 * An operation on CUDA reads and writes its tensors on a stream of the library's, which first waits
 * for all that `stream` had been given when the operation was submitted (or, if `ready_event` is
 * given, for that event alone). Submitting enqueues nothing on `stream` but an event, and waits for
 * nothing. What comes after, on any stream, is ordered behind the operation by
 * rueda_wait_on_stream. A stream that captures a graph is refused (FAILED_PRECONDITION). */
typedef struct rueda_exec {
  size_t size;
  rueda_device device;
  void* stream;      /**< a cudaStream_t of the device */
  void* ready_event; /**< a cudaEvent_t, recorded; not to be recorded again or destroyed before the
                        operation has ended */
} rueda_exec;

#define RUEDA_EXEC_INIT \
  { sizeof(rueda_exec), {RUEDA_CPU, 0}, NULL, NULL }

enum {
  /** The caller waits for the operation soon, so rueda_submit need not wake the library's thread:
   * the thread that waits does the work. Only a hint: without a wait, or another call that does
   * work of this rank's, the operation begins 10 ms later. */
  RUEDA_OPERATION_WAIT_SOON = 1,
  /** rueda_execute releases the handle of an operation that ended well, and sets it to 0: a caller
   * that needs handles for errors and time-outs alone has nothing to release. rueda_submit takes no
   * notice of it. */
  RUEDA_OPERATION_RELEASE = 2
};

/** What to do, with which tensors. The fields that each kind uses, besides `name`, `process_set`,
 * `exec`, `priority`, `flags` and `fault`, which are for all:
 *
 * | kind          | input   | output      | reduction | compressor | root | splits | allocate |
 * |---------------|---------|-------------|-----------|------------|------|--------|----------|
 * | allreduce     | yes     | or in place | yes       | yes        |      |        |          |
 * | broadcast     | yes     | or in place |           |            | yes  |        |          |
 * | allgather     | yes     | or result   |           |            |      |        | yes      |
 * | barrier       | refused | refused     |           |            |      |        |          |
 * | alltoall      | yes     | or result   |           |            |      | yes    | yes      |
 * | reducescatter | yes     | or result   | yes       | yes        |      |        | yes      |
 * | reduce        | yes     | root's      | yes       |            | yes  |        |          |
 * | gather        | yes     | root's      |           |            | yes  |        | root's   |
 * | scatter       | root's  | or result   |           |            | yes  | root's | yes      |
 * | send          | yes     |             |           |            | yes  |        |          |
 * | recv          |         | yes         |           |            | yes  |        |          |
 *
 * "Reduction" is `reduce_op`, `prescale` and `postscale`. "Or in place", "or result": `output` may
 * be null, see rueda_kind. Scatter's other ranks need an `input`, too, if their `output` is null.
 *
 * What contradicts the kind is RUEDA_INVALID_ARGUMENT: a barrier with tensors, scale factors other
 * than 1, a compressor or splits for a kind that has none. Any other field that the kind does not
 * use is ignored, whatever its value. Splits, which may differ by rank, are wrong for all ranks:
 * the operation fails, with RUEDA_INVALID_ARGUMENT and a text that names the rank, once all have
 * submitted it. */
typedef struct rueda_operation {
  size_t size;
  rueda_kind kind;
  int32_t process_set;
  const char* name; /**< UTF-8, 1 to 1,024 bytes, not in flight on this rank (a send's or recv's:
                       not between these two in this direction; on CUDA only until
                       rueda_wait_on_stream has returned: then it may be used again, behind this
                       operation); null: unnamed, matched with the other ranks' by kind and order of
                       submission */
  const rueda_tensor* input; /**< null for a barrier and a recv */
  const rueda_tensor*
      output; /**< null: in place (allreduce, broadcast, reduce), or see rueda_kind */
  rueda_reduce_op reduce_op; /**< allreduce, reduce, reducescatter */
  int32_t root;              /**< broadcast, reduce, gather, scatter; send, recv: the other rank */
  double prescale;           /**< reductions: factors on each input and on the result. Of integers:
                                computed in float64, truncated toward zero, limited to the type */
  double postscale;
  rueda_allocate_fn allocate; /**< for a result of unknown size without `output` */
  void* allocate_user;
  const rueda_exec* exec; /**< null: the device of the tensors; a barrier's: the CPU */
  int32_t priority;       /**< the same sign on all ranks. Above 0: urgent. On CUDA such operations
                             have a stream of the highest priority and a communicator of their own,
                             and need not wait for the others; on the CPU it changes nothing. Below
                             0: of low priority. On the CPU such operations move while all others of
                             this rank wait, and no other waits for them; on CUDA it changes
                             nothing */
  uint32_t flags;         /**< of RUEDA_OPERATION_WAIT_SOON and RUEDA_OPERATION_RELEASE */
  const char* compressor; /**< null: none; see below */
  const int64_t* splits;  /**< alltoall, scatter's root: rows for each rank of the process set; they
                             add up to the first dimension. Null: equal parts */
  size_t split_count;     /**< the size of the process set, or 0 */
  const char* fault;      /**< null, or why this rank can't take part, in UTF-8, up to 1,024 bytes:
                             the operation fails with RUEDA_INVALID_ARGUMENT and this text on all
                             ranks, once all have submitted it */
} rueda_operation;

#define RUEDA_OPERATION_INIT                                                                       \
  {                                                                                                \
    sizeof(rueda_operation), RUEDA_BARRIER, RUEDA_WORLD, NULL, NULL, NULL, RUEDA_NO_REDUCE_OP, -1, \
        1, 1, NULL, NULL, NULL, 0, 0, NULL, NULL, 0, NULL                                          \
  }

/** \page compressors Compressors
 *
 * `compressor` makes sums and averages of float32, float16 and bfloat16 by allreduce and
 * reducescatter smaller on their way, for all ranks alike:
 *
 *  - "fp16", "bf16": numbers of 16 bits
 *  - "fp8": float8_e4m3fn, with a scale for each 512 numbers
 *  - "int8": 256 steps between the least and the largest of each 512 numbers
 *  - "1bit": signs, and the mean magnitude of each 512 numbers
 *  - "topk:0.01": of each 32,768 numbers the hundredth of largest magnitude
 *  - "powersgd:4": of a matrix (first dimension by all others) two factors of rank 4 (arXiv
 *    1905.13727); of anything else, and where that is not less, all numbers
 *  - "auto": none, bf16 or int8, whichever was fastest when all were tried in the tensor's first
 *    ten operations; none for tensors below 32 KiB, and over shared memory
 *  - "none"
 *
 * What a named tensor loses is remembered and added the next time (error feedback), unless
 * ",no_feedback" follows. The result has the same bits on all ranks, whatever the tensor shares a
 * bucket with. A number that is NaN or infinite reaches all ranks: by itself with "fp16", "bf16"
 * and "topk", as a block of NaN (512 numbers, of "powersgd" the tensor) with the others. A
 * number outside the range of "fp16" becomes infinite, and a block of "int8" whose span is outside
 * that of float32 becomes NaN. On several hosts the sum of each host's ranks is compressed.
 * RUEDA_INVALID_ARGUMENT: unknown, or for other operations and types. */

/** An accepted operation (or group). Never 0. */
typedef uint64_t rueda_handle;

enum {
  /** Call back on the thread that turns the engine, at once: saves a thread hop. Such a callback
   * must not wait for an operation (FAILED_PRECONDITION); it may submit and abort. */
  RUEDA_COMPLETION_INLINE = 1
};

/** What to do when the operation has ended: `callback` is called exactly once, with no lock held,
 * on the context's callback thread; it may submit again, and wait. A wait for the operation may
 * return before it is called: `user` lives until then (all are called before rueda_shutdown
 * returns). One that throws ends the program (std::terminate). */
typedef struct rueda_completion {
  size_t size;
  void (*callback)(void* user, rueda_handle handle, rueda_status status);
  void* user;
  uint32_t flags;
} rueda_completion;

#define RUEDA_COMPLETION_INIT \
  { sizeof(rueda_completion), NULL, NULL, 0 }

/** Submits one operation, or a group: `count` operations of one kind, reduce operation, process set
 * and scale factors (allreduce, allgather, reducescatter), all named or all unnamed, all with equal
 * `exec` (one device, one stream), which are taken whole or not at all, executed together or not at
 * all, and have one handle. Returns at once; the work goes on in the background. `completion` may
 * be null. Errors leave no trace: INVALID_ARGUMENT (what is wrong with which tensor; a name in
 * flight), RESOURCE_EXHAUSTED (32,768 operations in flight), FAILED_PRECONDITION, ABORTED. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_submit(rueda_context* context,
                                                    const rueda_operation* operations, size_t count,
                                                    const rueda_completion* completion,
                                                    rueda_handle* handle);

/** Submits and waits, the fast way: this thread does the work itself if it can. Returns how the
 * operation ended. With `handle` null the handle is released; else it is the caller's (0 when the
 * submit failed, or by RUEDA_OPERATION_RELEASE).
 *
 * DEADLINE_EXCEEDED: `timeout_ns` is over (0: it was looked at once). The operation goes on, and
 * its tensors' memory stays borrowed until it has ended, which only the handle tells. So a limit, 0
 * too, needs a `handle`: without one INVALID_ARGUMENT, and nothing is submitted. Not from an inline
 * callback. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_execute(rueda_context* context,
                                                     const rueda_operation* operations,
                                                     size_t count, int64_t timeout_ns,
                                                     rueda_handle* handle);

/** Sets `*done` to 1 when the operation has ended, else to 0. May be 0 right after submit. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_poll(rueda_context* context, rueda_handle handle,
                                                  int32_t* done);

/** Waits until the operation has ended and its result is visible to the host; returns how it ended.
 * The handle stays valid. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_wait(rueda_context* context, rueda_handle handle,
                                                  int64_t timeout_ns);

/** Why an operation has not ended. As rueda_wait with a time-out of 0, but the text of
 * RUEDA_DEADLINE_EXCEEDED names the ranks that have submitted the operation and those that have
 * not, with what each of them submitted last. It asks the coordinator, and waits for at most a
 * second; without an answer it names no rank. Not from an inline callback. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_explain(rueda_context* context, rueda_handle handle);

/** For a caller that must get its memory back, and can't wait without a limit: a destructor, say,
 * while an exception unwinds. As rueda_wait; but when RUEDA_UNWIND_TIMEOUT_S (5 s) are over and the
 * operation has not ended, it ends the membership on all ranks, as rueda_abort does, and waits for
 * the operation's end, which then comes. The error names the operation and says `why` (null is
 * fine): "an exception unwound past its handle". On CUDA it waits until the work is enqueued: let
 * rueda_wait follow if the memory is to be freed. Not from an inline callback. */
RUEDA_API rueda_status rueda_wait_or_abort(rueda_context* context, rueda_handle handle,
                                           const char* why);

/** Orders `stream` behind the operation and blocks at most until its work is enqueued. Work
 * that is enqueued on `stream` after this call sees the result and may overwrite the inputs. An
 * error that comes later stays with the handle and the context. `stream` is one of the operation's
 * device (null: the legacy default stream), and not capturing. Operations on the CPU have no
 * stream: `stream` must be null, and it is rueda_wait without a limit. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_wait_on_stream(rueda_context* context,
                                                            rueda_handle handle, void* stream);

/** Adds a completion to an operation that was submitted already, as often as you like: each is
 * called once, on the context's callback thread, when the operation has ended; soon, if it has.
 * They and the one that rueda_submit was given come in any order. The handle may be released
 * meanwhile. `flags` are 0. FAILED_PRECONDITION after rueda_shutdown. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_on_completion(rueda_context* context,
                                                           rueda_handle handle,
                                                           const rueda_completion* completion);

/** Gives the handle back, in any state: an operation in flight goes on. */
RUEDA_API rueda_status rueda_release(rueda_context* context, rueda_handle handle);

/** How an operation failed. Strings are valid until the handle is released; they are "" when there
 * is nothing to say. */
typedef struct rueda_error {
  size_t size;
  rueda_status code;
  int32_t recoverable; /**< 1: the same ranks could go on in a new membership, all of them or,
                            where one was lost, those that live; 0: don't retry */
  uint64_t membership; /**< the one that ended, or that the operation was in */
  int32_t rank;        /**< the rank that was lost; where `pid` is 0, the rank that ended the
                            membership: it called rueda_abort, or could not go on; -1: none */
  int32_t pid;         /**< of the lost rank; 0: no rank was lost */
  const char* host;
  const char* cause;     /**< "killed by signal 9 (SIGKILL)" */
  const char* operation; /**< what that rank was doing, or, where that is not known, what the
                            others expected from it (`message` says which); where no rank was lost
                            and the membership goes on, what failed: "allreduce" */
  const char* tensor;    /**< its tensor */
  const char* message;   /**< all of it, for people */
} rueda_error;

#define RUEDA_ERROR_INIT \
  { sizeof(rueda_error), RUEDA_OK, 0, 0, -1, 0, "", "", "", "", "" }

/** FAILED_PRECONDITION while the operation goes on. RUEDA_OK, with code RUEDA_OK, when it went
 * well. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_handle_error(rueda_context* context,
                                                          rueda_handle handle, rueda_error* error);

/** How the membership failed: the same first cause that every operation carries, also for calls
 * that were refused because of it. RUEDA_OK with code RUEDA_OK while it goes on. The strings are
 * valid until the context is destroyed or reset. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_context_error(rueda_context* context,
                                                           rueda_error* error);

/** @} */

/* Results of unknown size ------------------------------------------------------------------- */
/** \addtogroup c_results
 * @{ */

/** The result of one operation of a handle. `tensor.shape` belongs to the result; so does
 * `tensor.data` if nobody gave a buffer. */
typedef struct rueda_result {
  size_t size;
  rueda_tensor tensor;
  void* owner;
} rueda_result;

#define RUEDA_RESULT_INIT \
  { sizeof(rueda_result), {NULL, {RUEDA_CPU, 0}, 0, {0, 0, 0}, NULL, NULL, 0}, NULL }

/** Takes the result of operation `index` (of a group; else 0) that has ended well; on CUDA one that
 * a stream is ordered behind (rueda_wait_on_stream) will do, and the data is there for that stream.
 * Once each. Free it with rueda_result_free; it outlives handle and context. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_result_take(rueda_context* context,
                                                         rueda_handle handle, size_t index,
                                                         rueda_result* result);
/** Frees what rueda_result_take gave; an empty result and null are fine. It can't return a status:
 * where `result` is a struct of no version's, or sets fields that the library does not know, it
 * frees nothing, and rueda_last_error() says why. */
RUEDA_API void rueda_result_free(rueda_result* result);

/** How many rows of that result came from each rank of the process set, whoever gave the memory:
 * writes the first `capacity` to `splits`, and how many there are to `count` (a reducescatter: 1).
 */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_result_splits(rueda_context* context,
                                                           rueda_handle handle, size_t index,
                                                           int64_t* splits, size_t capacity,
                                                           size_t* count);

/** @} */

/* Strings of bytes ---------------------------------------------------------------------------- */
/** \addtogroup c_bytes
 * @{ */

/** Gives every rank of the process set the root's `bytes` bytes; elsewhere `data` and `bytes` are
 * not looked at. `name` as in rueda_operation. The result is a uint8 vector; free it with
 * rueda_result_free. Blocks. For serialized objects: what the bytes mean is the caller's business.
 */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_broadcast_bytes(rueda_context* context,
                                                             int32_t process_set, const char* name,
                                                             int32_t root, const void* data,
                                                             size_t bytes, rueda_result* result);
/** All ranks' bytes, one after another in rank order; `sizes` has room for one number a rank of the
 * process set, 0 for those who have joined. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_allgather_bytes(rueda_context* context,
                                                             int32_t process_set, const char* name,
                                                             const void* data, size_t bytes,
                                                             rueda_result* result, int64_t* sizes);

/** @} */

/* Joining ------------------------------------------------------------------------------------ */
/** \addtogroup c_joining
 * @{ */

/** Says that this rank has no more data: the others' operations in the process set go on without
 * it, and it does its part of the work. Reductions leave it out. RUEDA_AVERAGE divides by the size
 * of the set all the same, RUEDA_AVERAGE_LIVE by the number of those who have not joined. To
 * allgather, gather and alltoall it brings no rows; rows that are sent to it are lost. An operation
 * with such a rank as root, sender or receiver, and a change of process sets by the world, fail on
 * the others (FAILED_PRECONDITION). Blocks until all ranks of the set have joined; then
 * `*last_rank` (may be null) is the one that joined last, the same everywhere. Meanwhile this rank
 * can submit nothing else in the set. DEADLINE_EXCEEDED: the join continues, and nobody is
 * told who was last. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_join(rueda_context* context, int32_t process_set,
                                                  int64_t timeout_ns, int32_t* last_rank);

/** @} */

/* Memory ------------------------------------------------------------------------------------- */
/** \addtogroup c_memory
 * @{ */

/** Memory that the other ranks of this host can read and write, page-aligned and zeroed: allreduces
 * of tensors that lie in it on every rank touch each byte once. It outlives shutdown and
 * memberships until it is freed. RESOURCE_EXHAUSTED. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_mem_alloc(rueda_context* context, size_t bytes,
                                                       void** pointer);
/** Frees it, or closes what rueda_mem_open has opened. No operation may be using it. After an
 * ABORTED membership it waits at most 10 s until the neighbors of that membership have left it or
 * have ended, reaped or not. FAILED_PRECONDITION names who has not; the memory stays allocated, and
 * may be freed later. An inline callback and an allocator do not wait: there it is
 * FAILED_PRECONDITION at once. NOT_FOUND: not from rueda_mem_alloc or rueda_mem_open. Null is fine.
 * In a forked child it does nothing with its parent's. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_mem_free(void* pointer);

/** Writes the first `capacity` of the ranks whose memory this rank can open to `ranks`, ascending,
 * and how many there are to `count`: the others of its host, in this membership. Either both of two
 * ranks can open each other's or none. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_neighbor_ranks(const rueda_context* context,
                                                            int32_t* ranks, size_t capacity,
                                                            size_t* count);
/** Where memory lies that this rank has from rueda_mem_alloc, for other ranks of its host to open:
 * in bytes; the same as long as it is allocated. Memory of which this was told keeps its contents
 * after rueda_mem_free, and is given back to the system only when rueda_mem_alloc gives it out
 * again or the process ends: a rank that ends doesn't take from others what they have opened.
 * NOT_FOUND: no rueda_mem_alloc has returned this pointer. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_mem_offset(const void* pointer, uint64_t* offset);
/** Opens `bytes` bytes of memory that `rank` has allocated, by the offset that it has told: no byte
 * is copied. They can be read until rueda_mem_free, also when the membership is over, and when that
 * rank has ended, killed or not; not by a forked child. That other ranks write nothing there
 * meanwhile is up to the program, and so is the offset: what is not allocated is read as zeros.
 * NOT_FOUND: this rank can't open memory of that one. INVALID_ARGUMENT: it is beyond all memory
 * that the rank may have. RESOURCE_EXHAUSTED. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_mem_open(rueda_context* context, int32_t rank,
                                                      uint64_t offset, size_t bytes,
                                                      const void** pointer);

/** Lets the launcher's process on this host hold memory open that this rank has from
 * rueda_mem_alloc, so that it outlives all ranks of the host: `bytes` bytes, by a name of at most
 * 900 bytes, the program's own number of their version, this membership and this rank; with a
 * checksum, which is the program's, too. No byte is copied. Call it when the memory is written,
 * before others go on from it. What has this name and a number below `oldest` is let go: of this
 * rank, and of those that were here and have ended. The newest 16 of a name are held, and of each
 * of the host's places those of the last four that have ended. Does nothing where rueda_regroup is
 * FAILED_PRECONDITION, and before this process is in a membership. Waits for nobody: a launcher
 * that is stopped may not hear of it. NOT_FOUND: this memory is not from rueda_mem_alloc.
 * INVALID_ARGUMENT: too long a name, or more bytes than there are. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_mem_keep(rueda_context* context, const void* pointer,
                                                      size_t bytes, const char* name,
                                                      uint64_t number, uint64_t oldest,
                                                      uint64_t checksum);
/** Opens what `rank` of an earlier membership has kept on this host, if its process has ended: to
 * be read, until rueda_mem_free; sets `bytes` and `checksum` to what it has told. The memory may
 * have been written to since, so check it. Waits for the launcher's process on this host, and while
 * another thread is in rueda_regroup. NOT_FOUND: there is none. UNAVAILABLE: the launcher has gone.
 * RESOURCE_EXHAUSTED. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_mem_kept(rueda_context* context, const char* name,
                                                      uint64_t number, uint64_t membership,
                                                      int32_t rank, const void** pointer,
                                                      size_t* bytes, uint64_t* checksum);

/** @} */

/* Compression -------------------------------------------------------------------------------- */
/** \addtogroup c_compression
 * @{ */

/** What compression remembers of the process set's tensors on this rank (what they lost, PowerSGD's
 * factors), by name, as bytes for rueda_compression_load; free the result with rueda_result_free.
 * For checkpoints, and to take what is remembered from a failed membership to the next. It is kept,
 * up to twice a tensor's size in float32, until the process set is removed or something else is
 * loaded. FAILED_PRECONDITION: a compressed operation of the process set is under way. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_compression_save(rueda_context* context,
                                                              int32_t process_set,
                                                              rueda_result* result);
/** Replaces all that is remembered by what `count` ranks have saved, in the order of their ranks;
 * on all ranks alike. If the process set has as many ranks each takes its own, else each takes the
 * mean of what was lost. What hosts have lost together, with several ranks each, is only of use to
 * as many ranks on as many hosts, and is left out elsewhere. INVALID_ARGUMENT, with nothing
 * changed: damaged, or of another version. FAILED_PRECONDITION: a compressed operation of the
 * process set is under way. */
RUEDA_API RUEDA_NODISCARD rueda_status rueda_compression_load(rueda_context* context,
                                                              int32_t process_set,
                                                              const void* const* data,
                                                              const size_t* bytes, size_t count);

/** @} */

/* Diagnosis ---------------------------------------------------------------------------------- */
/** \addtogroup c_diagnosis
 * @{ */

/** Writes the flight recorder, the last 1,024 events of every thread, to a descriptor.
 * Async-signal-safe. The same goes to a file when a job fails and on SIGUSR2 (knob recorder_dir).
 */
RUEDA_API void rueda_dump_state(int fd);

/** Records what this rank's operations go through, from now on, in a file for chrome://tracing and
 * Perfetto (docs/guides/timeline.md). Rank 0 writes `path` itself, rank 3 "t.3.json" for "t.json".
 * Local: ranks start and stop when they like. A file of that name is replaced. FAILED_PRECONDITION:
 * it is on already, or another timeline is being written to that file; else what the system says,
 * with the path. The knob `timeline` starts it in rueda_init. */
RUEDA_API rueda_status rueda_timeline_start(rueda_context* context, const char* path);
/** Ends the file. Shutdown, a failed membership and rueda_context_destroy do so too.
 * FAILED_PRECONDITION: it is off. Another status: writing went wrong, and the file ends early. */
RUEDA_API rueda_status rueda_timeline_stop(rueda_context* context);

/** @} */

#ifdef __cplusplus
}
#endif

#endif /* RUEDA_RUEDA_H_ */
