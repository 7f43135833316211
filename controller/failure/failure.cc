#include "controller/failure/failure.h"

#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"
#include "core/base/process.h"
#include "ops/host/segment.h"

namespace rueda {

std::string EndText(int wait_status) {
  return absl::StrCat(WaitStatusText(wait_status),
                      wait_status == 0 ? " without shutting down" : "");
}

std::string Failure::ToString() const {
  std::string text;
  if (rank >= 0) {
    absl::StrAppend(&text, "rank ", rank, " (host ", host, ", pid ", pid, ") was lost: ", cause);
  } else {
    text = cause;
  }
  if (!operation.empty()) {
    absl::StrAppend(
        &text, ", ",
        awaiter < 0 ? "during " : absl::StrCat("while rank ", awaiter, " awaited it in "),
        operation, tensor.empty() ? "" : absl::StrCat(" '", tensor, "'"));
  }
  absl::StrAppend(&text, "; membership ", membership);
  return text;
}

namespace {

// The text's first `bytes_max` bytes, or a little less: whole characters of UTF-8.
absl::string_view Cut(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace

std::string EncodeFailure(const Failure& failure) {
  wire::Failure message;
  message.set_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
  message.set_rank(failure.rank);
  message.set_pid(failure.pid);
  message.set_host(failure.host);
  message.set_cause(failure.cause);
  message.set_operation(failure.operation);
  message.set_tensor(failure.tensor);
  message.set_membership(failure.membership);
  message.set_recoverable(failure.recoverable);
  if (failure.accuser >= 0) message.set_accuser(failure.accuser);
  if (failure.awaiter >= 0) message.set_awaiter(failure.awaiter);
  if (failure.culprit >= 0) message.set_culprit(failure.culprit);
  // Names are bounded; only a cause can be long.
  if (message.ByteSizeLong() > Segment::kFailureBytesMax) {
    message.set_cause(std::string(Cut(failure.cause, Segment::kFailureBytesMax / 4)));
    message.set_tensor("");
  }
  return message.SerializeAsString();
}

Failure DecodeFailure(absl::string_view record) {
  wire::Failure message;
  Failure failure;
  if (!ParseMessage(record, &message).ok() || message.code() == 0 || message.code() > 16) {
    failure.cause = "the job failed, and the record of why can't be read";
    return failure;
  }
  failure.rank = message.rank();
  failure.pid = message.pid();
  failure.host = message.host();
  failure.cause = message.cause();
  failure.operation = message.operation();
  failure.tensor = message.tensor();
  failure.membership = message.membership();
  failure.recoverable = message.recoverable();
  if (message.has_accuser()) failure.accuser = message.accuser();
  if (message.has_awaiter()) failure.awaiter = message.awaiter();
  if (message.has_culprit()) failure.culprit = message.culprit();
  return failure;
}

}  // namespace rueda
