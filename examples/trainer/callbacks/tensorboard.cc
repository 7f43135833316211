#include "examples/trainer/callbacks/tensorboard.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "examples/trainer/callbacks/events.h"
#include "examples/trainer/callbacks/records.h"
#include "examples/trainer/files.h"

namespace trainer {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void TensorBoard::Write(const std::string& event) {
  stream_ << Record(event);
  stream_.flush();
  if (!stream_) throw std::runtime_error(path_ + " can't be written: " + std::strerror(errno));
}

void TensorBoard::OnCheck(Training& training) {
  if (training.rank == 0) CheckDirectory(directory_);
}

void TensorBoard::OnBegin(Training& training) {
  if (training.rank != 0) return;
  MakeDirectory(directory_);
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  const double now = Now();
  // TensorBoard looks for this name, and reads the files of a directory in the order of the time.
  static int files = 0;
  path_ = directory_ + "/events.out.tfevents." + std::to_string(static_cast<int64_t>(now)) + "." +
          host + "." + std::to_string(getpid()) + "." + std::to_string(files++);
  stream_ = std::ofstream(path_, std::ios::binary);
  Write(FirstEvent(now));
  Write(RestartEvent(now, training.step + 1));
}

void TensorBoard::OnEpoch(Training& training) {
  if (training.rank != 0) return;
  Write(ScalarsEvent(Now(), training.step, training.metrics));
}

}  // namespace trainer
