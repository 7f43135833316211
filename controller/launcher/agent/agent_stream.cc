#include "controller/launcher/agent/agent_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kReadBytes = 64 << 10;
constexpr int kReadsMax = 16;
constexpr size_t kNoiseBytesMax = 64 << 10;
constexpr size_t kMessageBytesMax = kControlFrameBytesMax;

void SetNonBlocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

AgentStream::AgentStream(UniqueFd in, UniqueFd out) : in_(std::move(in)), out_(std::move(out)) {
  SetNonBlocking(in_.get());
  SetNonBlocking(out_.get());
}

void AgentStream::Send(const google::protobuf::MessageLite& message) {
  if (!out_.valid()) return;
  const std::string bytes = message.SerializeAsString();
  for (size_t i = 0; i < kLengthBytes; ++i) {
    outgoing_.push_back(static_cast<char>(bytes.size() >> (8 * i) & 0xFF));
  }
  absl::StrAppend(&outgoing_, bytes, "\n");
  Flush();
}

void AgentStream::SendMark() {
  outgoing_ += kAgentMark;
  Flush();
}

void AgentStream::Flush() {
  while (out_.valid() && waiting_bytes() > 0) {
    const ssize_t n = write(out_.get(), outgoing_.data() + written_, waiting_bytes());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      CloseOut();
      return;
    }
    written_ += static_cast<size_t>(n);
  }
  if (written_ >= outgoing_.size() / 2) {
    outgoing_.erase(0, written_);
    written_ = 0;
  }
}

void AgentStream::CloseOut() {
  out_.reset();
  outgoing_.clear();
  written_ = 0;
}

void AgentStream::CloseBoth() {
  in_.reset();
  CloseOut();
}

AgentStream::Got AgentStream::Read() {
  if (taken_ > 0) {
    incoming_.erase(0, taken_);
    taken_ = 0;
  }
  char buffer[kReadBytes];
  for (int i = 0; i < kReadsMax && in_.valid(); ++i) {
    const ssize_t n = read(in_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return Got::kAll;
    if (n <= 0) {
      in_.reset();
      break;
    }
    incoming_.append(buffer, static_cast<size_t>(n));
  }
  return in_.valid() ? Got::kSome : Got::kEnd;
}

absl::StatusOr<bool> AgentStream::Take(std::string* message) {
  const absl::string_view bytes = absl::string_view(incoming_).substr(taken_);
  if (bytes.size() < kLengthBytes) return false;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<size_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  if (length > kMessageBytesMax) return absl::DataLossError("a message of impossible length");
  if (bytes.size() - kLengthBytes < length + 1) return false;
  if (bytes[kLengthBytes + length] != '\n') return absl::DataLossError("a message that is none");
  message->assign(bytes.data() + kLengthBytes, length);
  taken_ += kLengthBytes + length + 1;
  return true;
}

absl::StatusOr<bool> AgentStream::TakeMark(std::string* noise) {
  const size_t at = incoming_.find(kAgentMark, taken_);
  const size_t end = at == std::string::npos ? incoming_.size() : at;
  if (end - taken_ > kNoiseBytesMax)
    return absl::DataLossError("a lot of output instead of an agent's");
  if (at == std::string::npos) return false;
  *noise = incoming_.substr(taken_, end - taken_);
  taken_ = at + sizeof kAgentMark - 1;
  return true;
}

}  // namespace rueda
