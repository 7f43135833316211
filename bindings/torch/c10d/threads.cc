#include "bindings/torch/c10d/threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace rueda::libtorch {
namespace {

class Threads {
 public:
  void Run(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
      if (idle_ >= tasks_.size()) {
        changed_.notify_one();
        return;
      }
    }
    std::thread([this] { Work(); }).detach();
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      ++idle_;
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      --idle_;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // and what it holds on to
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

}  // namespace

void RunSoon(std::function<void()> task) {
  static auto& threads = *new Threads;  // which outlives those who wait
  threads.Run(std::move(task));
}

}  // namespace rueda::libtorch
