#include "examples/trainer/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace trainer {
namespace {

bool Flush(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool flushed = fsync(fd) == 0;
  close(fd);
  return flushed;
}

}  // namespace

void WriteFile(const std::string& path, const std::string& text) {
  const std::string part = path + ".part";
  std::ofstream stream(part, std::ios::binary);
  stream << text;
  stream.close();
  if (stream && Flush(part) && std::rename(part.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(part.c_str());
  throw std::runtime_error(path + " can't be written: " + std::strerror(error));
}

}  // namespace trainer
