// wire_bench: the least that an allreduce of float32 (sum, in place) between two processes can cost
// over TCP: each sends the other its tensor, and adds what comes. No names, no checks, no failure
// ever noticed. One JSON line a size.
//
//     wire_bench 0|1 ADDRESS PORT [--spin] BYTES...
//
// ADDRESS is the one of rank 0, which listens. Ranks wait for each other in the kernel, or, with
// --spin, by trying again and again.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "timing.h"

namespace {

constexpr size_t kPieceBytes = 256 << 10;  // stays in the cache between its coming and its adding
constexpr int kTrials = 200;               // to connect, 50 ms apart

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

int Connect(int rank, const char* address, int port) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, address, &at.sin_addr) != 1) Die(address);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  if (rank == 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) Die("bind");
    if (listen(fd, 1) != 0) Die("listen");
    const int accepted = accept(fd, nullptr, nullptr);
    close(fd);
    fd = accepted;
  } else {
    for (int trial = 0; connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0; ++trial) {
      if (trial == kTrials) Die("connect");
      usleep(50'000);
    }
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

class Exchange {
 public:
  Exchange(int fd, bool spins, size_t bytes)
      : fd_(fd), spins_(spins), sent_(bytes / sizeof(float)), piece_(kPieceBytes / sizeof(float)) {}

  // Adds the other's numbers to these.
  void Add(std::vector<float>& data) {
    std::copy(data.begin(), data.end(), sent_.begin());
    const size_t bytes = data.size() * sizeof(float);
    size_t out = 0, in = 0;
    while (out < bytes || in < bytes) {
      bool moved = false;
      if (out < bytes) {
        const ssize_t n = send(fd_, reinterpret_cast<char*>(sent_.data()) + out, bytes - out,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) Die("send");
        if (n > 0) out += static_cast<size_t>(n), moved = true;
      }
      if (in < bytes) moved |= Receive(data, bytes, out == bytes && !spins_, &in);
      if (moved || spins_) continue;
      pollfd ready = {fd_, static_cast<short>((out < bytes ? POLLOUT : 0) | POLLIN), 0};
      poll(&ready, 1, -1);
    }
  }

 private:
  // Of a number whose bytes have come in part, the rest is received first.
  bool Receive(std::vector<float>& data, size_t bytes, bool blocks, size_t* in) {
    char* const piece = reinterpret_cast<char*>(piece_.data());
    const size_t part = *in % sizeof(float);
    const size_t wanted = std::min(bytes - *in, kPieceBytes - part);
    const ssize_t n = recv(fd_, piece + part, wanted, blocks ? 0 : MSG_DONTWAIT);
    if (n == 0) Die("the other rank has gone");
    if (n < 0) {
      if (errno != EAGAIN) Die("recv");
      return false;
    }
    const size_t first = *in / sizeof(float);
    const size_t there = part + static_cast<size_t>(n);
    for (size_t i = 0; i < there / sizeof(float); ++i) data[first + i] += piece_[i];
    std::memmove(piece, piece + there / sizeof(float) * sizeof(float), there % sizeof(float));
    *in += static_cast<size_t>(n);
    return true;
  }

  const int fd_;
  const bool spins_;
  std::vector<float> sent_;
  std::vector<float> piece_;
};

void Run(int fd, int rank, bool spins, long bytes) {
  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float), 1);
  Exchange exchange(fd, spins, static_cast<size_t>(bytes));
  exchange.Add(data);
  for (float& value : data) {
    if (value != 2) Die("wrong result");
    value = 0;
  }
  const auto measure = [&](int iterations) {
    std::vector<double> times;
    for (int i = 0; i < iterations; ++i) {
      const double start = now_us();
      exchange.Add(data);
      times.push_back(now_us() - start);
    }
    std::sort(times.begin(), times.end());
    return times;
  };
  // At most a second's worth, the same on both ranks.
  std::vector<float> first = {static_cast<float>(measure(5)[2])};
  Exchange(fd, spins, sizeof(float)).Add(first);
  const int iterations =
      std::max(5, std::min(iterations_for(bytes), static_cast<int>(2e6f / first[0])));
  measure(iterations / 10 + 1);
  const std::vector<double> times = measure(iterations);
  if (rank != 0) return;
  const double p50 = times[times.size() / 2];
  std::printf(
      "{\"peer\": \"wire_%s\", \"op\": \"allreduce\", \"np\": 2, \"bytes\": %ld, \"p50_us\": %.2f, "
      "\"min_us\": %.2f, \"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
      spins ? "spinning" : "blocking", bytes, p50, times[0], times[times.size() * 99 / 100],
      static_cast<double>(bytes) / p50 / 1e3);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int arg = 4;
  const bool spins = argc > arg && std::string(argv[arg]) == "--spin";
  if (spins) ++arg;
  if (argc <= arg) {
    std::fprintf(stderr, "usage: wire_bench 0|1 ADDRESS PORT [--spin] BYTES...\n");
    return 2;
  }
  const int rank = std::atoi(argv[1]);
  const int fd = Connect(rank, argv[2], std::atoi(argv[3]));
  for (; arg < argc; ++arg) Run(fd, rank, spins, std::atol(argv[arg]));
  return 0;
}
