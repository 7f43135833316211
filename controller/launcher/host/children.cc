#include "controller/launcher/host/children.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "core/base/process.h"

namespace rueda {
namespace {

// Sleeps until a child ends, at most until `deadline`.
void AwaitChild(Nanos deadline) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  const Nanos left = std::max<Nanos>(deadline - MonotonicNow(), 0);
  const timespec limit = {left / kSecond, left % kSecond};
  sigtimedwait(&child, nullptr, &limit);
}

}  // namespace

std::vector<pid_t> ChildrenOfThis() {
  std::vector<pid_t> children;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  if (proc == nullptr) return children;
  const pid_t self = getpid();
  while (const dirent* entry = readdir(proc.get())) {
    pid_t pid;
    if (absl::SimpleAtoi(entry->d_name, &pid) && ParentOf(pid) == self) children.push_back(pid);
  }
  return children;
}

void SignalChildren(const std::vector<pid_t>& children, int signal,
                    const std::function<bool(pid_t)>& is_group_of_ours) {
  std::set<pid_t> targets;
  for (const pid_t child : children) {
    const pid_t group = getpgid(child);
    const bool all_of_it = group > 1 && (group == child || is_group_of_ours(group));
    targets.insert(all_of_it ? -group : child);
  }
  for (const pid_t target : targets) kill(target, signal);
}

void KillDescendants(const std::vector<pid_t>& spared,
                     const std::function<bool(pid_t)>& is_group_of_ours, Nanos deadline,
                     const std::function<void(pid_t, int wait_status)>& collected) {
  for (;;) {
    std::vector<pid_t> children = ChildrenOfThis();
    std::erase_if(children, [&](pid_t child) {
      return std::find(spared.begin(), spared.end(), child) != spared.end();
    });
    if (children.empty() || MonotonicNow() >= deadline) return;
    // All are told before any is collected, while the numbers of their groups can't be reused.
    SignalChildren(children, SIGKILL, is_group_of_ours);
    bool progress = false;
    for (const pid_t child : children) {
      int status;
      if (waitpid(child, &status, WNOHANG) != child) continue;
      progress = true;
      collected(child, status);
    }
    if (!progress) AwaitChild(deadline);
  }
}

}  // namespace rueda
