// A real ruedarun under test: starts it with an environment, inputs and outputs that the test
// chooses, waits for what it prints, and finds what it leaves behind. Nothing here sleeps for luck:
// every wait is for an event, with a limit that only a hang reaches.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/process.h"
#include "core/base/unique_fd.h"

namespace rueda {

inline constexpr Nanos kHang = 30 * kSecond;

// A bound that is promised, made looser where the machine is overloaded or a sanitizer slows it.
Nanos Bound(Nanos promised);

UniqueFd Pidfd(pid_t pid);
// Whether all these processes have ended by `limit` from now.
bool AllEnd(const std::vector<pid_t>& pids, Nanos limit);
bool AwaitState(pid_t pid, char state, Nanos limit = kHang);

class Job {
 public:
  struct Setup {
    std::map<std::string, std::string> environment;  // added to PATH and the mark
    std::string input;                               // then end of file
    bool one_output = false;                         // 2>&1
    std::string output_path;                         // > this file
    bool terminal = false;     // all three are a terminal, and ruedarun leads its session
    bool reads_output = true;  // else nobody takes anything from the pipes until Resume
    std::vector<int> ignored;  // signals that ruedarun finds ignored
    std::vector<int> blocked;  // and blocked
    std::string directory;     // to start in
    int forbidden_call = -1;   // a system call that the job gets `forbidden_error` for
    int forbidden_error = 0;
  };

  // ruedarun with `arguments`.
  explicit Job(std::vector<std::string> arguments) : Job(std::move(arguments), Setup()) {}
  Job(std::vector<std::string> arguments, Setup setup);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Waits for `text` to come out of standard output (or error) once more than earlier calls with
  // the same text waited for, and returns the rest of its line.
  std::string Await(const std::string& text) { return AwaitIn(&out_, text); }
  std::string AwaitError(const std::string& text) { return AwaitIn(&err_, text); }
  // Waits for `text` and a number.
  pid_t AwaitPid(const std::string& text) { return std::stoi(Await(text)); }

  // Waits for `text`, which need not be a whole line.
  void AwaitText(const std::string& text);

  // Whether ruedarun ends by `limit` from now.
  bool Ends(Nanos limit);
  // Waits for the end: the exit code, or -signal.
  int Wait(Nanos limit = kHang);
  // Waits until ruedarun is stopped.
  void AwaitStop();

  void Signal(int signal) const { kill(pid_, signal); }
  void Type(const std::string& keys) const;  // on its terminal
  void Resume() { out_.paused = err_.paused = false; }
  // Waits until a pipe that nobody reads holds all it can.
  void AwaitFullPipe();
  void CloseOutput() { out_.fd.reset(); }

  pid_t pid() const { return pid_; }
  pid_t supervisor() const;
  const std::string& out() const { return out_.text; }
  const std::string& err() const { return err_.text; }
  // All processes that carry this job's mark in their environment: ruedarun, the ranks, and what
  // they started.
  std::vector<pid_t> Processes() const;

 private:
  struct Stream {
    UniqueFd fd;
    bool paused = false;
    std::string text;
    std::map<std::string, size_t> searched;
  };

  // Starts in the child; never returns.
  [[noreturn]] void Exec(const Setup& setup, const std::vector<std::string>& arguments,
                         const int (&fds)[3]);
  std::string AwaitIn(Stream* stream, const std::string& text);
  // Takes what has come. False when nothing did by `deadline`, or nothing can.
  bool Pump(Nanos deadline);
  void Take(Stream* stream);

  pid_t pid_ = 0;
  UniqueFd pidfd_;
  UniqueFd terminal_;
  Stream out_;
  Stream err_;
  std::string mark_;
  bool waited_ = false;
  int exit_ = 0;
};

// The lines of `text` that begin with "[rank] ", without it.
std::string LinesOf(int rank, const std::string& text);

}  // namespace rueda
