#include "controller/launcher/front/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

constexpr size_t kReadBytes = 64 << 10;
// How long something waits for the rest of its line. Whole lines come at once.
constexpr Nanos kShowAfter = kSecond / 2;

bool SameFile(int a, int b) {
  struct stat first, second;
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

bool Writable(int fd) {
  pollfd wait = {fd, POLLOUT, 0};
  return poll(&wait, 1, 0) == 1;
}

}  // namespace

Sink::Sink(int fd) : fd_(fd), is_terminal_(isatty(fd) == 1), write_mode_(WriteMode::kBlocking) {
  struct stat info;
  if (fstat(fd, &info) != 0) return;
  if (S_ISSOCK(info.st_mode)) write_mode_ = WriteMode::kSocket;
  if (!S_ISFIFO(info.st_mode) && !is_terminal_) return;
  // O_NONBLOCK belongs to the open file, which the shell and others share; hence one of our own.
  own_fd_.reset(open(absl::StrCat("/proc/self/fd/", fd).c_str(),
                     O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  write_mode_ = own_fd_.valid() ? WriteMode::kOwnFd : WriteMode::kCareful;
}

void Sink::Append(int source, absl::string_view text) {
  if (broken_ || text.empty()) return;
  if (line_open_ && source != last_source_) waiting_.push_back('\n');
  waiting_.append(text.data(), text.size());
  last_source_ = source;
  line_open_ = text.back() != '\n';
}

ssize_t Sink::WriteSome(absl::string_view text) {
  switch (write_mode_) {
    case WriteMode::kOwnFd:
      return write(own_fd_.get(), text.data(), text.size());
    case WriteMode::kSocket:
      return send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    case WriteMode::kBlocking:
      return write(fd_, text.data(), text.size());
    case WriteMode::kCareful:
      if (!Writable(fd_)) {
        errno = EAGAIN;
        return -1;
      }
      return write(fd_, text.data(), std::min<size_t>(text.size(), _POSIX_PIPE_BUF));
  }
  return 0;
}

void Sink::Write() {
  while (!empty()) {
    const ssize_t n = WriteSome(absl::string_view(waiting_).substr(written_));
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      if (errno != EPIPE && errno != ECONNRESET) {
        error_ = ErrnoStatus(errno, "writing the ranks' output");
      }
      broken_ = true;
      waiting_.clear();
      written_ = 0;
      return;
    }
    written_ += static_cast<size_t>(n);
  }
  if (written_ >= waiting_.size() / 2) {
    waiting_.erase(0, written_);
    written_ = 0;
  }
}

Output::Output(int out_fd, int err_fd) : out_(std::make_unique<Sink>(out_fd)) {
  // Two queues before one pipe would tear each other's lines.
  if (!SameFile(out_fd, err_fd)) err_own_ = std::make_unique<Sink>(err_fd);
  err_ = err_own_ == nullptr ? out_.get() : err_own_.get();
  buffer_.resize(kReadBytes);
}

absl::Status Output::OpenPipes(LaunchOptions::Prefix prefix, std::vector<RankStreams>* streams) {
  for (size_t rank = 0; rank < streams->size(); ++rank) {
    const struct {
      Sink* sink;
      UniqueFd* end;
    } ways[] = {{out_.get(), &(*streams)[rank].out}, {err_, &(*streams)[rank].err}};
    for (const auto& way : ways) {
      int fds[2];
      if (pipe2(fds, O_CLOEXEC) != 0) {
        return ErrnoStatus(errno, absl::StrCat("making a pipe for the output of rank ", rank));
      }
      UniqueFd reading(fds[0]);
      way.end->reset(fds[1]);
      if (fcntl(reading.get(), F_SETFL, O_NONBLOCK) != 0) {
        return ErrnoStatus(errno, "making a pipe non-blocking");
      }
      sources_.push_back(MakeSource(static_cast<Rank>(rank), prefix, way.sink));
      sources_.back().number = static_cast<int>(sources_.size()) - 1;
      sources_.back().fd = std::move(reading);
    }
  }
  return absl::OkStatus();
}

Output::Source Output::MakeSource(Rank rank, LaunchOptions::Prefix prefix, Sink* sink) {
  LineJoiner::Style style;
  if (prefix == LaunchOptions::Prefix::kRank) style.prefix = absl::StrCat("[", rank, "] ");
  style.carriage_returns = sink->is_terminal();
  return {0, UniqueFd(), LineJoiner(std::move(style)), sink};
}

void Output::ExpectFeeds(LaunchOptions::Prefix prefix, int ranks) {
  MakeRoomForFeeds(prefix, ranks);
}

void Output::MakeRoomForFeeds(LaunchOptions::Prefix prefix, int ranks) {
  for (Rank rank = static_cast<Rank>(feeds_.size() / 2); rank < ranks; ++rank) {
    for (Sink* sink : {out_.get(), err_}) {
      feeds_.push_back(MakeSource(rank, prefix, sink));
      feeds_.back().number = static_cast<int>(feeds_.size()) - 1;
    }
  }
}

void Output::ExpectFeeds(std::vector<RankStreams> files) {
  files_ = std::move(files);
  for (const RankStreams& streams : files_) {
    feeds_.push_back(MakeFileSource(streams.out.get()));
    feeds_.push_back(MakeFileSource(streams.err.get()));
  }
}

void Output::FeedToFiles(Rank rank, RankStreams files) {
  Source* const feeds = &feeds_[static_cast<size_t>(rank) * 2];
  feeds[0] = MakeFileSource(files.out.get());
  feeds[1] = MakeFileSource(files.err.get());
  files_.push_back(std::move(files));
}

Output::Source Output::MakeFileSource(int fd) {
  file_sinks_.push_back(std::make_unique<Sink>(fd));
  return MakeSource(0, LaunchOptions::Prefix::kNone, file_sinks_.back().get());
}

void Output::Feed(Rank rank, bool is_error, absl::string_view bytes) {
  if (!bytes.empty()) Take(feeds_[static_cast<size_t>(rank) * 2 + (is_error ? 1 : 0)], bytes);
}

void Output::Take(Source& source, absl::string_view bytes) {
  if (source.sink->last_source() != source.number) source.lines.Interrupt();
  lines_.clear();
  if (bytes.empty()) {
    source.lines.Finish(&lines_);
  } else {
    source.lines.Feed(bytes, &lines_);
  }
  if (!source.lines.keeps_some()) {
    source.kept_since = kForever;
  } else if (source.kept_since == kForever || !lines_.empty()) {
    source.kept_since = MonotonicNow();
  }
  source.sink->Append(source.number, lines_);
  if (!file_sinks_.empty()) source.sink->Write();  // a file does not let wait
}

void Output::ShowKept() {
  const Nanos now = MonotonicNow();
  for (std::vector<Source>* sources : {&sources_, &feeds_}) {
    for (Source& source : *sources) {
      if (now < DeadlineAfter(source.kept_since, kShowAfter)) continue;
      source.kept_since = kForever;
      if (source.sink->last_source() != source.number) source.lines.Interrupt();
      lines_.clear();
      source.lines.Show(&lines_);
      source.sink->Append(source.number, lines_);
      if (!file_sinks_.empty()) source.sink->Write();
    }
  }
}

Nanos Output::deadline() const {
  Nanos first = kForever;
  for (const std::vector<Source>* sources : {&sources_, &feeds_}) {
    for (const Source& source : *sources) {
      first = std::min(first, DeadlineAfter(source.kept_since, kShowAfter));
    }
  }
  return first;
}

// What is left of lines.
void Output::FinishFeeds() {
  for (Source& source : feeds_) Take(source, "");
  feeds_.clear();
}

Output::Got Output::Read(Source& source) {
  ssize_t n;
  do {
    n = read(source.fd.get(), buffer_.data(), buffer_.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return Got::kNothing;
  Take(source, absl::string_view(buffer_.data(), n > 0 ? static_cast<size_t>(n) : 0));
  return n > 0 ? Got::kSome : Got::kEnd;
}

void Output::WriteAll() {
  for (Sink* sink : {out_.get(), err_own_.get()}) {
    if (sink == nullptr) continue;
    const bool was_good = sink->error().ok();
    sink->Write();
    if (was_good && !sink->error().ok() && sink != err_) {
      Say(absl::StrCat("ruedarun: ", sink->error().message(), "; the rest is dropped\n"));
    }
  }
}

void Output::AddWaits(std::vector<pollfd>* waits) {
  first_wait_ = waits->size();
  for (const Sink* sink : {out_.get(), err_own_.get()}) {
    // A negative number is an entry that poll passes over.
    waits->push_back({sink == nullptr || sink->empty() ? -1 : sink->fd(), POLLOUT, 0});
  }
  for (const Source& source : sources_) {
    waits->push_back({source.sink->full() ? -1 : source.fd.get(), POLLIN, 0});
  }
}

void Output::Advance(absl::Span<const pollfd> waits) {
  const absl::Span<const pollfd> own =
      waits.subspan(first_wait_ + 2);  // the sinks are simply tried
  WriteAll();
  std::vector<size_t> ended;
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    if (own[i].revents == 0 || source.sink->full()) continue;
    if (Read(source) == Got::kEnd) ended.push_back(i);
  }
  for (auto it = ended.rbegin(); it != ended.rend(); ++it) {
    sources_.erase(sources_.begin() + static_cast<ptrdiff_t>(*it));
  }
  ShowKept();
  WriteAll();
}

bool Output::TakeLast() {
  FinishFeeds();
  for (auto source = sources_.begin(); source != sources_.end();) {
    Got got = Got::kSome;
    while (got == Got::kSome && !source->sink->full()) {
      got = Read(*source);
      WriteAll();
    }
    if (got == Got::kSome) {
      ++source;
      continue;
    }
    if (got == Got::kNothing) {  // somebody still holds the pipe, but nobody who could write
      Take(*source, "");
    }
    source = sources_.erase(source);
  }
  WriteAll();
  return sources_.empty();
}

}  // namespace rueda
