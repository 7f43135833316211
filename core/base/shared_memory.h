// A piece of memory that processes share: a memfd, which has no name anywhere, goes away with its
// last user, and can be handed to a neighbour over a unix socket. Sparse: pages exist once they are
// touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class SharedMemory {
 public:
  // New memory of zeros. The size is sealed: nobody can shrink it under another's feet. The mapping
  // is not inherited by forked children, which fault where it was (the system call `clone` itself
  // leaves a hole there), and not written to core files. Only the first `mapped` bytes take address
  // space, until MapPart.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(const char* label, size_t bytes,
                                                              size_t mapped = SIZE_MAX);
  // Maps what a neighbour created; of memory that is mapped whole the descriptor is then closed.
  // INVALID_ARGUMENT when the descriptor is not memory whose size is sealed.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Map(UniqueFd fd, size_t mapped = SIZE_MAX);

  // Maps only some whole pages of it. INVALID_ARGUMENT too when they are not within it.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> MapRange(const UniqueFd& fd, size_t offset,
                                                                size_t bytes);

  // Another mapping of whole pages that this one maps from the start. It outlives this.
  // RESOURCE_EXHAUSTED: the limit on the address space leaves no room for it.
  absl::StatusOr<std::shared_ptr<SharedMemory>> MapAgain(size_t offset, size_t bytes) const;

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }  // of what is mapped from the start
  // Some whole pages behind that; in the same place each time. Any thread. RESOURCE_EXHAUSTED: the
  // limit on the address space leaves no room for them.
  absl::StatusOr<char*> MapPart(size_t offset, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // -1: it is closed

  // For whoever created it. Makes pages exist now, so that a lack of memory is an error here and
  // not a SIGBUS later.
  absl::Status Reserve(size_t offset, size_t bytes) const;
  // Gives pages back to the system; they read as zeros afterwards.
  void Release(size_t offset, size_t bytes) const;

 private:
  SharedMemory(UniqueFd fd, char* data, size_t bytes, size_t mapped)
      : fd_(std::move(fd)), data_(data), bytes_(bytes), mapped_(mapped) {}
  static absl::StatusOr<std::shared_ptr<SharedMemory>> MapSealed(UniqueFd fd, size_t bytes,
                                                                 size_t mapped);

  UniqueFd fd_;
  char* const data_;
  const size_t bytes_;
  const size_t mapped_;

  struct Part {
    char* data;
    size_t bytes;
  };
  Mutex mutex_;
  std::map<size_t, Part> parts_ ABSL_GUARDED_BY(mutex_);  // by offset
};

}  // namespace rueda
