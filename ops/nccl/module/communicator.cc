#include "ops/nccl/module/communicator.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>

#include "ops/nccl/kernels/numbers.h"
#include "ops/nccl/module/driver.h"
#include "ops/nccl/module/nccl_functions.h"

static_assert(sizeof(rueda_cuda_id) == sizeof(ncclUniqueId));

struct rueda_cuda_communicator {
  int32_t device = 0;
  bool has_float8 = false;  // NCCL and the device do

  // NCCL's; written by its own thread while it is made. Null once it was aborted or destroyed.
  ncclComm_t comm = nullptr;
  rueda_cuda_communicator* parent = nullptr;  // of which it is being split off
  bool ready = false;                         // it can be used
  bool pending = false;                       // NCCL may still be busy with the last call
  bool gathers = false;                       // between Begin and End
  bool broken = false;                        // a call has failed
  std::atomic<bool> aborted{false};
};

namespace rueda::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

// How long the other members may take to end theirs.
constexpr nanoseconds kDestroyTimeout = std::chrono::seconds(1);
// NCCL begins most operations within this; then it is asked less often.
constexpr microseconds kBusy(100);
constexpr microseconds kPauseMin(20);
constexpr microseconds kPauseMax(1000);

int32_t SayAborted(char* message) {
  return Say(message, kAborted, "the operation was aborted");
}

// Ends it: what runs on the device for it stops. Also while NCCL is busy with it.
void Kill(rueda_cuda_communicator* c) {
  const Nccl& nccl = TheNccl();
  if (c->gathers) nccl.GroupEnd();
  c->gathers = false;
  c->broken = true;
  ncclComm_t const comm = __atomic_exchange_n(&c->comm, nullptr, __ATOMIC_ACQ_REL);
  if (comm != nullptr) nccl.CommAbort(comm);
}

int32_t SayFailed(rueda_cuda_communicator* c, ncclResult_t result, const char* what,
                  char* message) {
  c->broken = true;
  const int32_t answer = SayNccl(message, result, what);
  if (c->gathers) TheNccl().GroupEnd();
  c->gathers = false;
  return answer;
}

// Waits between two questions: not at all at first, then longer and longer.
class Pauses {
 public:
  void Take() {
    if (Clock::now() - begin_ < kBusy) return std::this_thread::yield();
    std::this_thread::sleep_for(pause_);
    pause_ = std::min(pause_ * 2, kPauseMax);
  }

 private:
  const Time begin_ = Clock::now();
  microseconds pause_ = kPauseMin;
};

// What NCCL says of `c`: ncclInProgress, success or an error. Of one that is being split off its
// parent says it first.
ncclResult_t StateOf(rueda_cuda_communicator* c) {
  const Nccl& nccl = TheNccl();
  ncclResult_t state = ncclSuccess;
  if (c->parent != nullptr) {
    if (c->parent->comm == nullptr) return ncclInvalidUsage;
    const ncclResult_t asked = nccl.CommGetAsyncError(c->parent->comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclSuccess) return state;
  }
  ncclComm_t const comm = __atomic_load_n(&c->comm, __ATOMIC_ACQUIRE);
  if (comm == nullptr) return ncclInProgress;
  const ncclResult_t asked = nccl.CommGetAsyncError(comm, &state);
  return asked != ncclSuccess ? asked : state;
}

// Waits until NCCL has done with the last call. `what` was called.
int32_t Settle(rueda_cuda_communicator* c, const char* what, Time deadline, char* message) {
  Pauses pauses;
  while (true) {
    if (c->aborted.load(std::memory_order_acquire)) {
      Kill(c);
      return SayAborted(message);
    }
    const ncclResult_t state = StateOf(c);
    if (state == ncclSuccess) break;
    if (state != ncclInProgress) return SayFailed(c, state, what, message);
    if (Clock::now() >= deadline) {
      return Say(message, kDeadlineExceeded, "%s: the other members did not come in time", what);
    }
    pauses.Take();
  }
  c->pending = false;
  return kOk;
}

// Whether a call may be made now.
int32_t Admit(rueda_cuda_communicator* c, const char* what, char* message) {
  if (c->aborted.load(std::memory_order_acquire)) {
    Kill(c);
    return SayAborted(message);
  }
  if (c->broken || c->comm == nullptr) {
    return Say(message, kFailedPrecondition, "%s: the communicator has failed before", what);
  }
  if (!c->ready) {
    return Say(message, kFailedPrecondition, "%s: the communicator is not ready", what);
  }
  if (c->pending && !c->gathers) return Settle(c, what, Time::max(), message);
  return kOk;
}

// Makes a call of NCCL's, fn(), for a communicator that is ready. When it returns, its work is on
// the stream; of one that is gathered, when the group has ended.
template <class Fn>
int32_t Call(rueda_cuda_communicator* c, const char* what, char* message, const Fn& fn) {
  const OnDevice on_device(c->device);
  if (!on_device.ok()) return on_device.Why(message);
  const int32_t admitted = Admit(c, what, message);
  if (admitted != kOk) return admitted;
  const ncclResult_t result = fn(TheNccl());
  if (result == ncclSuccess || c->gathers) {
    return result == ncclSuccess || result == ncclInProgress ? static_cast<int32_t>(kOk)
                                                             : SayFailed(c, result, what, message);
  }
  if (result != ncclInProgress) return SayFailed(c, result, what, message);
  return Settle(c, what, Time::max(), message);
}

cudaStream_t Stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

// ---- reductions ----

// What NCCL takes for the library's numbers.
struct Numbers {
  ncclDataType_t type;
  int64_t each;  // of them for an element
};

bool Has(const rueda_cuda_communicator& c, int32_t dtype, Numbers* numbers) {
  switch (dtype) {
    case kUInt8:
      *numbers = {ncclUint8, 1};
      return true;
    case kInt8:
      *numbers = {ncclInt8, 1};
      return true;
    case kInt32:
      *numbers = {ncclInt32, 1};
      return true;
    case kInt64:
      *numbers = {ncclInt64, 1};
      return true;
    case kUInt32:
      *numbers = {ncclUint32, 1};
      return true;
    case kUInt64:
      *numbers = {ncclUint64, 1};
      return true;
    case kFloat16:
      *numbers = {ncclFloat16, 1};
      return true;
    case kBFloat16:
      *numbers = {ncclBfloat16, 1};
      return true;
    case kFloat32:
      *numbers = {ncclFloat32, 1};
      return true;
    case kFloat64:
      *numbers = {ncclFloat64, 1};
      return true;
    case kComplex64:
      *numbers = {ncclFloat32, 2};
      return true;
    case kComplex128:
      *numbers = {ncclFloat64, 2};
      return true;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
    case kFloat8E4M3FN:
      *numbers = {ncclFloat8e4m3, 1};
      return c.has_float8;
    case kFloat8E5M2:
      *numbers = {ncclFloat8e5m2, 1};
      return c.has_float8;
#endif
    default:
      return false;
  }
}

bool IsFloat(int32_t dtype) {
  return dtype == kFloat16 || dtype == kBFloat16 || dtype == kFloat32 || dtype == kFloat64 ||
         dtype == kFloat8E4M3FN || dtype == kFloat8E5M2;
}

bool IsComplexType(int32_t dtype) {
  return dtype == kComplex64 || dtype == kComplex128;
}

// NCCL's own operation, if it has it for these.
bool OperationOf(int32_t dtype, int32_t reduce_op, ncclRedOp_t* operation) {
  switch (reduce_op) {
    case kSum:
      *operation = ncclSum;
      return true;
    case kAverage:
      *operation = ncclAvg;
      return IsFloat(dtype);
    case kMin:
      *operation = ncclMin;
      return !IsComplexType(dtype);
    case kMax:
      *operation = ncclMax;
      return !IsComplexType(dtype);
    case kProduct:
      *operation = ncclProd;
      return !IsComplexType(dtype);
    default:
      return false;
  }
}

// A factor in the type that NCCL multiplies with.
union Factor {
  double float64;
  float float32;
  uint16_t float16;
};

bool FactorFor(ncclDataType_t type, double factor, Factor* scalar) {
  switch (type) {
    case ncclFloat64:
      scalar->float64 = factor;
      return true;
    case ncclFloat32:
      scalar->float32 = static_cast<float>(factor);
      return true;
    case ncclFloat16:
      scalar->float16 = HostFloat16::Narrow(static_cast<float>(factor));
      return true;
    case ncclBfloat16:
      scalar->float16 = BFloat16::Narrow(static_cast<float>(factor));
      return true;
    default:
      return false;
  }
}

struct Reduction {
  int64_t count;
  int32_t dtype;
  int32_t reduce_op;
  double factor;
};

// Makes fn(NCCL, count, type, operation) of it.
template <class Fn>
int32_t CallReduction(rueda_cuda_communicator* c, const char* what, const Reduction& reduction,
                      char* message, const Fn& fn) {
  Numbers numbers;
  ncclRedOp_t operation;
  if (reduction.count < 0 || !Has(*c, reduction.dtype, &numbers) ||
      !OperationOf(reduction.dtype, reduction.reduce_op, &operation)) {
    return Say(message, kInvalidArgument, "%s: not operation %d of %lld elements of type %d", what,
               reduction.reduce_op, static_cast<long long>(reduction.count), reduction.dtype);
  }
  const auto count = static_cast<size_t>(reduction.count * numbers.each);
  if (reduction.factor == 1) {
    return Call(c, what, message,
                [&](const Nccl& nccl) { return fn(nccl, count, numbers.type, operation); });
  }
  Factor scalar;
  if (reduction.reduce_op != kSum || !FactorFor(numbers.type, reduction.factor, &scalar)) {
    return Say(message, kInvalidArgument, "%s: no factors with operation %d of type %d", what,
               reduction.reduce_op, reduction.dtype);
  }
  return Call(c, what, message, [&](const Nccl& nccl) {
    ncclResult_t result = nccl.RedOpCreatePreMulSum(&operation, &scalar, numbers.type,
                                                    ncclScalarHostImmediate, c->comm);
    if (result != ncclSuccess) return result;
    result = fn(nccl, count, numbers.type, operation);
    // It may go when the call that it was given to has returned.
    const ncclResult_t destroyed = nccl.RedOpDestroy(operation, c->comm);
    return result == ncclSuccess ? destroyed : result;
  });
}

// ---- buffers ----

struct Buffer {
  bool of_nccl;
  void* handle;  // of its registration; null: it has none
};

// What was allocated. Never destroyed: buffers may outlive everything.
struct Buffers {
  std::mutex mutex;
  std::unordered_map<void*, Buffer> all;
};
Buffers& TheBuffers() {
  static Buffers& buffers = *new Buffers;
  return buffers;
}

// ---- making them ----

ncclConfig_t ConfigOf() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

// NCCL sums float8 from 2.24 on, where the device has such numbers.
int32_t LookAtDevice(rueda_cuda_communicator* c, char* message) {
  int major = 0;
  const cudaError_t error =
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->device);
  if (error != cudaSuccess) return SayCuda(message, error, "cudaDeviceGetAttribute");
  c->has_float8 = major >= 9 && TheNccl().version >= NCCL_VERSION(2, 24, 0);
  return kOk;
}

int32_t SayMissing(char* message) {
  return Say(message, kFailedPrecondition, "%s", TheNccl().missing.c_str());
}

}  // namespace

int32_t MakeId(rueda_cuda_id* id, char* message) {
  const Nccl& nccl = TheNccl();
  if (!nccl.missing.empty()) return SayMissing(message);
  ncclUniqueId unique;
  const ncclResult_t result = nccl.GetUniqueId(&unique);
  if (result != ncclSuccess) return SayNccl(message, result, "ncclGetUniqueId");
  std::memcpy(id->bytes, &unique, sizeof unique);
  return kOk;
}

int32_t Connect(const rueda_cuda_id* id, int32_t members, int32_t self, int32_t device,
                rueda_cuda_communicator** communicator, char* message) {
  *communicator = nullptr;
  const Nccl& nccl = TheNccl();
  if (!nccl.missing.empty()) return SayMissing(message);
  const OnDevice on_device(device);
  if (!on_device.ok()) return on_device.Why(message);
  auto* const c = new (std::nothrow) rueda_cuda_communicator;
  if (c == nullptr) return Say(message, kResourceExhausted, "no memory for a communicator");
  c->device = device;
  int32_t answer = LookAtDevice(c, message);
  if (answer == kOk) {
    ncclUniqueId unique;
    std::memcpy(&unique, id->bytes, sizeof unique);
    ncclConfig_t config = ConfigOf();
    const ncclResult_t result = nccl.CommInitRankConfig(&c->comm, members, unique, self, &config);
    c->pending = true;
    if (result != ncclSuccess && result != ncclInProgress) {
      answer = SayFailed(c, result, "ncclCommInitRankConfig", message);
    }
  }
  if (answer != kOk) {
    Destroy(c);
    return answer;
  }
  *communicator = c;
  return kOk;
}

int32_t Split(rueda_cuda_communicator* parent, int32_t color, int32_t key,
              rueda_cuda_communicator** communicator, char* message) {
  *communicator = nullptr;
  auto* const c = new (std::nothrow) rueda_cuda_communicator;
  if (c == nullptr) return Say(message, kResourceExhausted, "no memory for a communicator");
  c->device = parent->device;
  c->has_float8 = parent->has_float8;
  ncclConfig_t config = ConfigOf();
  const OnDevice on_device(parent->device);
  int32_t answer =
      on_device.ok() ? Admit(parent, "ncclCommSplit", message) : on_device.Why(message);
  if (answer == kOk) {
    const ncclResult_t result = TheNccl().CommSplit(
        parent->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &c->comm, &config);
    parent->pending = c->pending = true;
    if (result != ncclSuccess && result != ncclInProgress) {
      answer = SayFailed(parent, result, "ncclCommSplit", message);
    } else if (color < 0) {  // there is nothing that could be awaited
      answer = Settle(parent, "ncclCommSplit", Time::max(), message);
    } else {
      c->parent = parent;
      *communicator = c;
      return kOk;
    }
  }
  // If NCCL is still at it, it writes there.
  if (!parent->pending) delete c;
  return answer;
}

int32_t Await(rueda_cuda_communicator* c, int64_t timeout, char* message) {
  if (c->ready) return kOk;
  const char* const what = c->parent == nullptr ? "ncclCommInitRankConfig" : "ncclCommSplit";
  const OnDevice on_device(c->device);
  if (!on_device.ok()) return on_device.Why(message);
  if (c->broken) return Say(message, kFailedPrecondition, "%s has failed before", what);
  const Time now = Clock::now();
  const bool forever = timeout > std::chrono::duration_cast<nanoseconds>(Time::max() - now).count();
  const int32_t answer =
      Settle(c, what, forever ? Time::max() : now + nanoseconds(timeout), message);
  if (answer != kOk) return answer;
  if (c->parent != nullptr) c->parent->pending = false;
  c->parent = nullptr;
  c->ready = true;
  return kOk;
}

int32_t AllocateBuffer(rueda_cuda_communicator* c, size_t bytes, void** memory, char* message) {
  *memory = nullptr;
  const OnDevice on_device(c->device);
  if (!on_device.ok()) return on_device.Why(message);
  const int32_t admitted = Admit(c, "ncclMemAlloc", message);
  if (admitted != kOk) return admitted;
  const Nccl& nccl = TheNccl();
  Buffer buffer = {false, nullptr};
  if (nccl.MemAlloc != nullptr && nccl.MemFree != nullptr) {
    buffer.of_nccl = nccl.MemAlloc(memory, bytes) == ncclSuccess;
  }
  if (!buffer.of_nccl) {
    const cudaError_t error = cudaMalloc(memory, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();  // forget it
      char what[64];
      std::snprintf(what, sizeof what, "cudaMalloc of %zu bytes", bytes);
      return SayCuda(message, error, what);
    }
  }
  // Without it NCCL copies, which is slower and no less right.
  if (nccl.CommRegister != nullptr && nccl.CommDeregister != nullptr && !c->gathers &&
      nccl.CommRegister(c->comm, *memory, bytes, &buffer.handle) != ncclSuccess) {
    buffer.handle = nullptr;
  }
  Buffers& buffers = TheBuffers();
  const std::lock_guard<std::mutex> lock(buffers.mutex);
  buffers.all[*memory] = buffer;
  return kOk;
}

void ReleaseBuffer(int32_t device, rueda_cuda_communicator* c, void* memory) {
  if (memory == nullptr) return;
  Buffer buffer = {false, nullptr};
  {
    Buffers& buffers = TheBuffers();
    const std::lock_guard<std::mutex> lock(buffers.mutex);
    const auto found = buffers.all.find(memory);
    if (found == buffers.all.end()) return;
    buffer = found->second;
    buffers.all.erase(found);
  }
  const OnDevice on_device(device);
  const Nccl& nccl = TheNccl();
  if (c != nullptr && c->comm != nullptr && buffer.handle != nullptr) {
    nccl.CommDeregister(c->comm, buffer.handle);
  }
  if (buffer.of_nccl) {
    nccl.MemFree(memory);
  } else {
    cudaFree(memory);
  }
}

int32_t Supports(rueda_cuda_communicator* c, int32_t dtype, int32_t reduce_op) {
  Numbers numbers;
  ncclRedOp_t operation;
  return Has(*c, dtype, &numbers) && OperationOf(dtype, reduce_op, &operation) ? 1 : 0;
}

int32_t Begin(rueda_cuda_communicator* c, char* message) {
  const int32_t answer =
      Call(c, "ncclGroupStart", message, [](const Nccl& nccl) { return nccl.GroupStart(); });
  c->gathers = answer == kOk;
  return answer;
}

int32_t End(rueda_cuda_communicator* c, char* message) {
  if (c->aborted.load(std::memory_order_acquire)) {
    const OnDevice on_device(c->device);
    Kill(c);
    return SayAborted(message);
  }
  if (!c->gathers) {
    return Say(message, kFailedPrecondition,
               "ncclGroupEnd: the group has failed, or has not begun");
  }
  c->gathers = false;
  return Call(c, "ncclGroupEnd", message, [](const Nccl& nccl) { return nccl.GroupEnd(); });
}

int32_t Allreduce(rueda_cuda_communicator* c, void* stream, const void* in, void* out,
                  int64_t count, int32_t dtype, int32_t reduce_op, double factor, char* message) {
  return CallReduction(
      c, "ncclAllReduce", {count, dtype, reduce_op, factor}, message,
      [&](const Nccl& nccl, size_t numbers, ncclDataType_t type, ncclRedOp_t operation) {
        return nccl.AllReduce(in, out, numbers, type, operation, c->comm, Stream(stream));
      });
}

int32_t ReduceTo(rueda_cuda_communicator* c, void* stream, const void* in, void* out, int64_t count,
                 int32_t dtype, int32_t reduce_op, double factor, int32_t root, char* message) {
  return CallReduction(
      c, "ncclReduce", {count, dtype, reduce_op, factor}, message,
      [&](const Nccl& nccl, size_t numbers, ncclDataType_t type, ncclRedOp_t operation) {
        return nccl.Reduce(in, out, numbers, type, operation, root, c->comm, Stream(stream));
      });
}

int32_t Reducescatter(rueda_cuda_communicator* c, void* stream, const void* in, void* out,
                      int64_t count, int32_t dtype, int32_t reduce_op, double factor,
                      char* message) {
  return CallReduction(
      c, "ncclReduceScatter", {count, dtype, reduce_op, factor}, message,
      [&](const Nccl& nccl, size_t numbers, ncclDataType_t type, ncclRedOp_t operation) {
        return nccl.ReduceScatter(in, out, numbers, type, operation, c->comm, Stream(stream));
      });
}

int32_t Allgather(rueda_cuda_communicator* c, void* stream, const void* in, void* out, size_t bytes,
                  char* message) {
  return Call(c, "ncclAllGather", message, [&](const Nccl& nccl) {
    return nccl.AllGather(in, out, bytes, ncclUint8, c->comm, Stream(stream));
  });
}

int32_t Broadcast(rueda_cuda_communicator* c, void* stream, const void* in, void* out, size_t bytes,
                  int32_t root, char* message) {
  return Call(c, "ncclBroadcast", message, [&](const Nccl& nccl) {
    return nccl.Broadcast(in, out, bytes, ncclUint8, root, c->comm, Stream(stream));
  });
}

int32_t Send(rueda_cuda_communicator* c, void* stream, const void* data, size_t bytes, int32_t peer,
             char* message) {
  return Call(c, "ncclSend", message, [&](const Nccl& nccl) {
    return nccl.Send(data, bytes, ncclUint8, peer, c->comm, Stream(stream));
  });
}

int32_t Receive(rueda_cuda_communicator* c, void* stream, void* data, size_t bytes, int32_t peer,
                char* message) {
  return Call(c, "ncclRecv", message, [&](const Nccl& nccl) {
    return nccl.Recv(data, bytes, ncclUint8, peer, c->comm, Stream(stream));
  });
}

int32_t Check(rueda_cuda_communicator* c, char* message) {
  if (c->aborted.load(std::memory_order_acquire)) return SayAborted(message);
  if (c->comm == nullptr) {
    return Say(message, kFailedPrecondition, "the communicator has failed before");
  }
  const OnDevice on_device(c->device);
  const ncclResult_t state = StateOf(c);
  if (state == ncclSuccess || state == ncclInProgress) return kOk;
  return SayFailed(c, state, "NCCL", message);
}

void Abort(rueda_cuda_communicator* c) {
  c->aborted.store(true, std::memory_order_release);
}

void Destroy(rueda_cuda_communicator* c) {
  const OnDevice on_device(c->device);
  const Nccl& nccl = TheNccl();
  char message[RUEDA_CUDA_MESSAGE_BYTES];
  if (c->ready && !c->broken && !c->aborted.load(std::memory_order_acquire)) {
    ncclResult_t result = ncclSuccess;
    if (c->pending) {
      Settle(c, "ncclCommFinalize", Clock::now() + kDestroyTimeout, message);
    }
    if (!c->pending) result = nccl.CommFinalize(c->comm);
    if (!c->pending && (result == ncclSuccess || result == ncclInProgress) &&
        Settle(c, "ncclCommFinalize", Clock::now() + kDestroyTimeout, message) == kOk) {
      nccl.CommDestroy(__atomic_exchange_n(&c->comm, nullptr, __ATOMIC_ACQ_REL));
      delete c;
      return;
    }
  }
  Kill(c);
  // NCCL's thread may still write there, if it was never ready.
  if (c->ready) delete c;
}

}  // namespace rueda::cuda
