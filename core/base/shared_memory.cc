#include "core/base/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/memory_limits.h"
#include "core/base/no_write_signals.h"

namespace rueda {
namespace {

// Where memory is mapped. A forked child keeps these places empty: a pointer that it has inherited
// faults there, and never reads what something else has mapped in the meantime. With more than some
// thousands of mappings further ones are left out.
struct Place {
  std::atomic<void*> data;  // null: free
  std::atomic<size_t> bytes;
};
constexpr int kPlaces = 8'192;
Place places[kPlaces];

void AddPlace(void* data, size_t bytes) {
  for (Place& place : places) {
    void* free = nullptr;
    if (place.data.load(std::memory_order_relaxed) == nullptr &&
        place.data.compare_exchange_strong(free, data, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
      place.bytes.store(bytes, std::memory_order_relaxed);
      return;
    }
  }
}

void Unmap(void* data, size_t bytes) {
  for (Place& place : places) {
    if (place.data.load(std::memory_order_relaxed) != data) continue;
    place.bytes.store(0, std::memory_order_relaxed);
    // Release: whoever takes the place next stores its size behind this 0.
    place.data.store(nullptr, std::memory_order_release);
    break;
  }
  munmap(data, bytes);
}

// Registered when the library is loaded. A grandchild inherits what its parent has put there.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] {
  for (const Place& place : places) {
    void* const data = place.data.load(std::memory_order_relaxed);
    const size_t bytes = place.bytes.load(std::memory_order_relaxed);
    if (data == nullptr || bytes == 0) continue;
    mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
         -1, 0);
  }
});

absl::Status Resize(const UniqueFd& fd, size_t bytes) {
  const NoWriteSignals held;
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
  const int error = errno;
  if (error != EFBIG) {
    return ErrnoStatus(error, absl::StrCat("sizing shared memory to ", bytes, " bytes"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the ranks need ", bytes, " bytes of shared memory, and ", FileLimitText(),
                   ", which holds for shared memory too: raise it (ulimit -f unlimited)"));
}

// What mmap or mremap has returned.
absl::StatusOr<char*> Mapped(void* data, size_t bytes) {
  if (data == MAP_FAILED && errno == ENOMEM && AddressSpaceLeft() < bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ranks need ", bytes, " bytes more of shared memory, and ",
                     AddressSpaceLimitText(), ": raise it (ulimit -v unlimited)"));
  }
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", bytes, " bytes of shared memory"));
  }
  madvise(data, bytes, MADV_DONTFORK);
  madvise(data, bytes, MADV_DONTDUMP);
  AddPlace(data, bytes);
  return static_cast<char*>(data);
}

absl::StatusOr<char*> MapBytes(const UniqueFd& fd, size_t offset, size_t bytes) {
  return Mapped(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(),
                     static_cast<off_t>(offset)),
                bytes);
}

absl::StatusOr<size_t> SealedBytes(const UniqueFd& fd) {
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "looking at a neighbor's memory");
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || info.st_size <= 0) {
    return absl::InvalidArgumentError("a neighbor sent a descriptor that is not sealed memory");
  }
  return static_cast<size_t>(info.st_size);
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(const char* label, size_t bytes,
                                                                   size_t mapped) {
  UniqueFd fd(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "creating shared memory (memfd_create)");
  RUEDA_RETURN_IF_ERROR(Resize(fd, bytes));
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "sealing shared memory");
  }
  return MapSealed(std::move(fd), bytes, mapped);
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Map(UniqueFd fd, size_t mapped) {
  RUEDA_ASSIGN_OR_RETURN(const size_t bytes, SealedBytes(fd));
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory,
                         MapSealed(std::move(fd), bytes, mapped));
  if (memory->mapped_ == memory->bytes_) memory->fd_.reset();
  return memory;
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::MapRange(const UniqueFd& fd,
                                                                     size_t offset, size_t bytes) {
  RUEDA_ASSIGN_OR_RETURN(const size_t all, SealedBytes(fd));
  if (offset > all || bytes > all - offset || bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are no ", bytes, " bytes at ", offset, " of ", all));
  }
  RUEDA_ASSIGN_OR_RETURN(char* const data, MapBytes(fd, offset, bytes));
  return std::shared_ptr<SharedMemory>(new SharedMemory(UniqueFd(), data, bytes, bytes));
}

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::MapSealed(UniqueFd fd, size_t bytes,
                                                                      size_t mapped) {
  mapped = std::min(mapped, bytes);
  RUEDA_ASSIGN_OR_RETURN(char* const data, MapBytes(fd, 0, mapped));
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(fd), data, bytes, mapped));
}

// An old size of 0: the pages are mapped twice (mremap(2)). That needs no descriptor.
absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::MapAgain(size_t offset,
                                                                     size_t bytes) const {
  RUEDA_CHECK(offset <= mapped_ && bytes <= mapped_ - offset);
  RUEDA_ASSIGN_OR_RETURN(char* const data,
                         Mapped(mremap(data_ + offset, 0, bytes, MREMAP_MAYMOVE), bytes));
  return std::shared_ptr<SharedMemory>(new SharedMemory(UniqueFd(), data, bytes, bytes));
}

absl::StatusOr<char*> SharedMemory::MapPart(size_t offset, size_t bytes) {
  RUEDA_CHECK(offset >= mapped_ && offset <= bytes_ && bytes <= bytes_ - offset);
  MutexLock lock(mutex_);
  const auto it = parts_.find(offset);
  if (it != parts_.end()) {
    RUEDA_CHECK(it->second.bytes == bytes);
    return it->second.data;
  }
  RUEDA_ASSIGN_OR_RETURN(char* const data, MapBytes(fd_, offset, bytes));
  parts_[offset] = {data, bytes};
  return data;
}

SharedMemory::~SharedMemory() {
  Unmap(data_, mapped_);
  for (const auto& [offset, part] : parts_) Unmap(part.data, part.bytes);
}

absl::Status SharedMemory::Reserve(size_t offset, size_t bytes) const {
  while (fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == ENOMEM) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", bytes, " bytes of shared memory"));
    }
    return ErrnoStatus(errno, absl::StrCat("reserving ", bytes, " bytes of shared memory"));
  }
  return absl::OkStatus();
}

void SharedMemory::Release(size_t offset, size_t bytes) const {
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace rueda
