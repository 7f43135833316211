#include "bindings/torch/c10d/any_source.h"

#include <algorithm>
#include <charconv>
#include <thread>

#include "bindings/torch/c10d/errors.h"
#include "bindings/torch/c10d/threads.h"

namespace rueda::libtorch {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How long a message may lie before its receiver is told.
constexpr milliseconds kPatience{20};
// How often a receiver looks: at first, and at last.
constexpr microseconds kLookFirst{50}, kLookLast{20'000};
// How often it asks whether the others are still there.
constexpr milliseconds kCheckEvery{500};
// A value is a few numbers.
constexpr size_t kValueMax = 100;

template <typename... Parts>
std::string KeyOf(const char* what, Parts... numbers) {
  std::string key = what;
  ((key += ' ' + std::to_string(numbers)), ...);
  return key;
}

[[noreturn]] void ThrowWrong(const std::string& key, const std::string& why) {
  throw Error(RUEDA_DATA_LOSS,
              "torch's store: key '" + key + "' " + why +
                  ". No rank wrote that for this group. Can a stranger reach the store, or does "
                  "another job use it? See docs/guides/security.md");
}

void Set(c10d::Store& store, const std::string& key, const std::string& value) {
  store.set(key, std::vector<uint8_t>(value.begin(), value.end()));
}

// What is there may be anything.
std::string Shown(const std::string& value) {
  std::string shown = "'";
  for (const char c : value.substr(0, 60)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (value.size() > 60 ? "'..." : "'");
}

// A number from 0 to below 10^18, without leading zeros.
int64_t NumberIn(const std::string& key, const std::string& value) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_plain = end == value.data() + value.size() && error == std::errc() &&
                        value.size() <= 18 && number >= 0 && std::to_string(number) == value;
  if (!is_plain) ThrowWrong(key, "holds " + Shown(value) + " instead of a number");
  return number;
}

bool HasEnded(const std::weak_ptr<Operation>& message) {
  const std::shared_ptr<Operation> operation = message.lock();
  return operation == nullptr || operation->Poll();
}

}  // namespace

c10d::Store& OwnStore::get() {
  std::call_once(once_, [this] {
    try {
      own_ = groups_->clone();
    } catch (const std::exception&) {  // a store of the program's own, which has none
      own_ = groups_;
    }
  });
  return *own_;
}

// ---- sending ----

void SentMessages::Add(const std::shared_ptr<Operation>& message, int receiver, int tag,
                       int64_t number) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (at_once_.count(receiver) == 0) {
      const auto [it, is_new] = streams_.try_emplace({receiver, tag});
      Stream& stream = it->second;
      if (is_new) {
        stream = {message, message, number, Clock::now() + kPatience};
      } else if (number > stream.number) {
        stream.latest = message;
        stream.number = number;
      }
      if (std::exchange(is_watching_, true)) return;
      return RunSoon([self = shared_from_this()] { self->Watch(); });
    }
  }
  Tell(receiver, tag, number);
}

void SentMessages::Watch() {
  while (true) {
    Clock::time_point when = Clock::time_point::max();
    std::vector<Key> due;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (streams_.empty()) {
        is_watching_ = false;
        return;
      }
      const Clock::time_point now = Clock::now();
      for (const auto& [key, stream] : streams_) {
        if (stream.when <= now) due.push_back(key);
        when = std::min(when, stream.when);
      }
    }
    if (due.empty()) std::this_thread::sleep_until(when);
    for (const Key& key : due) LookAt(key);
  }
}

void SentMessages::LookAt(const Key& key) {
  bool lies = false;
  int64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Stream& stream = streams_.at(key);
    try {
      lies = !HasEnded(stream.looked_at);
    } catch (const Error&) {  // the group has ended
    }
    number = stream.number;
    const bool is_latest = !stream.looked_at.owner_before(stream.latest) &&
                           !stream.latest.owner_before(stream.looked_at);
    if (is_latest) {
      streams_.erase(key);  // the next message is a new stream
    } else {
      stream.looked_at = stream.latest;
      stream.when = Clock::now() + kPatience;
    }
  }
  if (!lies) return;
  const auto [receiver, tag] = key;
  Tell(receiver, tag, number);
  try {
    if (!store_->get().check({KeyOf("takes of any", receiver)})) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    at_once_.insert(receiver);
  } catch (const std::exception&) {  // the store has gone
  }
}

void SentMessages::Tell(int receiver, int tag, int64_t number) {
  const std::lock_guard<std::mutex> lock(telling_);
  const auto it = told_.try_emplace({receiver, tag}, -1).first;
  if (number <= it->second) return;
  try {
    // Neither waits for an answer.
    Set(store_->get(), KeyOf("sent", rank_, receiver, tag), std::to_string(number));
    Set(store_->get(), KeyOf("news", receiver), KeyOf("", rank_, tag, number));
    it->second = number;
  } catch (const std::exception&) {
    // The group's rank 0 may have gone, and the store with it: then nobody waits.
  }
}

// ---- receiving ----

void WantedMessages::Add(c10::intrusive_ptr<AnySourceWork> work, int tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  works_[tag].push_back(std::move(work));
  if (is_looking_) {
    changed_.notify_one();
    return;
  }
  is_looking_ = true;
  RunSoon([self = shared_from_this()] { self->Look(); });
}

void WantedMessages::Close() {
  const std::lock_guard<std::mutex> lock(receive_mutex_);
  receive_ = nullptr;
}

void WantedMessages::Look() {
  microseconds pause = kLookFirst;
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      std::erase_if(works_, [](const auto& each) { return each.second.empty(); });
      if (works_.empty()) {
        is_looking_ = false;
        return;
      }
    }
    bool taken = false;
    try {
      rueda_error cause = RUEDA_ERROR_INIT;
      rueda_context* const context = session_->context();
      rueda::detail::Check(rueda_context_error(context, &cause), context);
      if (cause.code != RUEDA_OK) {
        rueda::detail::Throw(cause.code, cause.message, cause, /*ended=*/true);
      }
      taken = TakeAll();
      if (!taken) CheckOthers();
    } catch (const std::exception&) {  // of the store, or the group's end
      Fail(std::current_exception());
      continue;
    }
    pause = taken ? kLookFirst : std::min(pause * 3 / 2, kLookLast);
    std::unique_lock<std::mutex> lock(mutex_);
    if (changed_.wait_for(lock, pause) == std::cv_status::no_timeout) pause = kLookFirst;
  }
}

// Every now and then: whether there is somebody who could send.
void WantedMessages::CheckOthers() {
  if (Clock::now() < check_at_) return;
  check_at_ = Clock::now() + kCheckEvery;
  std::vector<std::string> others;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) others.push_back(LeftKey(rank));
  }
  if (!store_->get().check(others)) return;
  throw Error(RUEDA_FAILED_PRECONDITION,
              "receiving from any source: all other ranks have left the group");
}

void WantedMessages::Fail(const std::exception_ptr& error) {
  decltype(works_) works;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    works.swap(works_);
  }
  for (const auto& [tag, wanted] : works) {
    for (const auto& work : wanted) work->Failed(error);
  }
}

bool WantedMessages::TakeAll() {
  std::vector<int> tags;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [tag, works] : works_) tags.push_back(tag);
  }
  bool taken = false;
  for (const int tag : tags) taken |= Take(tag);
  return taken;
}

// What lies there, for as many works.
bool WantedMessages::Take(int tag) {
  Hear(tag);
  bool taken = false;
  while (true) {
    c10::intrusive_ptr<AnySourceWork> work;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (works_[tag].empty()) return taken;
      work = works_[tag].front();
    }
    if (!TakeFor(work.get(), tag)) return taken;
    taken = true;
    const std::lock_guard<std::mutex> lock(mutex_);
    works_[tag].pop_front();
  }
}

// A message that nobody has taken, of each source in turn. Whether there was one, or can't be.
bool WantedMessages::TakeFor(AnySourceWork* work, int tag) {
  const std::lock_guard<std::mutex> lock(receive_mutex_);
  if (receive_ == nullptr) throw GroupEndedError(session_->group());
  for (int step = 1; step <= size_; ++step) {
    const int source = (last_ + step) % size_;
    const auto told = told_.find({source, tag});
    if (told == told_.end()) continue;
    try {
      const auto message = receive_(work->outputs(), source, tag, told->second);
      if (message == nullptr) continue;
      work->Found(message, source);
    } catch (...) {  // what is wrong with its tensor, or the job's end
      work->Failed(std::current_exception());
    }
    last_ = source;
    return true;
  }
  return false;
}

std::string WantedMessages::Get(const std::string& key) {
  const std::vector<uint8_t> value = store_->get().get(key);
  if (value.size() > kValueMax) {
    ThrowWrong(key, "holds " + std::to_string(value.size()) + " bytes, more than " +
                        std::to_string(kValueMax));
  }
  return {value.begin(), value.end()};
}

void WantedMessages::Hear(int tag) {
  c10d::Store& store = store_->get();
  if (!std::exchange(has_asked_, true)) {  // from now on senders need not wait before they tell
    Set(store, KeyOf("news", rank_), "");
    Set(store, KeyOf("takes of any", rank_), "1");
  }
  // Looked at for changes, and not into.
  const std::string news = Get(KeyOf("news", rank_));
  const auto [it, is_new] = news_.try_emplace(tag, news);
  if (!is_new && it->second == news) return;
  for (int source = 0; source < size_; ++source) {
    const std::string key = KeyOf("sent", source, rank_, tag);
    if (source != rank_ && store.check({key})) told_[{source, tag}] = NumberIn(key, Get(key));
  }
  it->second = news;
}

// ---- a work ----

void AnySourceWork::Found(c10::intrusive_ptr<GroupWork> work, int source) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = work;
    source_ = source;
  }
  finish();
  TellSoon();
}

void AnySourceWork::Failed(std::exception_ptr error) {
  finish(error);
  TellSoon();
}

void AnySourceWork::TellSoon() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ == nullptr) return;
  }
  const auto self = c10::intrusive_ptr<AnySourceWork>::unsafe_reclaim_from_nonowning(this);
  // Callbacks of the future may wait for other messages.
  RunSoon([self] { self->Tell(); });
}

void AnySourceWork::Tell() {
  Cancel(giving_up_);
  const c10::intrusive_ptr<GroupWork> message = Message();
  if (message == nullptr) {
    if (!told_.exchange(true)) future_->setError(exception());
    return;
  }
  const auto self = c10::intrusive_ptr<AnySourceWork>::unsafe_reclaim_from_nonowning(this);
  message->getFuture()->addCallback([self](c10::ivalue::Future& ended) {
    if (self->told_.exchange(true)) return;
    if (ended.hasError()) {
      self->future_->setError(ended.exception_ptr());
    } else {
      self->future_->markCompleted(ended.value());
    }
  });
}

c10::intrusive_ptr<GroupWork> AnySourceWork::Message() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return work_;
}

Error AnySourceWork::NobodySent(milliseconds limit) const {
  return Error(RUEDA_DEADLINE_EXCEEDED,
               "after a timeout of " + InSeconds(limit) + ", no rank has sent a message");
}

bool AnySourceWork::isCompleted() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!completed_) return false;
    if (work_ == nullptr) return true;
  }
  return Message()->isCompleted();
}

bool AnySourceWork::isSuccess() const {
  const c10::intrusive_ptr<GroupWork> message = Message();
  return message != nullptr && message->isSuccess();
}

std::exception_ptr AnySourceWork::exception() const {
  if (const c10::intrusive_ptr<GroupWork> message = Message()) return message->exception();
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error = exception_;
  }
  return error == nullptr ? nullptr : PythonsOf(error);
}

int AnySourceWork::sourceRank() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return source_;
}

std::vector<at::Tensor> AnySourceWork::result() {
  (void)wait();
  return outputs_;
}

bool AnySourceWork::wait(milliseconds timeout) {
  const WithoutPython no_python;
  const milliseconds limit = timeout.count() > 0 ? timeout : limit_;
  const auto end = steady_clock::now() + limit;
  const bool found = WaitInSlices(limit, [this](std::chrono::nanoseconds slice) {
    std::unique_lock<std::mutex> lock(mutex_);
    return cv_.wait_for(lock, slice, [this] { return completed_; });
  });
  if (!found) WithPythonsErrors([&] { throw NobodySent(limit); });
  const c10::intrusive_ptr<GroupWork> message = Message();
  if (message == nullptr) std::rethrow_exception(exception());
  const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
  return message->wait(std::max(left, milliseconds(1)));
}

c10::intrusive_ptr<c10::ivalue::Future> AnySourceWork::getFuture() {
  bool is_over = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (future_ != nullptr) return future_;
    future_ = FutureOf(outputs_);
    is_over = completed_;
    const auto self = c10::intrusive_ptr<AnySourceWork>::unsafe_reclaim_from_nonowning(this);
    giving_up_ = RunAt(EndOf(limit_), [self] {
      {
        const std::lock_guard<std::mutex> late(self->mutex_);
        if (self->completed_) return;  // a message that was found has a limit of its own
      }
      if (self->told_.exchange(true)) return;
      self->future_->setError(PythonsOf(std::make_exception_ptr(self->NobodySent(self->limit_))));
    });
  }
  if (is_over) TellSoon();
  return future_;
}

}  // namespace rueda::libtorch
