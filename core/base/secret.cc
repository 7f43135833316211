#include "core/base/secret.h"

#include <string.h>
#include <sys/mman.h>

#include <new>

namespace rueda {

class Secret::Memory {
 public:
  explicit Memory(absl::string_view bytes) : size_(bytes.size()) {
    memory_ = static_cast<char*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    madvise(memory_, size_, MADV_DONTDUMP);
    memcpy(memory_, bytes.data(), size_);
  }
  ~Memory() {
    explicit_bzero(memory_, size_);
    munmap(memory_, size_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  absl::string_view bytes() const { return {memory_, size_}; }

 private:
  char* memory_;
  const size_t size_;
};

Secret::Secret(absl::string_view bytes) {
  if (!bytes.empty()) memory_ = std::make_shared<const Memory>(bytes);
}

absl::string_view Secret::bytes() const {
  return memory_ == nullptr ? absl::string_view() : memory_->bytes();
}

void Wipe(std::string* text) {
  explicit_bzero(text->data(), text->size());
  text->clear();
}

}  // namespace rueda
