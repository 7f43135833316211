/* Compiled, as C11, into one module for each way in which a module can be wrong (CMakeLists.txt);
 * with nothing but NAME into one that is right. */
#include "ops/backend/module_abi.h"

#ifndef ABI
#define ABI RUEDA_MODULE_ABI
#endif
#ifndef SIZE
#define SIZE sizeof(rueda_module)
#endif
#ifndef ABORT
#define ABORT &Abort
#endif

#ifdef UNDEFINED
void nobody_defines_this(void);
#endif
#ifdef LOST_DEPENDENCY
void lost_function(void);
#endif

static int32_t Create(const rueda_module_group* group, rueda_module_communicator** communicator,
                      char* message) {
  (void)group, (void)communicator, (void)message;
#ifdef UNDEFINED
  nobody_defines_this();
#endif
#ifdef LOST_DEPENDENCY
  lost_function();
#endif
  return 12;
}

static int32_t Connect(rueda_module_communicator* communicator, int32_t peer, char* message) {
  (void)peer;
  (void)communicator, (void)message;
  return 12;
}

static int32_t Allreduce(rueda_module_communicator* communicator, void* data, size_t count,
                         const rueda_module_reduction* reduction, uint32_t tag, char* message) {
  (void)communicator, (void)data, (void)count, (void)reduction, (void)tag, (void)message;
  return 12;
}

static int32_t Allgatherv(rueda_module_communicator* communicator, void* data, const int64_t* bytes,
                          uint32_t tag, char* message) {
  (void)communicator, (void)data, (void)bytes, (void)tag, (void)message;
  return 12;
}

static int32_t Broadcast(rueda_module_communicator* communicator, void* data, size_t bytes,
                         int32_t root, uint32_t tag, char* message) {
  (void)communicator, (void)data, (void)bytes, (void)root, (void)tag, (void)message;
  return 12;
}

static int32_t Barrier(rueda_module_communicator* communicator, uint32_t tag, char* message) {
  (void)communicator, (void)tag, (void)message;
  return 12;
}

static int32_t Exchange(rueda_module_communicator* communicator, const rueda_module_transfer* sends,
                        size_t send_count, const rueda_module_transfer* receives,
                        size_t receive_count, uint32_t tag, char* message) {
  (void)communicator, (void)sends, (void)send_count, (void)receives, (void)receive_count;
  (void)tag, (void)message;
  return 0;
}
static int32_t OpenBuffer(rueda_module_communicator* communicator, void* data, size_t bytes,
                          rueda_module_buffer** buffer, char* message) {
  (void)communicator, (void)data, (void)bytes, (void)buffer, (void)message;
  return 12;
}
static int32_t Post(rueda_module_buffer* buffer, int32_t peer, uint32_t tag, size_t offset,
                    size_t bytes, char* message) {
  (void)buffer, (void)peer, (void)tag, (void)offset, (void)bytes, (void)message;
  return 12;
}
static int32_t Await(rueda_module_buffer* buffer, size_t receives, size_t sends, char* message) {
  (void)buffer, (void)receives, (void)sends, (void)message;
  return 12;
}
static void CloseBuffer(rueda_module_buffer* buffer) {
  (void)buffer;
}
static int32_t SilentPeer(rueda_module_communicator* communicator, int64_t* silence,
                          int32_t* is_of_large) {
  (void)communicator, (void)silence, (void)is_of_large;
  return -1;
}
static void Abort(rueda_module_communicator* communicator) {
  (void)communicator;
}
static void Destroy(rueda_module_communicator* communicator) {
  (void)communicator;
}

#ifndef NO_ENTRY
const rueda_module* rueda_module_table(void);

const rueda_module* rueda_module_table(void) {
  static const rueda_module table = {SIZE,        ABI,         NAME,       &Create,  &Connect,
                                     &Allreduce,  &Allgatherv, &Broadcast, &Barrier, &Exchange,
                                     &OpenBuffer, &Post,       &Post,      &Await,   &CloseBuffer,
                                     &SilentPeer, ABORT,       &Destroy};
  (void)Abort;
#ifdef NO_TABLE
  (void)table;
  return 0;
#else
  return &table;
#endif
}
#else
const void* const unused[] = {(const void*)0};
void Use(void);
void Use(void) {
  (void)Create, (void)Connect, (void)Allreduce, (void)Allgatherv, (void)Broadcast, (void)Barrier;
  (void)Exchange, (void)OpenBuffer, (void)Post, (void)Await, (void)CloseBuffer;
  (void)SilentPeer, (void)Abort, (void)Destroy;
}
#endif
