/* An allocator to be preloaded, as jemalloc is by others. Each block has a mark before it; a block
 * without one comes from somebody else's malloc, and freeing it ends the process. */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

void* __libc_malloc(size_t bytes);
void __libc_free(void* block);

#define MARK 0x5ca1ab1e0ddba11ull

typedef struct Header {
  uint64_t mark;
  size_t bytes;
  void* block;
  void* unused;
} Header;

static Header* HeaderOf(void* data) {
  Header* header = (Header*)data - 1;
  if (header->mark == MARK) return header;
  static const char kWords[] = "a block of another malloc was freed\n";
  if (write(STDERR_FILENO, kWords, sizeof(kWords) - 1) < 0) _exit(98);
  _exit(99);
}

void* memalign(size_t alignment, size_t bytes) {
  if (alignment < 32) alignment = 32;
  if (bytes > SIZE_MAX / 2 || alignment > SIZE_MAX / 4) return NULL;
  void* block = __libc_malloc(bytes + alignment + sizeof(Header));
  if (block == NULL) return NULL;
  const uintptr_t end = (uintptr_t)block + sizeof(Header) + alignment - 1;
  void* data = (void*)(end / alignment * alignment);
  *((Header*)data - 1) = (Header){MARK, bytes, block, NULL};
  return data;
}

void* malloc(size_t bytes) {
  return memalign(32, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return memalign(alignment, bytes);
}

void free(void* data) {
  if (data == NULL) return;
  Header* header = HeaderOf(data);
  header->mark = 0;
  __libc_free(header->block);
}

void* calloc(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) return NULL;
  void* data = malloc(total);
  return data == NULL ? NULL : memset(data, 0, total);
}

void* realloc(void* data, size_t bytes) {
  if (data == NULL) return malloc(bytes);
  const size_t before = HeaderOf(data)->bytes;
  void* moved = malloc(bytes);
  if (moved == NULL) return NULL;
  memcpy(moved, data, before < bytes ? before : bytes);
  free(data);
  return moved;
}

int posix_memalign(void** data, size_t alignment, size_t bytes) {
  *data = memalign(alignment, bytes);
  return *data == NULL ? ENOMEM : 0;
}

size_t malloc_usable_size(void* data) {
  return data == NULL ? 0 : HeaderOf(data)->bytes;
}
