/* What librueda.so and a module (librueda_gloo.so) say to each other: plain data and C functions,
 * so that a library which must not meet others of its kind in the same process stays behind a wall.
 *
 *  1. A module exports one symbol, `rueda_module_table`, which returns its table. The table and
 * what it points to are constant and live until the process ends: modules are never unloaded.
 *  2. Both sides check `size` and `abi` before they read on. Any change to this file is a new
 *     RUEDA_MODULE_ABI: the two are built and installed together.
 *  3. Functions return a value of absl::StatusCode, 0 meaning OK. On failure they leave words for
 *     people, NUL-terminated, in `message`, which has room for RUEDA_MODULE_MESSAGE_BYTES. No
 *     exception crosses in either direction.
 *  4. Counts are elements where an element size stands beside them, else bytes. Times are
 * nanoseconds.
 *  5. One thread at a time calls a communicator, but for `abort` and `silent_peer`, which any
 * thread may call at any time before `destroy`. Callbacks come on the thread that is inside the
 * call, never after it. Another thread may post on the communicator's buffers meanwhile.
 */
#ifndef RUEDA_OPS_BACKEND_MODULE_ABI_H_
#define RUEDA_OPS_BACKEND_MODULE_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RUEDA_MODULE_ABI 5u
#define RUEDA_MODULE_ENTRY "rueda_module_table"
#define RUEDA_MODULE_MESSAGE_BYTES 512

/* The job's key/value store. Keys are NUL-terminated. */
typedef struct rueda_module_store {
  void* user;
  int32_t (*set)(void* user, const char* key, const void* value, size_t bytes, char* message);
  /* Blocks until the key is set; DEADLINE_EXCEEDED after `timeout`. `*bytes`: the room in `value`;
   * then the value's size. */
  int32_t (*get)(void* user, const char* key, int64_t timeout, void* value, size_t* bytes,
                 char* message);
} rueda_module_store;

/* What a communicator is made for. All of it is copied. */
typedef struct rueda_module_group {
  uint32_t size; /* of this struct */
  int32_t members;
  int32_t self;          /* this rank's index among them */
  const char* prefix;    /* of the group's keys in the store; nobody else's begin with it */
  const char* interface; /* the network interface to use */
  int64_t timeout;       /* of connecting, and of each wait for a peer inside an operation */
  int64_t silence_limit; /* of `silent_peer`; 0: none */
  rueda_module_store store;
} rueda_module_group;

/* destination[i] = op(a[i], b[i]), for i < count. `destination` may equal either operand. */
typedef struct rueda_module_reduction {
  void* user;
  void (*reduce)(void* user, void* destination, const void* a, const void* b, size_t count);
  size_t element_bytes;
} rueda_module_reduction;

/* What goes to one other member, or comes from it. */
typedef struct rueda_module_transfer {
  int32_t peer;
  void* data; /* only read when it is sent */
  size_t bytes;
} rueda_module_transfer;

typedef struct rueda_module_communicator rueda_module_communicator;
typedef struct rueda_module_buffer rueda_module_buffer;

/* Operations block. All members call the same ones in the same order with the same sizes. `tag` is
 * equal on all members of one operation; where it is not, they don't meet and the operation times
 * out. Sizes of zero are the caller's to leave out. */
typedef struct rueda_module {
  uint32_t size; /* of this struct */
  uint32_t abi;  /* RUEDA_MODULE_ABI */
  const char* name;

  /* Does not block. */
  int32_t (*create)(const rueda_module_group* group, rueda_module_communicator** communicator,
                    char* message);
  /* Meets member `peer`, or all when it is -1, who do the same. Before the first operation with
   * them; again is fine. DEADLINE_EXCEEDED when somebody doesn't come. */
  int32_t (*connect)(rueda_module_communicator* communicator, int32_t peer, char* message);
  /* In place. All members get the same bits. */
  int32_t (*allreduce)(rueda_module_communicator* communicator, void* data, size_t count,
                       const rueda_module_reduction* reduction, uint32_t tag, char* message);
  /* `data` holds all members' parts one after the other; this member's is in its place. `bytes`: of
   * each member's part; may be zero, but not all of them. */
  int32_t (*allgatherv)(rueda_module_communicator* communicator, void* data, const int64_t* bytes,
                        uint32_t tag, char* message);
  /* In place; only read at the root. */
  int32_t (*broadcast)(rueda_module_communicator* communicator, void* data, size_t bytes,
                       int32_t root, uint32_t tag, char* message);
  int32_t (*barrier)(rueda_module_communicator* communicator, uint32_t tag, char* message);
  /* Sends and receives, at most one of each to and from a member. Members for whom there is nothing
   * need not call; between two, transfers of one tag match in order. */
  int32_t (*exchange)(rueda_module_communicator* communicator, const rueda_module_transfer* sends,
                      size_t send_count, const rueda_module_transfer* receives,
                      size_t receive_count, uint32_t tag, char* message);

  /* Memory of the caller's from which messages are sent, and into which they are received, while
   * other calls go on. Does not block; after `connect` to all. */
  int32_t (*open_buffer)(rueda_module_communicator* communicator, void* data, size_t bytes,
                         rueda_module_buffer** buffer, char* message);
  /* Receives the next message of the tag from `peer` that no earlier post takes, at `offset`; it
   * has at most `bytes` bytes. Sends go in the order of the posts, once the receiver has posted.
   * Neither blocks, and neither looks at the memory before the post or after what `await` tells of
   * it. Tags are below 65536. */
  int32_t (*post_receive)(rueda_module_buffer* buffer, int32_t peer, uint32_t tag, size_t offset,
                          size_t bytes, char* message);
  int32_t (*post_send)(rueda_module_buffer* buffer, int32_t peer, uint32_t tag, size_t offset,
                       size_t bytes, char* message);
  /* Blocks until so many more of the buffer's receives, and of its sends, are done. */
  int32_t (*await)(rueda_module_buffer* buffer, size_t receives, size_t sends, char* message);
  /* Afterwards nothing touches its memory. No other call on it is under way. */
  void (*close_buffer)(rueda_module_buffer* buffer);

  /* A member to whose host no connection works: nothing has come from there for `*silence`, longer
   * than the limit, not even to a kernel's question. Or, where `*is_of_large`, what is sent there
   * has not been acknowledged for so long, though smaller packets are answered. -1: there is none,
   * or none is connected. Does not block; to be called several times within the limit. */
  int32_t (*silent_peer)(rueda_module_communicator* communicator, int64_t* silence,
                         int32_t* is_of_large);

  /* Makes the call under way return ABORTED soon, and any later one at once. A `get` of the store
   * ends when the store does. When the aborted call has returned, nothing touches its memory. */
  void (*abort)(rueda_module_communicator* communicator);
  /* Closes all connections. No other call is under way, and no buffer is open. */
  void (*destroy)(rueda_module_communicator* communicator);
} rueda_module;

typedef const rueda_module* (*rueda_module_entry)(void);

#ifdef __cplusplus
}
#endif

#endif /* RUEDA_OPS_BACKEND_MODULE_ABI_H_ */
