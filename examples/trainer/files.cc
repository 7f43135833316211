#include "examples/trainer/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace trainer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void Fail(const std::string& path, int error) {
  throw std::runtime_error(path + " can't be written: " + std::strerror(error));
}

bool Flush(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool flushed = fsync(fd) == 0;
  close(fd);
  return flushed;
}

// Of this process, if the path is its name. -1: it is none.
int NamedDescriptor(const std::string& path) {
  for (const std::string folder : {"/proc/self/fd/", "/dev/fd/"}) {
    if (path.starts_with(folder)) return std::atoi(path.c_str() + folder.size());
  }
  return -1;
}

// Where symbolic links lead, also if nothing is there; an open file's name is an end.
fs::path Target(fs::path path) {
  for (int links = 0; links < 40 && NamedDescriptor(path) < 0 && fs::is_symlink(path); ++links) {
    path = path.parent_path() / fs::read_symlink(path);
  }
  return path;
}

// /dev/stdout leads to one. -1: the path does not.
int DescriptorOf(const fs::path& path) {
  return NamedDescriptor(Target(path));
}

// A pipe, a device, an open file: what a file must not take the place of.
bool IsOther(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return DescriptorOf(path) >= 0 || (fs::exists(status) && !fs::is_regular_file(status));
}

// 0, or the error.
int CheckIn(const fs::path& directory) {
  return access((directory / ".").c_str(), W_OK | X_OK) == 0 ? 0 : errno;
}

}  // namespace

void WriteFile(const std::string& path, const std::string& text) {
  if (IsOther(path)) {
    if (!text.empty()) AppendToFile(path, text);
    return;
  }
  const std::string target = Target(path).string();
  const std::string part = target + ".part";
  std::ofstream stream(part, std::ios::binary);
  stream << text;
  stream.close();
  if (stream && Flush(part) && std::rename(part.c_str(), target.c_str()) == 0) return;
  const int error = errno;
  std::remove(part.c_str());
  Fail(path, error);
}

void AppendToFile(const std::string& path, const std::string& text) {
  if (const int fd = DescriptorOf(path); fd >= 0) {
    // Where others write too: opened anew it would have a position of its own.
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = write(fd, text.data() + done, text.size() - done);
      if (count < 0 && errno != EINTR) Fail(path, errno);
      if (count > 0) done += static_cast<size_t>(count);
    }
    return;
  }
  std::ofstream stream(path, std::ios::binary | std::ios::app);
  stream << text;
  stream.flush();
  if (!stream) Fail(path, errno);
}

void CheckFile(const std::string& path) {
  if (fs::is_directory(path)) Fail(path, EISDIR);
  if (fs::exists(path) && access(path.c_str(), W_OK) != 0) Fail(path, errno);
  if (IsOther(path)) return;
  if (const int error = CheckIn(Target(fs::absolute(path)).parent_path())) Fail(path, error);
}

void CheckDirectory(const std::string& path) {
  std::error_code ignored;
  fs::path there = fs::absolute(path);
  while (!fs::exists(there, ignored) && there.has_relative_path()) there = there.parent_path();
  if (const int error = CheckIn(there)) Fail(path, error);
}

void MakeDirectory(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) Fail(path, error.value());
}

uint64_t Digest(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  uint64_t digest = 0xcbf29ce484222325;
  char block[65536];
  while (stream.read(block, sizeof block) || stream.gcount() > 0) {
    for (std::streamsize i = 0; i < stream.gcount(); ++i) {
      digest = (digest ^ static_cast<unsigned char>(block[i])) * 0x100000001b3;
    }
  }
  if (!stream.eof()) throw std::runtime_error(path + " can't be read: " + std::strerror(errno));
  return digest;
}

}  // namespace trainer
