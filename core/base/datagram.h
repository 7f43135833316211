// Datagrams over unix sockets that may carry a descriptor.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

// `fd`: -1: none comes along; else it stays the caller's, too. `flags` of send; no signal is
// raised. UNAVAILABLE: it can't be sent, now if MSG_DONTWAIT is among the flags.
absl::Status SendDatagram(int socket, absl::string_view bytes, int fd, int flags);

// The next one, of at most `bytes_max` bytes, and the descriptor that came along; `flags` of recv.
// NOT_FOUND: there is none now. UNAVAILABLE: the other end is closed, and all of it is read.
// DATA_LOSS: it was longer. RESOURCE_EXHAUSTED: this process has no descriptor left.
absl::StatusOr<std::string> ReceiveDatagram(int socket, size_t bytes_max, UniqueFd* fd, int flags);

}  // namespace rueda
