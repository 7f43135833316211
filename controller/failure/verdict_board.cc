#include "controller/failure/verdict_board.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controller/protocol/lost.h"
#include "core/base/limits.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// A verdict: 0 while the rank runs, else a mark, its pid and its wait status (16 bits).
constexpr uint64_t kMark = uint64_t{1} << 63;

bool IsEventfd(int fd) {
  char target[32] = {};
  (void)!readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof target - 1);
  return absl::string_view(target) == "anon_inode:[eventfd]";
}

// Programs that this process starts don't get either.
absl::StatusOr<UniqueFd> Inherit(int fd, const char* what) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return ErrnoStatus(errno, what);
  return copy;
}

}  // namespace

VerdictBoard::VerdictBoard(std::shared_ptr<SharedMemory> memory, UniqueFd bell,
                           std::vector<int32_t> slots)
    : memory_(std::move(memory)), bell_(std::move(bell)), slots_(std::move(slots)) {
  for (size_t rank = 0; rank < slots_.size(); ++rank) {
    begun_.push_back(BegunIn(static_cast<Rank>(rank)));
  }
}

absl::StatusOr<std::unique_ptr<VerdictBoard>> VerdictBoard::Create(int size) {
  RUEDA_ASSIGN_OR_RETURN(
      std::shared_ptr<SharedMemory> memory,
      SharedMemory::Create("rueda-verdicts", static_cast<size_t>(size) * sizeof(Entry)));
  UniqueFd bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell.valid()) return ErrnoStatus(errno, "creating an eventfd");
  return std::unique_ptr<VerdictBoard>(new VerdictBoard(std::move(memory), std::move(bell), {}));
}

absl::StatusOr<std::unique_ptr<VerdictBoard>> VerdictBoard::Open(int fd, int bell_fd,
                                                                 std::vector<int32_t> slots) {
  RUEDA_ASSIGN_OR_RETURN(UniqueFd copy, Inherit(fd, "opening the launcher's verdict board"));
  RUEDA_ASSIGN_OR_RETURN(std::shared_ptr<SharedMemory> memory, SharedMemory::Map(std::move(copy)));
  UniqueFd bell;
  // Whoever starts the program may pass on some descriptors and not this one: heartbeats look, too.
  if (bell_fd >= 0 && IsEventfd(bell_fd)) {
    RUEDA_ASSIGN_OR_RETURN(bell, Inherit(bell_fd, "opening the bell of the launcher's board"));
  }
  std::unique_ptr<VerdictBoard> board(
      new VerdictBoard(std::move(memory), std::move(bell), std::move(slots)));
  board->closed_in_child_ = ClosedInChild(board->bell_fd());
  return board;
}

int32_t VerdictBoard::SlotOf(Rank rank) const {
  if (slots_.empty()) return rank;
  return rank >= 0 && static_cast<size_t>(rank) < slots_.size() ? slots_[rank] : -1;
}

Rank VerdictBoard::RankIn(int32_t slot) const {
  if (slots_.empty()) return slot;
  const auto it = std::find(slots_.begin(), slots_.end(), slot);
  return it == slots_.end() ? -1 : static_cast<Rank>(it - slots_.begin());
}

VerdictBoard::Entry* VerdictBoard::entry(Rank rank) const {
  const int32_t slot = SlotOf(rank);
  const size_t at = static_cast<size_t>(slot) * sizeof(Entry);
  if (slot < 0 || at + sizeof(Entry) > memory_->bytes()) return nullptr;
  return reinterpret_cast<Entry*>(memory_->data() + at);
}

uint32_t VerdictBoard::BegunIn(Rank rank) const {
  const Entry* own = entry(rank);
  return own == nullptr ? 0 : own->begun.load(std::memory_order_acquire);
}

absl::Status VerdictBoard::CheckThere(Rank rank) const {
  const size_t at = static_cast<size_t>(rank);
  if (at < begun_.size() && BegunIn(rank) != begun_[at]) {
    return LostError(rank, absl::StrCat("rank ", rank, " ended before the start of the job was ",
                                        "over; another process has begun in its slot"));
  }
  std::optional<Verdict> verdict = Read(rank);
  if (!verdict.has_value()) return absl::OkStatus();
  if (const Rank blamed = BlamedBy(rank); blamed >= 0) {
    if (const std::optional<Verdict> cause = Read(blamed)) {
      rank = blamed;
      verdict = cause;
    }
  }
  return LostError(rank, absl::StrCat("rank ", rank, " (pid ", verdict->pid, ") ",
                                      WaitStatusText(verdict->wait_status),
                                      " before the start of the job was over"));
}

std::optional<std::string> VerdictBoard::HowItEnded(Rank rank) const {
  const std::optional<Verdict> verdict = Read(rank);
  if (!verdict.has_value()) return std::nullopt;
  return EndText(verdict->wait_status);
}

void VerdictBoard::TakePart(Rank rank) {
  if (Entry* own = entry(rank)) own->program.store(getpid(), std::memory_order_release);
}

int VerdictBoard::ProgramOf(Rank rank) const {
  const Entry* own = entry(rank);
  return own == nullptr ? 0 : own->program.load(std::memory_order_acquire);
}

void VerdictBoard::Blame(Rank rank, Rank culprit) {
  if (Entry* own = entry(rank)) {
    own->blamed.store(static_cast<uint32_t>(SlotOf(culprit) + 1), std::memory_order_release);
  }
}

void VerdictBoard::Clear(Rank slot) {
  if (Entry* own = entry(slot)) {
    own->blamed.store(0, std::memory_order_relaxed);
    own->program.store(0, std::memory_order_relaxed);
    own->verdict.store(0, std::memory_order_relaxed);
    own->begun.fetch_add(1, std::memory_order_release);
  }
}

Rank VerdictBoard::BlamedBy(Rank rank) const {
  const Entry* own = entry(rank);
  const uint32_t value = own == nullptr ? 0 : own->blamed.load(std::memory_order_acquire);
  return value > kRanksMax ? -1 : RankIn(static_cast<int32_t>(value) - 1);
}

void VerdictBoard::Write(Rank rank, const Verdict& verdict) {
  if (Entry* own = entry(rank)) {
    own->verdict.store(kMark | (static_cast<uint64_t>(static_cast<uint32_t>(verdict.pid)) << 16) |
                           static_cast<uint16_t>(verdict.wait_status),
                       std::memory_order_release);
  }
  eventfd_write(bell_.get(), 1);  // a counter that is full rings already
}

std::optional<VerdictBoard::Verdict> VerdictBoard::Read(Rank rank) const {
  const Entry* own = entry(rank);
  const uint64_t value = own == nullptr ? 0 : own->verdict.load(std::memory_order_acquire);
  if ((value & kMark) == 0) return std::nullopt;
  return Verdict{static_cast<int>((value >> 16) & 0xFFFFFFFF), static_cast<int>(value & 0xFFFF)};
}

}  // namespace rueda
