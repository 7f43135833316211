/* FAKE. How a test drives the fake CUDA device (README.md): what librueda_nccl.so of the test tree
 * exports beside the module's table. Any thread may call any of it. Tests use control.h.
 *
 * Streams and events are the table's handles; a null stream is the device's default stream. They
 * are numbered in the order of their creation, from 1 on, as are communicators; a default stream
 * has number 0. */
#ifndef RUEDA_TEST_SUPPORT_FAKE_CUDA_CONTROL_ABI_H_
#define RUEDA_TEST_SUPPORT_FAKE_CUDA_CONTROL_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FAKE_CUDA_CONTROLS_ENTRY "fake_cuda_controls"
#define FAKE_CUDA_MEMBERS_MAX 64 /* of a communicator */
#define FAKE_CUDA_DEVICES_MAX 64

/* One call of the module's table, as the library made it. Calls that only ask are left out: probe,
 * describe, locate, is_capturing, supports, check. */
typedef struct fake_cuda_call {
  const char* function; /* the name of the table's field: "copy" */
  int32_t device;       /* -1: none is named */
  int32_t stream;       /* number; -1: none */
  int32_t event;        /* number; -1: none */
  int32_t communicator; /* number; -1: none */
  int32_t member;       /* index of `self` in the communicator */
  const void* in;       /* the first that is read, null: none */
  const void* out;      /* the first that is written, or the memory */
  int64_t count;        /* elements or bytes, as the table has it; of kernels but reduce: ranges;
                           open_stream: whether it is urgent */
  int32_t dtype, reduce_op; /* -1: none is named */
  int32_t peer;             /* or root; -1: none */
  double factor;            /* 1 where there is none */
  int32_t status;           /* that it returned */
} fake_cuda_call;

typedef struct fake_cuda_control {
  uint32_t size; /* of this struct */

  /* Streams. A stream that is held stands still before its next task; `step` lets so many pass. */
  void (*hold)(int32_t device, void* stream);
  void (*release)(int32_t device, void* stream);
  void (*step)(int32_t device, void* stream, int32_t tasks);
  /* Tasks that are not done yet: records, waits, kernels, collectives, and the test's own. */
  int32_t (*pending)(int32_t device, void* stream);
  int32_t (*stream_number)(int32_t device, void* stream);
  int32_t (*event_number)(void* event);
  /* Whether the stream says that a graph is being captured on it; what is enqueued then fails. */
  void (*set_capturing)(int32_t device, void* stream, int32_t capturing);
  /* The test's own work: fn(user) on the stream's thread, in its order. */
  void (*enqueue)(int32_t device, void* stream, void (*fn)(void* user), void* user);
  /* Sleeps until nothing is pending on it. */
  void (*drain)(int32_t device, void* stream);

  /* The call of `function` ("allreduce"; any device: -1) after the next `skip` ones does nothing
   * and returns `status` with these words. */
  void (*fail_next)(const char* function, int32_t device, int32_t skip, int32_t status,
                    const char* message);
  /* As an illegal access would: all that the device has enqueued is dropped, its streams are not
   * held any more, and every later call that uses it returns INTERNAL with these words. */
  void (*fail_device)(int32_t device, const char* message);
  /* A member vanishes: its peers' collectives hang, and their `check` says UNAVAILABLE. What it has
   * enqueued itself hangs until `abort`. By the communicator's number; of all on a device. */
  void (*kill_member)(int32_t communicator);
  void (*kill_device)(int32_t device);
  /* `supports` says no to this pair from now on, for all communicators of the process. */
  void (*refuse)(int32_t dtype, int32_t reduce_op);
  /* Whether `split` returns UNIMPLEMENTED. */
  void (*set_split)(int32_t works);
  /* Whole again: devices, what is to fail, what is refused, the log (stopped and empty). Holds
   * stay. */
  void (*reset)(void);

  /* The log of calls: empty and on; its length; one of its entries. */
  void (*start_log)(void);
  size_t (*log_size)(void);
  void (*log_entry)(size_t index, fake_cuda_call* call);

  /* What has been opened and not closed, in this process. Bytes: of memory and buffers. */
  int32_t (*live_streams)(void);
  int32_t (*live_events)(void);
  int32_t (*live_communicators)(void);
  int64_t (*live_bytes)(void);
} fake_cuda_control;

typedef const fake_cuda_control* (*fake_cuda_controls_entry)(void);

#ifdef __cplusplus
}
#endif

#endif /* RUEDA_TEST_SUPPORT_FAKE_CUDA_CONTROL_ABI_H_ */
