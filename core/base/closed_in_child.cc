#include "core/base/closed_in_child.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace rueda {
namespace {

constexpr int kSlots = 8'192;
// A descriptor plus one, so that the table needs no initialization; 0: free.
std::atomic<int> slots[kSlots];

void CloseAll() {
  for (std::atomic<int>& slot : slots) {
    const int fd = slot.load(std::memory_order_relaxed) - 1;
    if (fd >= 0) close(fd);
    slot.store(0, std::memory_order_relaxed);
  }
}

// Registered when the library is loaded.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, &CloseAll);

}  // namespace

ClosedInChild::ClosedInChild(int fd) {
  for (int i = 0; i < kSlots && fd >= 0; ++i) {
    int free = 0;
    if (slots[i].load(std::memory_order_relaxed) == 0 &&
        slots[i].compare_exchange_strong(free, fd + 1, std::memory_order_relaxed)) {
      slot_ = i;
      return;
    }
  }
}

ClosedInChild::~ClosedInChild() {
  if (slot_ >= 0) slots[slot_].store(0, std::memory_order_relaxed);
}

}  // namespace rueda
