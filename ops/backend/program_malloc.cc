// The program's malloc, under libc's names, for a library that is opened with RTLD_DEEPBIND: it and
// the libraries that it brings look for these names here first. Without, they would find libc's,
// also where the program has another (a preloaded jemalloc, say), and the one would free what the
// other has given. Only for what is opened with RTLD_LOCAL: anybody else would find these, too.
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>

#include <atomic>

namespace {

// A function as the program and its libraries find it. Any thread.
template <typename Function>
class Programs {
 public:
  constexpr explicit Programs(const char* name) : name_(name) {}

  template <typename... Args>
  auto operator()(Args... args) {
    Function* function = function_.load(std::memory_order_relaxed);
    if (function == nullptr) {  // whoever looks, finds the same
      function = reinterpret_cast<Function*>(dlsym(dlopen(nullptr, RTLD_LAZY), name_));
      function_.store(function, std::memory_order_relaxed);
    }
    return function(args...);
  }

 private:
  const char* const name_;
  std::atomic<Function*> function_ = nullptr;
};

constinit Programs<void*(size_t)> g_malloc("malloc");
constinit Programs<void*(size_t, size_t)> g_calloc("calloc");
constinit Programs<void*(void*, size_t)> g_realloc("realloc");
constinit Programs<void*(void*, size_t, size_t)> g_reallocarray("reallocarray");
constinit Programs<void(void*)> g_free("free");
constinit Programs<int(void**, size_t, size_t)> g_posix_memalign("posix_memalign");
constinit Programs<void*(size_t, size_t)> g_aligned_alloc("aligned_alloc");
constinit Programs<void*(size_t, size_t)> g_memalign("memalign");
constinit Programs<void*(size_t)> g_valloc("valloc");
constinit Programs<void*(size_t)> g_pvalloc("pvalloc");
constinit Programs<size_t(void*)> g_malloc_usable_size("malloc_usable_size");

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void* malloc(size_t bytes) noexcept {
  return g_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) noexcept {
  return g_calloc(count, bytes);
}
void* realloc(void* block, size_t bytes) noexcept {
  return g_realloc(block, bytes);
}
void* reallocarray(void* block, size_t count, size_t bytes) noexcept {
  return g_reallocarray(block, count, bytes);
}
void free(void* block) noexcept {
  g_free(block);
}
int posix_memalign(void** block, size_t alignment, size_t bytes) noexcept {
  return g_posix_memalign(block, alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return g_aligned_alloc(alignment, bytes);
}
void* memalign(size_t alignment, size_t bytes) noexcept {
  return g_memalign(alignment, bytes);
}
void* valloc(size_t bytes) noexcept {
  return g_valloc(bytes);
}
void* pvalloc(size_t bytes) noexcept {
  return g_pvalloc(bytes);
}
size_t malloc_usable_size(void* block) noexcept {
  return g_malloc_usable_size(block);
}

}  // extern "C"
#pragma GCC visibility pop
