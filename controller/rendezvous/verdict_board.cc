#include "controller/rendezvous/verdict_board.h"

#include <errno.h>
#include <fcntl.h>

namespace rueda {
namespace {

// An entry: 0 while the rank runs, else a mark, its pid and its wait status (16 bits).
constexpr uint64_t kMark = uint64_t{1} << 63;

}  // namespace

absl::StatusOr<std::unique_ptr<VerdictBoard>> VerdictBoard::Create(int size) {
  RUEDA_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedMemory> memory,
      SharedMemory::Create("rueda-verdicts", static_cast<size_t>(size) * sizeof(uint64_t)));
  return std::unique_ptr<VerdictBoard>(new VerdictBoard(std::move(memory)));
}

absl::StatusOr<std::unique_ptr<VerdictBoard>> VerdictBoard::Open(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoStatus(errno, "opening the launcher's verdict board");
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory, SharedMemory::Map(std::move(copy)));
  return std::unique_ptr<VerdictBoard>(new VerdictBoard(std::move(memory)));
}

std::atomic<uint64_t>* VerdictBoard::entry(Rank rank) const {
  const size_t at = static_cast<size_t>(rank) * sizeof(uint64_t);
  if (rank < 0 || at + sizeof(uint64_t) > memory_->bytes()) return nullptr;
  return reinterpret_cast<std::atomic<uint64_t>*>(memory_->data() + at);
}

void VerdictBoard::Write(Rank rank, const Verdict& verdict) {
  if (std::atomic<uint64_t>* word = entry(rank)) {
    word->store(kMark | (static_cast<uint64_t>(static_cast<uint32_t>(verdict.pid)) << 16) |
                    static_cast<uint16_t>(verdict.wait_status),
                std::memory_order_release);
  }
}

std::optional<VerdictBoard::Verdict> VerdictBoard::Read(Rank rank) const {
  const std::atomic<uint64_t>* word = entry(rank);
  const uint64_t value = word == nullptr ? 0 : word->load(std::memory_order_acquire);
  if ((value & kMark) == 0) return std::nullopt;
  return Verdict{static_cast<int>((value >> 16) & 0xFFFFFFFF), static_cast<int>(value & 0xFFFF)};
}

}  // namespace rueda
