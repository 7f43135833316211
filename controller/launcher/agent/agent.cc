#include "controller/launcher/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controller/bus/socket.h"
#include "controller/launcher/agent/agent_stream.h"
#include "controller/launcher/agent/agent_words.h"
#include "controller/launcher/agent/lifeline.h"
#include "controller/launcher/decide/supervisor.h"
#include "controller/launcher/host/inheritance.h"
#include "controller/launcher/host/job.h"
#include "controller/launcher/host/local_ranks.h"
#include "controller/rendezvous/host_identity.h"
#include "controller/rendezvous/network.h"
#include "core/base/interfaces.h"

namespace rueda {
namespace {

// While so much of the ranks' output waits for ruedarun, they wait too.
constexpr size_t kOutputBytesMax = 1 << 20;
constexpr size_t kOutputBytes = 64 << 10;

// Why the agent can't do what it was told to, and what to exit with.
struct Refused {
  absl::Status status;
  int exit_code = kCannotStart;
};

Environment ToEnvironment(const google::protobuf::RepeatedPtrField<launch::Variable>& variables) {
  Environment environment;
  for (const launch::Variable& each : variables) environment[each.name()] = each.value();
  return environment;
}

// The interface by which the other hosts reach this one: the one that is asked for, that of the
// route to another host of the job, that by which ssh came, or that of the default route.
absl::StatusOr<Interface> MeetingInterface(const launch::Order& order) {
  if (!order.network_interface().empty()) {
    RUEDA_ASSIGN_OR_RETURN(const Interface asked, ChooseInterface(order.network_interface()));
    if (!asked.is_loopback) return asked;
    return absl::InvalidArgumentError(
        absl::StrCat("network interface ", asked.name,
                     " is loopback, by which ranks on other hosts can't be reached: name another "
                     "one (--network-interface, RUEDA_NETWORK_INTERFACE)"));
  }
  absl::StatusOr<Interface> interface = absl::NotFoundError("there is no other host");
  if (!order.other_host().empty()) interface = InterfaceTowards(order.other_host());
  if (interface.ok()) return interface;
  const char* const ssh = getenv("SSH_CONNECTION");  // "client port server port"
  const std::vector<std::string> words = absl::StrSplit(ssh == nullptr ? "" : ssh, ' ');
  if (words.size() == 4) interface = InterfaceWithAddress(words[2]);
  return interface.ok() && !interface->is_loopback ? interface : ChooseInterface("");
}

class Agent {
 public:
  explicit Agent(AgentStream stream) : stream_(std::move(stream)) {}
  int Run();

 private:
  // The next message of ruedarun; `share` as of ReadToAgent. CANCELLED: there is none, it has gone.
  absl::StatusOr<launch::ToAgent> AwaitMessage(const HostShare* share);
  void SendEvent(const Message& message);
  // Until ruedarun has taken everything, or has gone.
  void FlushAll();
  int Refuse(const Refused& refused);
  // Everything that can be done before the other hosts are ready.
  Refused Prepare(const launch::Order& order);
  absl::Status OpenMeeting(const launch::Order& order, launch::Meeting* meeting);
  absl::Status OpenPipes();
  Refused Start(const launch::Meeting& meeting);
  void Relay();
  void Step(std::vector<pollfd>* waits);
  void OnStream();
  bool TakeEvents();
  void OnRuedarunGone();
  void OnSignals();
  void PassMessages();
  // False: nothing will come from it any more.
  bool ReadPipe(size_t pipe);
  void ReadLast();

  struct Pipe {
    Rank rank;
    bool is_error;
    UniqueFd fd;
  };

  AgentStream stream_;
  LaunchOptions options_;
  HostFacts host_;
  HostShare share_;
  HostJob job_;
  std::string program_;
  UniqueFd door_;
  std::string lifeline_address_;
  Lifeline lifeline_;
  std::vector<RankStreams> streams_;
  std::vector<Pipe> pipes_;
  Inheritance inheritance_;
  std::unique_ptr<LocalRanks> ranks_;
  std::vector<Message> last_;  // kFinished, to be said after all output
};

absl::StatusOr<launch::ToAgent> Agent::AwaitMessage(const HostShare* share) {
  while (true) {
    std::string bytes;
    RUEDA_ASSIGN_OR_RETURN(const bool taken, stream_.Take(&bytes));
    if (taken) {
      launch::ToAgent message;
      RUEDA_RETURN_IF_ERROR(ReadToAgent(bytes, share, &message));
      return message;
    }
    pollfd waits[] = {{stream_.in(), POLLIN, 0},
                      {stream_.waiting_bytes() > 0 ? stream_.out() : -1, POLLOUT, 0}};
    if (poll(waits, 2, -1) < 0) continue;
    stream_.Flush();
    if (waits[0].revents != 0 && stream_.Read() == AgentStream::Got::kEnd) {
      return absl::CancelledError("ruedarun has gone");
    }
  }
}

void Agent::SendEvent(const Message& message) {
  launch::FromAgent wire;
  *wire.mutable_event() = ToWire(message);
  stream_.Send(wire);
}

void Agent::FlushAll() {
  while (stream_.waiting_bytes() > 0) {
    pollfd wait = {stream_.out(), POLLOUT, 0};
    poll(&wait, 1, -1);
    stream_.Flush();
  }
}

int Agent::Refuse(const Refused& refused) {
  launch::FromAgent message;
  message.mutable_refusal()->set_why(std::string(refused.status.message()));
  message.mutable_refusal()->set_exit_code(refused.exit_code);
  stream_.Send(message);
  FlushAll();
  return refused.exit_code;
}

int Agent::Run() {
  stream_.SendMark();
  const absl::StatusOr<std::string> host = HostIdentity();
  if (!host.ok()) return Refuse({host.status(), kCannotStart});
  launch::FromAgent hello;
  hello.mutable_hello()->set_version(VersionText());
  hello.mutable_hello()->set_host_id(*host);
  stream_.Send(hello);

  absl::StatusOr<launch::ToAgent> message = AwaitMessage(nullptr);
  if (!message.ok()) return kCannotStart;
  Refused refused = Prepare(message->order());
  if (!refused.status.ok()) return Refuse(refused);
  message = AwaitMessage(&share_);
  if (!message.ok() || !message->has_start()) return kCannotStart;
  refused = Start(message->start());
  if (!refused.status.ok()) return Refuse(refused);
  Relay();
  return 0;
}

Refused Agent::Prepare(const launch::Order& order) {
  const bool elastic = order.slots() > 0;
  share_ = {elastic ? order.slots() : order.size(),
            order.first_rank(),
            order.ranks(),
            order.host(),
            order.hosts(),
            elastic ? order.size() : 0,
            elastic ? order.slots_here() : 0};
  options_.command.assign(order.command().begin(), order.command().end());
  options_.bind = order.bind_to_core() ? LaunchOptions::Bind::kCore : LaunchOptions::Bind::kNone;
  options_.grace_seconds = order.grace_seconds();
  options_.host_timeout_seconds = order.host_timeout_seconds();
  lifeline_address_ = order.lifeline();
  options_.output_dir = order.recorder_dir();
  options_.settings = ToEnvironment(order.wanted());
  host_ = LookAtHost();
  for (auto& [name, value] : ToEnvironment(order.environment())) host_.environment[name] = value;

  if (chdir(order.directory().c_str()) != 0) {
    return {ErrnoStatus(errno, absl::StrCat("directory ", order.directory()))};
  }
  if (!options_.output_dir.empty()) {
    std::error_code error;  // if it can't be made, dumps can't be written, and say so
    std::filesystem::create_directories(options_.output_dir, error);
  }
  absl::StatusOr<std::string> program = FindProgram(options_.command.front(), host_.environment);
  if (!program.ok()) {
    return {program.status(), absl::IsNotFound(program.status()) ? kNotFound : kNotExecutable};
  }
  program_ = *std::move(program);

  absl::StatusOr<HostJob> job = MakeHostJob(order.job_id(), order.secret(), share_.size);
  if (!job.ok()) return {job.status()};
  job_ = *std::move(job);

  launch::FromAgent ready;
  ready.mutable_ready();
  job_.facts.host_name = order.host_name();
  if (share_.first == 0 || elastic) {
    absl::Status status = OpenMeeting(order, ready.mutable_ready()->mutable_meeting());
    if (!status.ok()) return {status};
  }
  stream_.Send(ready);
  return {};
}

absl::Status Agent::OpenMeeting(const launch::Order& order, launch::Meeting* meeting) {
  RUEDA_ASSIGN_OR_RETURN(const int port, FreePort());
  meeting->set_master_port(port);
  meeting->set_master_address(job_.facts.master_address);
  if (share_.hosts == 1 && share_.begins_with == 0) return absl::OkStatus();  // it needs no network
  absl::StatusOr<Interface> interface = MeetingInterface(order);
  // An elastic job on a machine without a network, under several names, has loopback.
  if (!interface.ok() && share_.begins_with > 0 && order.lifeline().empty()) {
    interface = FindInterface("lo");
  }
  RUEDA_RETURN_IF_ERROR(interface.status());
  RUEDA_ASSIGN_OR_RETURN(door_, ListenTcp(interface->address));
  RUEDA_ASSIGN_OR_RETURN(*meeting->mutable_address(), TcpAddressOf(door_));
  meeting->set_master_address(interface->address);
  job_.facts.meeting_fd = door_.get();
  return absl::OkStatus();
}

absl::Status Agent::OpenPipes() {
  const UniqueFd nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  RUEDA_ASSIGN_OR_RETURN(streams_, OpenInputs(share_.ranks, nothing.get()));
  for (int i = 0; i < share_.ranks; ++i) {
    for (const bool is_error : {false, true}) {
      int fds[2];
      if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "making a pipe");
      RankStreams& streams = streams_[static_cast<size_t>(i)];
      (is_error ? streams.err : streams.out).reset(fds[1]);
      fcntl(fds[0], F_SETFL, O_NONBLOCK);
      pipes_.push_back({share_.first + i, is_error, UniqueFd(fds[0])});
    }
  }
  return absl::OkStatus();
}

Refused Agent::Start(const launch::Meeting& meeting) {
  job_.facts.meeting_address = meeting.address();
  job_.facts.master_address = meeting.master_address();
  job_.facts.master_port = meeting.master_port();
  absl::StatusOr<std::vector<RankPlan>> plans = PlaceRanks(options_, host_, job_.facts, share_);
  if (!plans.ok()) return {plans.status(), kUsage};
  absl::StatusOr<Inheritance> inheritance = TakeOver();
  if (!inheritance.ok()) return {inheritance.status()};
  inheritance_ = *std::move(inheritance);
  if (absl::Status status = OpenPipes(); !status.ok()) return {status};

  SpawnArgs args = MakeSpawnArgs(options_, job_.facts, inheritance_);
  args.program = program_;
  args.plans = *std::move(plans);
  args.streams = std::move(streams_);
  args.first = share_.first;
  args.elastic = share_.begins_with > 0;
  absl::StatusOr<std::unique_ptr<LocalRanks>> ranks = LocalRanks::Start(std::move(args), [&] {
    pipes_.clear();
    lifeline_.Close();
    stream_.CloseBoth();
  });
  if (!ranks.ok()) return {ranks.status()};
  ranks_ = *std::move(ranks);
  lifeline_.Open(lifeline_address_, options_.host_timeout());
  // The supervisor and the ranks have these.
  streams_.clear();
  job_.secret.reset();
  job_.board.reset();
  door_.reset();
  return {};
}

void Agent::Relay() {
  std::vector<pollfd> waits;
  if (!TakeEvents()) OnRuedarunGone();  // what came with the start
  while (!ranks_->gone()) Step(&waits);
  ReadLast();
  for (const Message& message : last_) SendEvent(message);
  FlushAll();
}

void Agent::Step(std::vector<pollfd>* waits) {
  const bool may_read = stream_.waiting_bytes() < kOutputBytesMax;
  *waits = {{stream_.in(), POLLIN, 0},
            {stream_.waiting_bytes() > 0 ? stream_.out() : -1, POLLOUT, 0},
            {inheritance_.signals.get(), POLLIN, 0},
            {lifeline_.fd(), lifeline_.events(), 0}};
  ranks_->AddWaits(waits);
  const size_t first_pipe = waits->size();
  for (const Pipe& pipe : pipes_) waits->push_back({may_read ? pipe.fd.get() : -1, POLLIN, 0});
  if (poll(waits->data(), waits->size(), -1) < 0) return;
  stream_.Flush();
  if ((*waits)[0].revents != 0) OnStream();
  if ((*waits)[2].revents != 0) OnSignals();
  if ((*waits)[3].revents != 0 && !lifeline_.Advance()) OnRuedarunGone();
  ranks_->Advance(*waits);
  PassMessages();
  for (size_t i = pipes_.size(); i-- > 0;) {
    if ((*waits)[first_pipe + i].revents != 0 && !ReadPipe(i)) {
      pipes_.erase(pipes_.begin() + static_cast<ptrdiff_t>(i));
    }
  }
}

void Agent::OnStream() {
  const bool gone = stream_.Read() == AgentStream::Got::kEnd;
  if (!TakeEvents() || gone) OnRuedarunGone();
}

// False: whoever speaks there is not ruedarun.
bool Agent::TakeEvents() {
  while (true) {
    std::string bytes;
    const absl::StatusOr<bool> taken = stream_.Take(&bytes);
    if (taken.ok() && !*taken) return true;
    launch::ToAgent message;
    if (!taken.ok() || !ReadToAgent(bytes, &share_, &message).ok() || !message.has_event()) {
      return false;
    }
    ranks_->Send(FromWire(message.event()));
  }
}

void Agent::OnRuedarunGone() {
  lifeline_.Close();
  stream_.CloseOut();
  ranks_->Abandon();
}

// From a batch system, to everything of the job on this host. Most tell all hosts so; ruedarun
// hears of those that end a job, for the other ones.
void Agent::OnSignals() {
  while (const int signal = NextSignal(inheritance_.signals.get())) {
    const Message message = {MessageKind::kSignal, -1, 0, signal};
    ranks_->Send(message);
    if (EndsJob(signal)) SendEvent(message);
  }
}

void Agent::PassMessages() {
  Message message;
  while (ranks_->Receive(&message)) {
    if (message.kind == MessageKind::kFinished) {
      last_.push_back(message);
    } else if (message.kind == MessageKind::kLost) {
      launch::FromAgent wire;
      wire.set_loss(ranks_->loss());
      stream_.Send(wire);
    } else {
      SendEvent(message);
    }
  }
}

bool Agent::ReadPipe(size_t pipe) {
  char buffer[kOutputBytes];
  const ssize_t n = read(pipes_[pipe].fd.get(), buffer, sizeof buffer);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  launch::FromAgent message;
  message.mutable_output()->set_rank(pipes_[pipe].rank);
  message.mutable_output()->set_is_error(pipes_[pipe].is_error);
  message.mutable_output()->set_data(buffer, static_cast<size_t>(n));
  stream_.Send(message);
  return true;
}

// All ranks are gone: what they left in the pipes. Somebody may still hold these, but nobody who
// could write.
void Agent::ReadLast() {
  for (size_t i = 0; i < pipes_.size(); ++i) {
    int left = 0;
    while (ioctl(pipes_[i].fd.get(), FIONREAD, &left) == 0 && left > 0 && ReadPipe(i)) {
    }
  }
}

}  // namespace

int RunAgent() {
  // What libraries print must not get between the messages.
  UniqueFd in(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  UniqueFd out(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!in.valid() || !out.valid() || !nothing.valid()) return kCannotStart;
  dup2(nothing.get(), STDIN_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  return Agent(AgentStream(std::move(in), std::move(out))).Run();
}

}  // namespace rueda
