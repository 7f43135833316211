#include "controller/bus/store_relay.h"

#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"
#include "controller/protocol/rueda.pb.h"
#include "core/base/limits.h"

namespace rueda {

absl::Status LinkStore::Set(absl::string_view key, absl::string_view value) {
  if (key.size() > kStoreKeyBytesMax || value.size() > kStoreValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("store key of ", key.size(), " bytes, value of ",
                                                   value.size(), " bytes: too long"));
  }
  {
    MutexLock lock(mutex_);
    if (aborted_) return absl::AbortedError("the job has failed");
    calls_.push_back({true, 0, std::string(key), std::string(value)});
    has_calls_.store(true, std::memory_order_release);
  }
  wake_();
  return absl::OkStatus();
}

absl::StatusOr<std::string> LinkStore::Get(absl::string_view key, Nanos timeout,
                                           const std::atomic<bool>& cancelled) {
  if (key.size() > kStoreKeyBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("store key of ", key.size(), " bytes: too long"));
  }
  const Nanos deadline = DeadlineAfter(MonotonicNow(), timeout);
  uint64_t id;
  {
    MutexLock lock(mutex_);
    if (aborted_) return absl::AbortedError("the job has failed");
    id = next_id_++;
    answers_[id];
    calls_.push_back({false, id, std::string(key), ""});
    has_calls_.store(true, std::memory_order_release);
  }
  wake_();
  MutexLock lock(mutex_);
  absl::Status failed;
  while (!answers_[id].has_value() && failed.ok()) {
    const Nanos left = deadline - MonotonicNow();
    if (aborted_) {
      failed = absl::AbortedError("the job has failed");
    } else if (cancelled.load()) {
      failed = absl::AbortedError("the lane has ended");
    } else if (left <= 0) {
      failed = absl::DeadlineExceededError(absl::StrCat("store key ", key, " was not set in time"));
    } else {
      changed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
    }
  }
  const auto answer = answers_.extract(id);
  if (!failed.ok()) return failed;
  return *std::move(answer.mapped());
}

void LinkStore::Wake() {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

void LinkStore::Abort() {
  MutexLock lock(mutex_);
  aborted_ = true;
  changed_.NotifyAll();
}

std::vector<LinkStore::StoreCall> LinkStore::Take() {
  MutexLock lock(mutex_);
  has_calls_.store(false, std::memory_order_relaxed);
  return std::move(calls_);
}

void LinkStore::Answer(uint64_t id, std::string value) {
  MutexLock lock(mutex_);
  const auto it = answers_.find(id);
  if (it == answers_.end()) return;  // it gave up
  it->second = std::move(value);
  changed_.NotifyAll();
}

bool StoreRelay::Pump() {
  if (!local_->HasCalls()) return false;
  for (LinkStore::StoreCall& call : local_->Take()) {
    if (call.set) {
      // Its size was checked when it was asked for.
      Set(std::move(call.key), std::move(call.value)).IgnoreError();
    } else {
      Get({nullptr, call.id}, call.key);
    }
  }
  return true;
}

absl::Status StoreRelay::Set(std::string key, std::string value) {
  if (key.size() > kStoreKeyBytesMax || value.size() > kStoreValueBytesMax) {
    return absl::InvalidArgumentError("a store entry is too long");
  }
  if (up_ != nullptr) {
    wire::StoreSet message;
    message.set_key(std::move(key));
    message.set_value(std::move(value));
    up_->Send(FrameType::kStoreSet, message.SerializeAsString());
    return absl::OkStatus();
  }
  if (const auto it = waiting_.find(key); it != waiting_.end()) {
    for (const Asker& asker : it->second) Answer(asker, value);
    waiting_.erase(it);
  }
  values_[std::move(key)] = std::move(value);
  return absl::OkStatus();
}

void StoreRelay::Get(const Asker& asker, const std::string& key) {
  if (up_ != nullptr) {
    const uint64_t id = next_id_++;
    passed_up_[id] = asker;
    wire::StoreGet message;
    message.set_call(id);
    message.set_key(key);
    up_->Send(FrameType::kStoreGet, message.SerializeAsString());
    return;
  }
  if (const auto it = values_.find(key); it != values_.end()) {
    Answer(asker, it->second);
  } else {
    waiting_[key].push_back(asker);
  }
}

void StoreRelay::Answer(const Asker& asker, const std::string& value) {
  if (asker.link == nullptr) {
    local_->Answer(asker.id, value);
    return;
  }
  wire::StoreValue message;
  message.set_call(asker.id);
  message.set_value(value);
  asker.link->Send(FrameType::kStoreValue, message.SerializeAsString());
}

absl::Status StoreRelay::OnFrame(Link* from, const Frame& frame) {
  if (frame.type == FrameType::kStoreSet) {
    wire::StoreSet message;
    RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &message));
    return Set(message.key(), message.value());
  }
  if (frame.type == FrameType::kStoreGet) {
    wire::StoreGet message;
    RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &message));
    if (message.key().size() > kStoreKeyBytesMax) {
      return absl::InvalidArgumentError("a store key is too long");
    }
    Get({from, message.call()}, message.key());
    return absl::OkStatus();
  }
  wire::StoreValue message;
  RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &message));
  const auto it = passed_up_.find(message.call());
  if (from != up_ || it == passed_up_.end())
    return absl::InvalidArgumentError("an answer that nobody asked for");
  Answer(it->second, message.value());
  passed_up_.erase(it);
  return absl::OkStatus();
}

}  // namespace rueda
