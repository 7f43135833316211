// FAKE: see hub.h.
#include "test/support/fake_cuda/hub.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/kernels/reduce.h"
#include "test/support/fake_cuda/wire.h"

namespace rueda::fake_cuda {
namespace {

constexpr const char* kNames[] = {"allreduce", "reduce_to", "reducescatter", "allgather",
                                  "broadcast", "send",      "receive"};

// An abstract address: nothing lies in the file system.
socklen_t Address(const rueda_cuda_id& id, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const size_t length = std::min(strnlen(id.bytes, sizeof id.bytes), sizeof address->sun_path - 1);
  memcpy(address->sun_path + 1, id.bytes, length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

struct Operation {
  Description what;
  int member;
  std::vector<char> in;
  std::vector<char> out;
};

std::string Words(const Operation& operation) {
  const Description& what = operation.what;
  std::string words = absl::StrCat("member ", operation.member, ": ",
                                   kNames[static_cast<int>(what.kind)], " of ", what.count);
  if (what.dtype >= 0) {
    absl::StrAppend(&words, " ", DTypeName(static_cast<DType>(what.dtype)), ", ",
                    ReduceOpName(static_cast<ReduceOp>(what.reduce_op)));
  } else {
    absl::StrAppend(&words, " bytes");
  }
  if (what.peer >= 0) absl::StrAppend(&words, ", with ", what.peer);
  return words;
}

bool Match(const Operation& a, const Operation& b) {
  return a.what.kind == b.what.kind && a.what.dtype == b.what.dtype &&
         a.what.reduce_op == b.what.reduce_op && a.what.peer == b.what.peer &&
         a.what.count == b.what.count && a.what.factor == b.what.factor;
}

// All members' operations are there, and match.
void Compute(const std::vector<Operation*>& members) {
  const Description& what = members[0]->what;
  const int size = static_cast<int>(members.size());
  if (what.kind == Collective::kBroadcast) {
    for (Operation* const member : members) member->out = members[what.peer]->in;
    return;
  }
  if (what.kind == Collective::kAllgather) {
    std::vector<char> all;
    for (Operation* const member : members) {
      all.insert(all.end(), member->in.begin(), member->in.end());
    }
    for (Operation* const member : members) member->out = all;
    return;
  }
  const auto dtype = static_cast<DType>(what.dtype);
  const auto op = static_cast<ReduceOp>(what.reduce_op);
  std::vector<const void*> sources;
  for (Operation* const member : members) sources.push_back(member->in.data());
  std::vector<char> result(members[0]->in.size());
  Scaling scaling;
  scaling.prescale = what.factor;
  scaling.divisor = op == ReduceOp::kAverage ? size : 1;
  kernels::Reduce(dtype, op, sources, result.data(),
                  static_cast<int64_t>(result.size() / DTypeSize(dtype)), scaling);
  const size_t part = result.size() / members.size();
  for (int i = 0; i < size; ++i) {
    if (what.kind == Collective::kAllreduce ||
        (what.kind == Collective::kReduceTo && what.peer == i)) {
      members[i]->out = result;
    } else if (what.kind == Collective::kReducescatter) {
      members[i]->out.assign(result.begin() + i * part, result.begin() + (i + 1) * part);
    }
  }
}

// Runs on a thread of its own, to which all its fields belong.
class Hub {
 public:
  explicit Hub(int listener) : listener_(listener) {}
  ~Hub() {
    if (listener_ >= 0) close(listener_);
  }

  void Run() {
    do {
      Turn();
    } while (!came_ || !connections_.empty());
  }

 private:
  struct Connection {
    int socket;
    bool foreign;  // of another process
    bool greeted = false;
    Hello hello = {};
  };
  struct Member {
    int data = -1;
    int control = -1;
    bool gone = false;
    std::vector<std::unique_ptr<Operation>> task;
    size_t missing = 0;  // of the task's operations, those that have not met all others
    uint64_t collectives = 0;
    std::optional<Choice> choice;
  };

  static bool Send(int socket, Say say, int32_t number, const std::string& words) {
    const Header header = {say, number, words.size()};
    return socket >= 0 && SendAll(socket, &header, sizeof header, nullptr) &&
           SendAll(socket, words.data(), words.size(), nullptr);
  }
  void Tell(Say say, int32_t number, const std::string& words = "") {
    for (const Member& member : members_) Send(member.control, say, number, words);
  }

  void Turn() {
    std::vector<pollfd> wanted;
    for (const Connection& connection : connections_) {
      wanted.push_back({connection.socket, POLLIN, 0});
    }
    const size_t count = wanted.size();
    if (listener_ >= 0) wanted.push_back({listener_, POLLIN, 0});
    if (poll(wanted.data(), wanted.size(), -1) <= 0) return;
    if (wanted.size() > count && wanted[count].revents != 0) Accept();
    for (size_t i = 0; i < count; ++i) {
      if (wanted[i].revents != 0 && !Hear(wanted[i].fd)) Close(wanted[i].fd);
    }
  }

  void Accept() {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return;
    connections_.push_back({socket});
    came_ = true;
  }

  // False: the connection is over.
  bool Hear(int socket) {
    const auto connection = std::find_if(connections_.begin(), connections_.end(),
                                         [&](const Connection& c) { return c.socket == socket; });
    if (!connection->greeted) {
      return ReceiveAll(socket, &connection->hello, sizeof connection->hello, nullptr) &&
             Greet(*connection);
    }
    Header header;
    if (!ReceiveAll(socket, &header, sizeof header, nullptr)) return false;
    const int self = connection->hello.self;
    if (header.say == Say::kTask) return HearTask(self, header.number);
    if (header.say == Say::kSplit) return HearSplit(self);
    Leave(self);
    return true;
  }

  bool Greet(Connection& connection) {
    const Hello& hello = connection.hello;
    connection.greeted = true;
    if (members_.empty()) members_.resize(std::clamp(hello.members, 1, FAKE_CUDA_MEMBERS_MAX));
    std::string why;
    const int size = static_cast<int>(members_.size());
    if (hello.members != size) {
      why = absl::StrCat("one says that there are ", hello.members, " members, another ", size);
    } else if (hello.self < 0 || hello.self >= size) {
      why = absl::StrCat("there is no member ", hello.self, " of ", size);
    } else {
      Member& member = members_[hello.self];
      int& socket = hello.channel == Channel::kData ? member.data : member.control;
      if (socket < 0) {
        socket = connection.socket;
        if (++greeted_ == 2 * size) Begin();
        return true;
      }
      why = absl::StrCat("two say that they are member ", hello.self);
    }
    if (hello.channel == Channel::kControl) Send(connection.socket, Say::kRefused, 0, why);
    Tell(Say::kRefused, 0, why);
    return false;
  }

  void Begin() {
    begun_ = true;
    close(std::exchange(listener_, -1));
    Tell(Say::kGo, 0);
  }

  void Close(int socket) {
    close(socket);
    std::erase_if(connections_, [&](const Connection& c) { return c.socket == socket; });
    for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
      Member& member = members_[i];
      if (member.data != socket && member.control != socket) continue;
      (member.data == socket ? member.data : member.control) = -1;
      if (!begun_) --greeted_;
      if (begun_ && !std::exchange(member.gone, true)) Tell(Say::kLost, i);
    }
    LetGo();
  }

  void Leave(int self) {
    members_[self].gone = true;
    LetGo();
  }

  void LetGo() {
    const auto gone = [](const Member& member) { return member.gone; };
    if (begun_ && std::all_of(members_.begin(), members_.end(), gone)) Tell(Say::kMayLeave, 0);
  }

  bool HearSplit(int self) {
    Choice choice;
    if (!ReceiveAll(members_[self].control, &choice, sizeof choice, nullptr)) return false;
    members_[self].choice = choice;
    std::map<int, std::vector<std::pair<int, int>>> parts;  // by color: (key, member)
    for (int i = 0; i < static_cast<int>(members_.size()); ++i) {
      if (!members_[i].choice.has_value()) return true;
      parts[members_[i].choice->color].push_back({members_[i].choice->key, i});
    }
    for (Member& member : members_) member.choice.reset();
    for (auto& [color, part] : parts) {
      if (color < 0) continue;
      std::sort(part.begin(), part.end());
      Part answer = {{}, static_cast<int32_t>(part.size()), 0};
      StartHub(&answer.id);
      for (const auto& [key, member] : part) {
        const std::string bytes(reinterpret_cast<const char*>(&answer), sizeof answer);
        Send(members_[member].control, Say::kPart, 0, bytes);
        ++answer.self;
      }
    }
    return true;
  }

  bool HearTask(int self, int operations) {
    Member& member = members_[self];
    member.task.clear();
    for (int i = 0; i < operations; ++i) {
      auto operation = std::make_unique<Operation>();
      operation->member = self;
      if (!ReceiveAll(member.data, &operation->what, sizeof operation->what, nullptr)) return false;
      operation->in.resize(operation->what.in_bytes);
      if (!ReceiveAll(member.data, operation->in.data(), operation->in.size(), nullptr)) {
        return false;
      }
      member.task.push_back(std::move(operation));
    }
    if (wrong_) return true;
    member.missing = member.task.size();
    for (const auto& operation : member.task) {
      const Collective kind = operation->what.kind;
      if (kind == Collective::kSend || kind == Collective::kReceive) {
        Pair(operation.get());
      } else {
        Meet(operation.get());
      }
      if (wrong_) break;
    }
    return true;
  }

  // A collective: the members' next ones belong together.
  void Meet(Operation* operation) {
    const uint64_t sequence = members_[operation->member].collectives++;
    std::vector<Operation*>& others = meetings_[sequence];
    others.resize(members_.size());
    others[operation->member] = operation;
    for (Operation* const other : others) {
      if (other == nullptr || Match(*other, *operation)) continue;
      return Complain(*other, *operation);
    }
    if (std::count(others.begin(), others.end(), nullptr) > 0) return;
    Compute(others);
    const std::vector<Operation*> met = std::move(others);
    meetings_.erase(sequence);
    // The first last: when its process ends, nothing is left to be sent.
    for (auto it = met.rbegin(); it != met.rend(); ++it) HaveMet((*it)->member);
  }

  // A send or receive: the next one of the peer in the other direction.
  void Pair(Operation* operation) {
    const bool sends = operation->what.kind == Collective::kSend;
    const int from = sends ? operation->member : operation->what.peer;
    const int to = sends ? operation->what.peer : operation->member;
    auto& mine = pairs_[{from, to}][sends ? 0 : 1];
    auto& theirs = pairs_[{from, to}][sends ? 1 : 0];
    if (theirs.empty()) return mine.push_back(operation);
    Operation* const other = theirs.front();
    theirs.pop_front();
    if (other->what.count != operation->what.count) return Complain(*other, *operation);
    (sends ? other : operation)->out = (sends ? operation : other)->in;
    HaveMet(std::max(operation->member, other->member));
    HaveMet(std::min(operation->member, other->member));
  }

  void HaveMet(int self) {
    Member& member = members_[self];
    if (--member.missing > 0) return;
    Header header = {Say::kDone, 0, 0};
    for (const auto& operation : member.task) header.bytes += operation->out.size();
    if (member.data < 0 || !SendAll(member.data, &header, sizeof header, nullptr)) return;
    for (const auto& operation : member.task) {
      if (!SendAll(member.data, operation->out.data(), operation->out.size(), nullptr)) return;
    }
  }

  // For all members, for good: NCCL would hang, or take one's bytes for another's.
  void Complain(const Operation& a, const Operation& b) {
    const std::string words =
        absl::StrCat("the members' operations do not match: ", Words(a), "; ", Words(b));
    wrong_ = true;
    for (const Member& member : members_) Send(member.data, Say::kWrong, 0, words);
  }

  int listener_;
  bool came_ = false;   // somebody
  bool begun_ = false;  // all members were there
  bool wrong_ = false;
  int greeted_ = 0;
  std::vector<Connection> connections_;
  std::vector<Member> members_;
  std::map<uint64_t, std::vector<Operation*>> meetings_;  // by sequence; null: not there yet
  // By (giver, taker): sends and receives that have met nobody.
  std::map<std::pair<int, int>, std::deque<Operation*>[2]> pairs_;
};

}  // namespace

Outcome StartHub(rueda_cuda_id* id) {
  static std::atomic<int> count{0};
  *id = {};
  const std::string name =
      absl::StrCat("rueda-fake-cuda-", getpid(), "-", count++, "-", std::random_device()());
  memcpy(id->bytes, name.data(), name.size());
  sockaddr_un address;
  const socklen_t length = Address(*id, &address);
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(listener, 2 * FAKE_CUDA_MEMBERS_MAX) != 0) {
    if (listener >= 0) close(listener);
    return Internal(absl::StrCat("can't listen on a Unix socket: errno ", errno));
  }
  std::thread([listener] { Hub(listener).Run(); }).detach();
  return {};
}

int ConnectToHub(const rueda_cuda_id& id) {
  sockaddr_un address;
  const socklen_t length = Address(id, &address);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return -1;
  if (connect(socket, reinterpret_cast<sockaddr*>(&address), length) == 0) return socket;
  const int error = errno;
  close(socket);
  errno = error;
  return -1;
}

}  // namespace rueda::fake_cuda
