#include "test/support/refuse.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>

namespace rueda::testing {
namespace {

constexpr int kKinds = static_cast<int>(Refusable::kEpoll) + 1;

// Calls that are let through before one is refused; negative: all.
std::atomic<int> left[kKinds] = {-1, -1, -1, -1, -1, -1, -1, -1};
std::atomic<int> from[kKinds];
std::atomic<bool> refused{false};
void* frames[40];
std::atomic<int> frame_count{0};
thread_local bool exempt = false;

[[maybe_unused]] bool Refused(Refusable what) {
  std::atomic<int>& count = left[static_cast<int>(what)];
  if (exempt || count.load(std::memory_order_relaxed) < 0 || count.fetch_sub(1) != 0) return false;
  exempt = true;
  frame_count = backtrace(frames, static_cast<int>(std::size(frames)));
  exempt = false;
  refused = true;
  return true;
}

// Whether the code of a library asks, at any depth, while such calls are counted.
[[maybe_unused]] bool IsFrom(const char* library, Refusable what) {
  if (exempt || left[static_cast<int>(what)] < 0) return false;
  void* callers[40];
  exempt = true;
  const int count = backtrace(callers, static_cast<int>(std::size(callers)));
  exempt = false;
  return std::any_of(callers, callers + count, [library](void* caller) {
    Dl_info info;
    return dladdr(caller, &info) != 0 && strstr(info.dli_fname, library) != nullptr;
  });
}

// Gloo's thread can't be told that there is no memory.
[[maybe_unused]] bool IsGloos() {
  return IsFrom("libgloo.so", Refusable::kNew);
}

// What the fake CUDA device does stands for a driver and a device: it is refused nothing.
[[maybe_unused]] bool IsTheFakeDevices(Refusable what) {
  return IsFrom("/fake_cuda/rueda/librueda_nccl.so", what);
}

template <typename Fn>
[[maybe_unused]] Fn* Next(const char* name) {
  return reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

const char* NameOf(Refusable what) {
  static constexpr const char* kNames[] = {"operator_new",   "malloc",  "mmap",
                                           "pthread_create", "eventfd", "memfd_create",
                                           "socket",         "epoll"};
  return kNames[static_cast<int>(what)];
}

bool CanRefuse() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#else
  // What loads something at its first use does so now.
  void* frame;
  (void)backtrace(&frame, 1);
  return true;
#endif
}

void RefuseNth(Refusable what, int n) {
  refused = false;
  from[static_cast<int>(what)] = n;
  left[static_cast<int>(what)] = n;
}

void StopRefusing() {
  for (std::atomic<int>& count : left) count = -1;
}

int CountedOf(Refusable what) {
  return from[static_cast<int>(what)] - left[static_cast<int>(what)];
}

bool WasRefused() {
  return refused;
}

void PrintRefused(int fd) {
  backtrace_symbols_fd(frames, frame_count, fd);
}

bool SetExempt(bool now) {
  return std::exchange(exempt, now);
}

}  // namespace rueda::testing

// In the C library's place ----------------------------------------------------------------------

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

using rueda::testing::IsGloos;
using rueda::testing::IsTheFakeDevices;
using rueda::testing::Next;
using rueda::testing::Refusable;
using rueda::testing::Refused;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // of one another where they are inlined
void* operator new(size_t bytes) {
  if (IsGloos() || IsTheFakeDevices(Refusable::kNew) || !Refused(Refusable::kNew)) {
    if (void* memory = malloc(bytes == 0 ? 1 : bytes)) return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  free(memory);
}
#pragma GCC diagnostic pop

#pragma GCC visibility push(default)
extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

static void* NoMemory() {
  errno = ENOMEM;
  return nullptr;
}

void* malloc(size_t bytes) {
  return Refused(Refusable::kMalloc) ? NoMemory() : __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  return Refused(Refusable::kMalloc) ? NoMemory() : __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  return Refused(Refusable::kMalloc) ? NoMemory() : __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return Refused(Refusable::kMalloc) ? NoMemory() : __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (Refused(Refusable::kMalloc)) return ENOMEM;
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (Refused(Refusable::kMmap)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  static const auto real = Next<void*(void*, size_t, int, int, int, off_t)>("mmap");
  return real(at, bytes, protection, flags, fd, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  if (!IsTheFakeDevices(Refusable::kThread) && Refused(Refusable::kThread)) return EAGAIN;
  static const auto real =
      Next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return real(thread, attributes, body, argument);
}

int eventfd(unsigned initial, int flags) {
  if (Refused(Refusable::kEventfd)) {
    errno = EMFILE;
    return -1;
  }
  static const auto real = Next<int(unsigned, int)>("eventfd");
  return real(initial, flags);
}

int memfd_create(const char* name, unsigned flags) {
  if (Refused(Refusable::kMemfd)) {
    errno = EMFILE;
    return -1;
  }
  static const auto real = Next<int(const char*, unsigned)>("memfd_create");
  return real(name, flags);
}

int socket(int domain, int type, int protocol) {
  if (Refused(Refusable::kSocket)) {
    errno = EMFILE;
    return -1;
  }
  static const auto real = Next<int(int, int, int)>("socket");
  return real(domain, type, protocol);
}

int epoll_create1(int flags) {
  if (Refused(Refusable::kEpoll)) {
    errno = EMFILE;
    return -1;
  }
  static const auto real = Next<int(int)>("epoll_create1");
  return real(flags);
}

int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  if (operation == EPOLL_CTL_ADD && Refused(Refusable::kEpoll)) {
    errno = ENOSPC;
    return -1;
  }
  static const auto real = Next<int(int, int, int, epoll_event*)>("epoll_ctl");
  return real(epoll, operation, fd, event);
}

}  // extern "C"
#pragma GCC visibility pop

#endif
