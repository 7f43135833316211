#include "bindings/torch/c10d/threads.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <map>
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
      ++unfinished_;
      if (idle_ >= tasks_.size()) {
        changed_.notify_one();
        return;
      }
    }
    std::thread([this] { Work(); }).detach();
  }

  bool Await(std::chrono::milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    return finished_.wait_for(lock, limit, [this] { return unfinished_ == 0; });
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
      if (--unfinished_ == 0) finished_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, finished_;
  // Guarded by mutex_.
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0, unfinished_ = 0;
};

using Time = std::chrono::steady_clock::time_point;

class Clock {
 public:
  uint64_t Add(Time when, std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint64_t number = ++last_;
    times_[number] = when;
    tasks_.emplace(std::pair(when, number), std::move(task));
    if (!std::exchange(is_running_, true)) {
      std::thread([this] { Run(); }).detach();
    } else if (tasks_.begin()->first.second == number) {
      changed_.notify_one();
    }
    return number;
  }

  void Cancel(uint64_t number) {
    std::function<void()> task;  // goes without the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto time = times_.find(number);
    if (time == times_.end()) return;
    const auto it = tasks_.find({time->second, number});
    task = std::move(it->second);
    tasks_.erase(it);
    times_.erase(time);
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      if (tasks_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const auto first = tasks_.begin();
      if (std::chrono::steady_clock::now() < first->first.first) {
        changed_.wait_until(lock, Time(first->first.first));
        continue;
      }
      std::function<void()> task = std::move(first->second);
      times_.erase(first->first.second);
      tasks_.erase(first);
      lock.unlock();
      RunSoon(std::move(task));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::map<std::pair<Time, uint64_t>, std::function<void()>> tasks_;
  std::map<uint64_t, Time> times_;
  uint64_t last_ = 0;
  bool is_running_ = false;
};

// It outlives those who wait. A forked child has none of its parent's threads: it gets its own.
template <typename T>
T& OfThisProcess() {
  static T* one = new T;
  [[maybe_unused]] static const int once = pthread_atfork(nullptr, nullptr, [] { one = new T; });
  return *one;
}

}  // namespace

void RunSoon(std::function<void()> task) {
  OfThisProcess<Threads>().Run(std::move(task));
}

bool AwaitTasks(std::chrono::milliseconds limit) {
  return OfThisProcess<Threads>().Await(limit);
}

uint64_t RunAt(Time when, std::function<void()> task) {
  return OfThisProcess<Clock>().Add(when, std::move(task));
}

void Cancel(uint64_t number) {
  OfThisProcess<Clock>().Cancel(number);
}

}  // namespace rueda::libtorch
