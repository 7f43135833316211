// What the ranks print, on its way to ruedarun's own outputs: whole lines, each with its rank. What
// is no whole line after a moment is shown all the same: progress bars, dots, prompts.
//
// Nothing is lost and nothing blocks: when an output does not take more, the ranks' pipes are left
// alone until it does, and the ranks wait. An output whose reader has gone away swallows the
// rest; whether that ends the job is another's to say.
// Owner: the launcher process; its only thread.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "controller/launcher/decide/options.h"
#include "controller/launcher/front/lines.h"
#include "controller/launcher/host/job.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

// One of ruedarun's own outputs, with a queue before it.
class Sink {
 public:
  static constexpr int kOwnMessages = -1;

  // `fd` stays the caller's, and stays blocking for whoever else uses it.
  explicit Sink(int fd);

  // Adds whole lines (or the last, unfinished one) of `source`. A line that another source left
  // unfinished is ended first.
  void Append(int source, absl::string_view text);
  // Writes what goes without blocking.
  void Write();

  // Whose text was the last.
  int last_source() const { return last_source_; }
  bool full() const { return waiting_bytes() >= kFullBytes; }
  bool empty() const { return waiting_bytes() == 0; }
  bool is_terminal() const { return is_terminal_; }
  // To poll for POLLOUT while there is something to write.
  int fd() const { return own_fd_.valid() ? own_fd_.get() : fd_; }
  // Why the rest is dropped; OK while nothing is, or when the reader has simply gone.
  const absl::Status& error() const { return error_; }
  // Whether its reader has gone, as was seen when it was written to.
  bool reader_gone() const { return broken_ && error_.ok(); }

 private:
  enum class WriteMode {
    kOwnFd,     // pipes and terminals, opened anew: a non-blocking description of our own
    kSocket,    // sockets say per call whether they may block
    kBlocking,  // files: they don't wait for anybody
    kCareful,   // others' pipes and terminals: ask before each small piece
  };
  static constexpr size_t kFullBytes = 1 << 20;

  size_t waiting_bytes() const { return waiting_.size() - written_; }
  ssize_t WriteSome(absl::string_view text);

  const int fd_;
  const bool is_terminal_;
  UniqueFd own_fd_;
  WriteMode write_mode_;
  std::string waiting_;
  size_t written_ = 0;  // of `waiting_`
  int last_source_ = kOwnMessages;
  bool line_open_ = false;
  bool broken_ = false;
  absl::Status error_;
};

class Output {
 public:
  // Two numbers of open outputs, which may be the same file.
  Output(int out_fd, int err_fd);

  // Makes the pipes of all ranks; their writing ends go to `streams`.
  absl::Status OpenPipes(LaunchOptions::Prefix prefix, std::vector<RankStreams>* streams);
  // For ranks without pipes, whose output comes by Feed: to the two outputs, or to files.
  void ExpectFeeds(LaunchOptions::Prefix prefix, int ranks);
  void ExpectFeeds(std::vector<RankStreams> files);
  // Of ranks up to that number, whose output goes to the two outputs.
  void MakeRoomForFeeds(LaunchOptions::Prefix prefix, int ranks);
  // For a rank that there is room for: to these from now on.
  void FeedToFiles(Rank rank, RankStreams files);
  void Feed(Rank rank, bool is_error, absl::string_view bytes);
  // Whether nobody reads standard output any more.
  bool reader_gone() const { return out_->reader_gone(); }
  // Whether Feed should wait.
  bool full() const { return out_->full() || err_->full(); }
  // In a process that must not read them.
  void ClosePipes() { sources_.clear(); }

  // One of ruedarun's own lines, with its newline.
  void Say(absl::string_view text) { err_->Append(Sink::kOwnMessages, text); }
  // The same, at once as far as it goes: nobody calls Advance yet.
  void SayNow(absl::string_view text) {
    Say(text);
    WriteAll();
  }

  // Adds what to wait for to what others do; after poll all of it goes to Advance.
  void AddWaits(std::vector<pollfd>* waits);
  void Advance(absl::Span<const pollfd> waits);
  // When to call Advance if nothing is ready before.
  Nanos deadline() const;

  // All ranks are gone: takes what they left in the pipes, as much as the outputs take now. True
  // when nothing is left to read; then nothing will come any more.
  bool TakeLast();
  // Drops what the ranks left.
  void GiveUp() { sources_.clear(); }
  // Whether everything has been written.
  bool flushed() const { return out_->empty() && err_->empty(); }

 private:
  struct Source {
    int number;
    UniqueFd fd;
    LineJoiner lines;
    Sink* sink;
    Nanos kept_since = kForever;  // when something of a line came that is not shown yet
  };
  enum class Got { kSome, kNothing, kEnd };

  Source MakeSource(Rank rank, LaunchOptions::Prefix prefix, Sink* sink);
  Source MakeFileSource(int fd);
  Got Read(Source& source);
  // What comes from a rank; "": nothing any more.
  void Take(Source& source, absl::string_view bytes);
  void ShowKept();
  void FinishFeeds();
  void WriteAll();

  std::unique_ptr<Sink> out_;
  std::unique_ptr<Sink> err_own_;  // null when both are one file
  Sink* err_;
  std::vector<Source> sources_;
  std::vector<Source> feeds_;  // without a descriptor; by rank, its output and its errors
  std::vector<std::unique_ptr<Sink>> file_sinks_;
  std::vector<RankStreams> files_;
  std::string buffer_;
  std::string lines_;
  size_t first_wait_ = 0;  // of those that AddWaits has added
};

}  // namespace rueda
