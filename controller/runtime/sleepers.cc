#include "controller/runtime/sleepers.h"

namespace rueda {

void Sleepers::WakeFor(const Request* request) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!any()) return;
  MutexLock lock(mutex_);
  for (Entry* entry : entries_) {
    if (entry->request == request) Wake(entry);
  }
}

bool Sleepers::WakeOne() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!any()) return false;
  MutexLock lock(mutex_);
  if (entries_.empty()) return false;
  entries_.front()->called = true;
  Wake(entries_.front());
  return true;
}

}  // namespace rueda
