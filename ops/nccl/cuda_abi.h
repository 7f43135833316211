/* What librueda.so and librueda_nccl.so say to each other: plain data and C functions over the CUDA
 * runtime, NCCL and our kernels. The library decides what is enqueued where and in which order
 * (device_communicator.h); the module enqueues it, and knows of no rank, name or plan.
 *
 *  1. The module exports one symbol, `rueda_module_table`, which returns its table. The table and
 *     what it points to are constant and live until the process ends.
 *  2. Both sides check `size` and `abi` before they read on. Any change to this file is a new
 *     RUEDA_CUDA_ABI: the two are built and installed together.
 *  3. Functions return a value of absl::StatusCode, 0 meaning OK. On failure they leave words for
 *     people, NUL-terminated, in `message`, which has room for RUEDA_CUDA_MESSAGE_BYTES. No
 *     exception crosses.
 *  4. Any thread may call any function of devices, streams, events and memory at any time. One
 *     thread at a time uses a communicator, but for `abort`. Each function sets the device that it
 *     needs for the calling thread, and puts back what was set before.
 *  5. Nothing waits for a device but `synchronize` (and, as CUDA does, `allocate` and `release` for
 *     a moment). What is enqueued is enqueued behind what the stream has.
 *  6. Types and operations are numbered as rueda::DType, rueda::ReduceOp and rueda::Compressor.
 *     Counts are elements where a dtype stands beside them, else bytes.
 */
#ifndef RUEDA_OPS_NCCL_CUDA_ABI_H_
#define RUEDA_OPS_NCCL_CUDA_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RUEDA_CUDA_ABI 1u
#define RUEDA_CUDA_MESSAGE_BYTES 512

/* What there is. Versions as their libraries number them (13000 is CUDA 13.0, 23203 NCCL 2.32.3);
 * 0: not there. */
typedef struct rueda_cuda_info {
  int32_t runtime_version; /* of CUDA, with which the module was built */
  int32_t driver_version;  /* the newest CUDA that the driver supports */
  int32_t nccl_version;
  int32_t nccl_header_version; /* with which the module was built */
  int32_t devices;             /* that this process sees (CUDA_VISIBLE_DEVICES) */
} rueda_cuda_info;

typedef struct rueda_cuda_device {
  char name[256];
  int32_t major, minor; /* of its compute capability */
  int64_t bytes;        /* of its memory */
} rueda_cuda_device;

/* A range that a batched copy moves: to[i] = from[i]. On the device; they don't overlap. `from`
 * null: what changes nothing as an operand of the copy's reduce_op. Any alignment that the type
 * has. */
typedef struct rueda_cuda_segment {
  const void* from;
  void* to;
  int64_t elements;
} rueda_cuda_segment;

typedef struct rueda_cuda_copy {
  const rueda_cuda_segment* segments; /* read before the call returns */
  size_t count;
  int32_t dtype;
  int32_t reduce_op;
  double factor; /* 1, or of floating types: what each element is multiplied by, as
                    Scaling::prescale says */
} rueda_cuda_copy;

/* destination[i] = the reduction over r, in order, of sources[r][i], to the bit what
 * kernels::Reduce gives. `destination` may equal a source, but not overlap otherwise. */
typedef struct rueda_cuda_reduce {
  int32_t dtype;
  int32_t reduce_op;
  const void* const* sources; /* read before the call returns */
  size_t source_count;        /* at least one */
  void* destination;
  int64_t count;
  double prescale;
  double postscale;
  int64_t divisor;
} rueda_cuda_reduce;

/* A range of a tensor on its way through a codec (ops/compression/codec.h): it begins with a block
 * of the codec. */
typedef struct rueda_cuda_range {
  const void* from; /* numbers of the dtype (encode), or coded bytes */
  void* to;         /* coded bytes (encode, combine), or numbers of the dtype */
  float* residual;  /* what was left out the last time: added first, and written; null: nothing */
  int64_t elements;
} rueda_cuda_range;

/* Encode: coded = Encode(from * prescale + residual). Combine: the sum of what the ranges decode to
 * at `from`, `from` + stride, ..., `sources` times in all, in order, divided by `divisor` and
 * multiplied by `postscale`, plus residual, encoded to `to` (or, with `decoded`, written there as
 * numbers of the dtype). Decode: to = Decode(from). To the bit what the CPU's codec gives. */
typedef struct rueda_cuda_codec {
  const rueda_cuda_range* ranges; /* read before the call returns */
  size_t count;
  int32_t compressor; /* fp16, bf16, int8 */
  int32_t dtype;      /* float32, float16 or bfloat16 */
  double prescale;
  size_t sources;
  size_t stride; /* bytes */
  double divisor;
  double postscale;
  int32_t decoded;
} rueda_cuda_codec;

/* What names a communicator that is being made: an ncclUniqueId. */
typedef struct rueda_cuda_id {
  char bytes[128];
} rueda_cuda_id;

typedef struct rueda_cuda_communicator rueda_cuda_communicator;

typedef struct rueda_cuda {
  uint32_t size; /* of this struct */
  uint32_t abi;  /* RUEDA_CUDA_ABI */
  const char* name;

  /* OK: there is a device, its driver is new enough, and NCCL can be used. Else FAILED_PRECONDITION
   * with one line that says which of these is not so and what to do. Fills in `info` as far as it
   * is known either way. Loads NCCL the first time. */
  int32_t (*probe)(rueda_cuda_info* info, char* message);
  int32_t (*describe)(int32_t device, rueda_cuda_device* description, char* message);
  /* The device whose memory this is; -1: it is no device's. */
  int32_t (*locate)(const void* pointer, int32_t* device, char* message);

  /* Streams. `urgent`: of the highest priority there is, before others' work on the device. */
  int32_t (*open_stream)(int32_t device, int32_t urgent, void** stream, char* message);
  void (*close_stream)(int32_t device, void* stream);
  /* Whether a graph is being captured on it. */
  int32_t (*is_capturing)(int32_t device, void* stream, int32_t* capturing, char* message);

  /* Events, which keep no time. */
  int32_t (*open_event)(int32_t device, void** event, char* message);
  void (*close_event)(int32_t device, void* event);
  int32_t (*record)(int32_t device, void* event, void* stream, char* message);
  /* What is enqueued on the stream from now on begins behind the event. */
  int32_t (*wait)(int32_t device, void* stream, void* event, char* message);
  /* Sleeps until what the event was recorded behind is done; INTERNAL when the device failed. */
  int32_t (*synchronize)(int32_t device, void* event, char* message);

  /* Device memory. RESOURCE_EXHAUSTED. */
  int32_t (*allocate)(int32_t device, size_t bytes, void** memory, char* message);
  void (*release)(int32_t device, void* memory);
  /* Copies between the host's memory and the device's, and waits for that. Behind nothing else. */
  int32_t (*transfer)(int32_t device, void* to, const void* from, size_t bytes, char* message);

  /* Kernels. */
  int32_t (*copy)(int32_t device, void* stream, const rueda_cuda_copy* copy, char* message);
  int32_t (*reduce)(int32_t device, void* stream, const rueda_cuda_reduce* reduce, char* message);
  int32_t (*encode)(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message);
  int32_t (*combine)(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message);
  int32_t (*decode)(int32_t device, void* stream, const rueda_cuda_codec* codec, char* message);

  /* Communicators. They don't block for longer than NCCL's calls on non-blocking communicators;
   * between two of them they look whether `abort` was called. */
  int32_t (*make_id)(rueda_cuda_id* id, char* message);
  /* All members, with member 0's id. Begins, and does not wait for the others: the communicator can
   * be aborted and awaited, and used once `await` has said OK. */
  int32_t (*connect)(const rueda_cuda_id* id, int32_t members, int32_t self, int32_t device,
                     rueda_cuda_communicator** communicator, char* message);
  /* All members of `parent` call it, each with a color of its part, or -1 for none of its own
   * (`*communicator` is null then); `key`s order the members. UNIMPLEMENTED, on all members alike,
   * when this NCCL can't. */
  int32_t (*split)(rueda_cuda_communicator* parent, int32_t color, int32_t key,
                   rueda_cuda_communicator** communicator, char* message);
  /* Waits until the communicator can be used. DEADLINE_EXCEEDED after `timeout` nanoseconds,
   * ABORTED soon after `abort`. */
  int32_t (*await)(rueda_cuda_communicator* communicator, int64_t timeout, char* message);
  /* Memory of ncclMemAlloc's (else cudaMalloc's), registered with the communicator where NCCL can.
   * It is released while the communicator is there; of one that was aborted behind its `destroy`
   * (`communicator` null), when nothing on the device uses it any more. */
  int32_t (*allocate_buffer)(rueda_cuda_communicator* communicator, size_t bytes, void** memory,
                             char* message);
  void (*release_buffer)(int32_t device, rueda_cuda_communicator* communicator, void* memory);
  /* Whether `allreduce` and its like take it: the rest is done with `exchange` and `reduce`. Does
   * not change while the communicator lives. */
  int32_t (*supports)(rueda_cuda_communicator* communicator, int32_t dtype, int32_t reduce_op);

  /* Between `begin` and `end` operations are gathered, and may run at the same time; at least one
   * of them. All others of the communicator stand alone. */
  int32_t (*begin)(rueda_cuda_communicator* communicator, char* message);
  int32_t (*end)(rueda_cuda_communicator* communicator, char* message);
  /* In place where in = out. Of floating types each element is multiplied by `factor` first
   * (ncclRedOpCreatePreMulSum; only sums, else 1). kAverage divides by the number of members
   * (ncclAvg). */
  int32_t (*allreduce)(rueda_cuda_communicator* communicator, void* stream, const void* in,
                       void* out, int64_t count, int32_t dtype, int32_t reduce_op, double factor,
                       char* message);
  int32_t (*reduce_to)(rueda_cuda_communicator* communicator, void* stream, const void* in,
                       void* out, int64_t count, int32_t dtype, int32_t reduce_op, double factor,
                       int32_t root, char* message);
  /* `count`: of what each member gets; member k's part begins at k * count. */
  int32_t (*reducescatter)(rueda_cuda_communicator* communicator, void* stream, const void* in,
                           void* out, int64_t count, int32_t dtype, int32_t reduce_op,
                           double factor, char* message);
  /* `bytes`: of what each member gives. In place where `in` is this member's part of `out`. */
  int32_t (*allgather)(rueda_cuda_communicator* communicator, void* stream, const void* in,
                       void* out, size_t bytes, char* message);
  /* `in` is only read at the root. */
  int32_t (*broadcast)(rueda_cuda_communicator* communicator, void* stream, const void* in,
                       void* out, size_t bytes, int32_t root, char* message);
  int32_t (*send)(rueda_cuda_communicator* communicator, void* stream, const void* data,
                  size_t bytes, int32_t peer, char* message);
  int32_t (*receive)(rueda_cuda_communicator* communicator, void* stream, void* data, size_t bytes,
                     int32_t peer, char* message);

  /* What has gone wrong behind the calls (ncclCommGetAsyncError): UNAVAILABLE for a peer or the
   * network. */
  int32_t (*check)(rueda_cuda_communicator* communicator, char* message);
  /* Any thread: makes the call under way, and later ones, return ABORTED soon. */
  void (*abort)(rueda_cuda_communicator* communicator);
  /* Ends it: what runs on the device for it stops soon if `abort` was called; else all its work is
   * done, its buffers are released, and the other members end theirs, too (it waits for them for a
   * second or so, and then aborts). */
  void (*destroy)(rueda_cuda_communicator* communicator);
} rueda_cuda;

#ifdef __cplusplus
}
#endif

#endif /* RUEDA_OPS_NCCL_CUDA_ABI_H_ */
