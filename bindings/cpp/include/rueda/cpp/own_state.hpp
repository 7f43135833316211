// Rueda's C++ API: state that one rank has alone, in elastic jobs. Included by rueda/elastic.hpp,
// which says how to use it.
#ifndef RUEDA_CPP_OWN_STATE_HPP_
#define RUEDA_CPP_OWN_STATE_HPP_

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/cpp/calls.hpp"
#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/fingerprint.hpp"
#include "rueda/cpp/job.hpp"
#include "rueda/cpp/movement.hpp"
#include "rueda/cpp/objects.hpp"
#include "rueda/cpp/options.hpp"
#include "rueda/rueda.h"

namespace rueda {
namespace detail {

template <typename T>
concept Plain = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_const_v<T>;

template <typename T>
concept PlainVector = Plain<typename T::value_type> && requires(T& value) {
  value.resize(size_t{1});
  { value.data() } -> std::convertible_to<typename T::value_type*>;
};

// Says itself which bytes it is; two that are alike may say different ones.
template <typename T>
concept Serialized = requires(T& value) {
  value.from_bytes(value.to_bytes());
};

// What a State takes.
template <typename T>
concept Kept = Plain<T> || PlainVector<T> || Serialized<T>;

// Numbers and other trivially copyable values, vectors and strings of these, and what has
// to_bytes() and from_bytes() itself, as bytes.
template <typename T>
std::string ToBytes(const T& value) {
  if constexpr (requires { value.to_bytes(); }) {
    return value.to_bytes();
  } else if constexpr (std::is_trivially_copyable_v<T>) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  } else {
    return std::string(reinterpret_cast<const char*>(value.data()),
                       value.size() * sizeof(typename T::value_type));
  }
}

// Thrown where a copy is not as it was kept. It ends this rank, and others go on.
[[noreturn]] inline void ThrowDamaged(const std::string& what) {
  throw Error(RUEDA_DATA_LOSS, "elastic state: this rank's copy of " + what +
                                   " is damaged: its memory has been written to since the commit. "
                                   "It ends, and others go on from theirs");
}

template <typename T>
void FromBytes(std::string_view bytes, T* value) {
  if constexpr (requires { value->from_bytes(bytes); }) {
    value->from_bytes(bytes);
  } else if constexpr (std::is_trivially_copyable_v<T>) {
    std::memcpy(value, bytes.data(), sizeof *value);
  } else {
    value->resize(bytes.size() / sizeof(typename T::value_type));
    if (!bytes.empty()) std::memcpy(value->data(), bytes.data(), bytes.size());
  }
}

// The first `count` as the input of an operation.
inline std::span<const uint8_t> BytesIn(std::string_view bytes, size_t count) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), count};
}

// Bytes that stay as long as there is a copy of this.
struct SharedBytes {
  SharedBytes() = default;
  explicit SharedBytes(std::string bytes) {
    const auto kept = std::make_shared<const std::string>(std::move(bytes));
    view = *kept;
    owner = kept;
  }
  // From rueda_mem_alloc, rueda_mem_open or rueda_mem_kept.
  SharedBytes(const void* memory, size_t bytes)
      : view(static_cast<const char*>(memory), bytes), owner(memory, [](const void* pointer) {
          static_cast<void>(rueda_mem_free(const_cast<void*>(pointer)));
        }) {}

  std::string_view view;
  std::shared_ptr<const void> owner;
};

// Nobody has it. Ranks that come may. Thrown on all ranks alike.
class PartMissingError : public Error {
 public:
  using Error::Error;
  bool was_on_its_way = false;  // at the source: partners have what was kept before
};

// The ranks that `function` tells, such as rueda_leaving_ranks.
template <typename Fn>
std::vector<int> RanksOf(Fn&& function) {
  std::vector<int> ranks(static_cast<size_t>(rueda::size()));
  size_t count = 0;
  Check(function(Current(), ranks.data(), ranks.size(), &count));
  ranks.resize(std::min(count, ranks.size()));
  return ranks;
}

inline void AppendNumber(uint64_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof number);
}

inline uint64_t TakeNumber(std::string_view* bytes) {
  uint64_t number = 0;
  std::memcpy(&number, bytes->data(), sizeof number);
  bytes->remove_prefix(sizeof number);
  return number;
}

inline void AppendNumbers(const std::vector<int>& numbers, std::string* bytes) {
  AppendNumber(numbers.size(), bytes);
  *bytes += ToBytes(numbers);
}

inline std::vector<int> TakeNumbers(std::string_view* bytes) {
  std::vector<int> numbers;
  const size_t size = TakeNumber(bytes) * sizeof(int);
  FromBytes(bytes->substr(0, size), &numbers);
  bytes->remove_prefix(size);
  return numbers;
}

}  // namespace detail
}  // namespace rueda

namespace rueda::elastic {

/// \addtogroup cpp_elastic
/// @{

/// What may be lost at once of those that have something alone.
enum class Redundancy {
  /// Ranks, but no host.
  kRank,
  /// A host, too: each commit then crosses the network.
  kHost,
};

/// What Sharded and Own have in common: state that this rank has alone, and of which each commit is
/// kept where it outlives this rank. It outlives the State that it is given to.
///
/// Each exchange gives the contents of all ranks a number, under which a rank keeps its own in
/// memory that the other ranks of its host open, and the process that has started it. Where there
/// is no such rank that stays, or where a whole host may be lost, a partner gets a copy. It ends
/// where all wait for all: once any rank has come behind that, all have kept that number, and
/// partners have the number before. So all can go back to what any of them may go back to: to the
/// one before, until the next exchange is over. What all have dropped is written over by the next.
class OwnState {
 public:
  OwnState(const OwnState&) = delete;
  OwnState& operator=(const OwnState&) = delete;
  virtual ~OwnState() = default;

  /// For State. Collective: keeps the contents, where they outlive this rank. `in_background`: what
  /// partners get is on its way then, until the next exchange begins. RUEDA_RESOURCE_EXHAUSTED on
  /// all ranks: one has too little memory; what was kept before remains.
  void Exchange(const std::string& name, bool in_background = false);
  /// For State. Whether a lost host may take with it what was exchanged last, so that all go back
  /// to what they had before. On all ranks alike after an Exchange.
  bool is_on_its_way() const { return sending_ != nullptr; }
  /// For State: the number of what Restore goes back to.
  uint64_t kept() const { return kept_; }
  /// For State: the contents are what Restore goes back to. Those go to which no rank may go back.
  void Keep();
  /// For State: goes back to what was kept. RUEDA_FAILED_PRECONDITION in a forked child.
  void Restore() {
    try {
      AwaitPartners();
    } catch (const Error&) {  // what has not arrived is not here
    }
    Load(kept_);
  }
  /// For State: what was kept before, under this number, is what was kept last. Restore follows.
  void SetKept(uint64_t number) { kept_ = number; }
  /// For State. Collective: shares out anew what all ranks of then had when the source's contents
  /// were kept; an Exchange must follow. RUEDA_DATA_LOSS on all ranks: of some rank of then neither
  /// its part nor a copy is left.
  void Sync(int source, const std::string& name);

 protected:
  /// The parts of one number that this rank has.
  struct Version {
    uint64_t membership = 0;
    int rank = 0;  ///< this rank's of then; -1: it was none
    int size = 1;
    std::map<int, detail::SharedBytes> parts;  ///< by the rank whose they are
    std::map<int, uint64_t> sums;              ///< by rank, checksums
    detail::SharedBytes room;                  ///< from rueda_mem_alloc, where this rank's is
    std::set<int> on_their_way = {};           ///< ranks of which partners may not have got it
  };

  explicit OwnState(Redundancy redundancy) : redundancy_(redundancy) {}

  /// The contents, in `scratch` or where they are: they are copied before they change.
  virtual std::string_view Pack(std::string* scratch) = 0;
  /// Lets them be what Pack has returned on that rank of so many.
  virtual void Unpack(std::string_view part, int rank, int size) = 0;
  /// Collective: shares out anew what as many ranks had as there are holders, which have the parts;
  /// -1: nobody has, and it is what it was made with. `version`: what this rank has of it; null: it
  /// is new.
  virtual void Take(const Version* version, const std::vector<int>& holders,
                    const std::string& name) = 0;

 private:
  // What a rank tells the others.
  struct Brings {
    bool has_room = true;
    bool waits = false;  // for its partner
    uint64_t which = 0;  // of this rank's OwnStates
    uint64_t bytes = 0;
    uint64_t sum = 0;
    uint64_t offset = 0;  // of its part, for its neighbors
    uint64_t newest = 0;
    uint64_t kept = 0;
    std::vector<int> neighbors;
    std::vector<int> leaving;  // ranks that it knows to leave
    std::string host;
  };
  // What is on its way to partners.
  struct Sending {
    uint64_t number = 0;  // of the version
    detail::SharedBytes own;
    std::vector<std::pair<int, size_t>> coming;  // whose parts this rank gets, and their bytes
    detail::Flight flight;                       // ends first
  };
  struct Offer {
    bool is_there = false;
    int rank = 0;
    int size = 0;
    std::set<int> parts;
  };

  void Load(uint64_t number) {
    if (getpid() != process_) {  // which does not have the memory of the versions
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "elastic state: a forked child does not have what its parent has kept");
    }
    const Version& version = versions_.at(number);
    Unpack(version.parts.at(version.rank).view, version.rank, version.size);
    current_ = number;
  }
  detail::SharedBytes RoomFor(size_t bytes);
  void Send(const detail::SharedBytes& own, const std::vector<int>& partners,
            const std::vector<Brings>& brings, const std::string& name, int priority);
  // Until what is on its way is there.
  void AwaitPartners();
  // For which memory there was no room; "".
  std::string WhyNotArrived() {
    try {
      AwaitPartners();
      return "";
    } catch (const Error& error) {
      if (error.status() != RUEDA_RESOURCE_EXHAUSTED) throw;
      return std::string("for copies of others' parts: ") + error.what();
    }
  }
  void Drop(std::map<uint64_t, Version>::iterator it);
  static std::vector<Brings> Tell(const Brings& mine, const std::string& name);
  static std::vector<Offer> TellOffer(const Version* version, const std::string& name);
  // Adds those of these parts that ranks have kept on this host that are gone.
  static void TakeOfTheGone(const std::vector<int>& missing, const std::string& name,
                            uint64_t number, Version* version);
  static std::vector<int> HoldersOf(const std::vector<Offer>& offers, int size);
  static std::vector<int> Missing(const std::vector<int>& holders);
  static std::vector<int> IntactHolders(const Version* version, std::vector<Offer> offers, int size,
                                        const std::string& name);
  // Of each rank the one that gets its copy, none that leaves; -1: it needs none, or there is no
  // other.
  std::vector<int> Partners(const std::vector<Brings>& brings) const;

  inline static std::atomic<uint64_t> made_ = 0;

  const Redundancy redundancy_;
  const uint64_t which_ = made_++;
  const pid_t process_ = getpid();
  std::map<uint64_t, Version> versions_;
  uint64_t current_ = 0;  // the number of what the contents are, or come from
  uint64_t kept_ = 0;     // what Restore goes back to
  uint64_t newest_ = 0;
  uint64_t kept_by_all_ = 0;                // by each of them, as of the last exchange; or more
  std::vector<detail::SharedBytes> spare_;  // rooms that no version has
  std::unique_ptr<Sending> sending_;
};

inline std::vector<OwnState::Brings> OwnState::Tell(const Brings& mine, const std::string& name) {
  std::string words;
  for (const uint64_t word : {uint64_t{mine.has_room}, uint64_t{mine.waits}, mine.which, mine.bytes,
                              mine.sum, mine.offset, mine.newest, mine.kept}) {
    detail::AppendNumber(word, &words);
  }
  detail::AppendNumbers(mine.neighbors, &words);
  detail::AppendNumbers(mine.leaving, &words);
  std::vector<Brings> all;
  for (const std::string& each : allgather_object(words + mine.host, {.name = name})) {
    std::string_view rest = each;
    Brings& one = all.emplace_back();
    one.has_room = detail::TakeNumber(&rest) != 0;
    one.waits = detail::TakeNumber(&rest) != 0;
    one.which = detail::TakeNumber(&rest);
    one.bytes = detail::TakeNumber(&rest);
    one.sum = detail::TakeNumber(&rest);
    one.offset = detail::TakeNumber(&rest);
    one.newest = detail::TakeNumber(&rest);
    one.kept = detail::TakeNumber(&rest);
    one.neighbors = detail::TakeNumbers(&rest);
    one.leaving = detail::TakeNumbers(&rest);
    one.host = rest;
  }
  return all;
}

inline void OwnState::TakeOfTheGone(const std::vector<int>& missing, const std::string& name,
                                    uint64_t number, Version* version) {
  for (const int rank : missing) {
    const void* memory = nullptr;
    size_t bytes = 0;
    uint64_t sum = 0;
    const rueda_status status = rueda_mem_kept(detail::Current(), name.c_str(), number,
                                               version->membership, rank, &memory, &bytes, &sum);
    if (status == RUEDA_NOT_FOUND) continue;
    detail::Check(status);
    version->parts[rank] = detail::SharedBytes(memory, bytes);
    version->sums[rank] = sum;
  }
}

inline std::vector<OwnState::Offer> OwnState::TellOffer(const Version* version,
                                                        const std::string& name) {
  std::vector<int> mine;
  if (version != nullptr) {
    mine = {version->rank, version->size};
    for (const auto& [rank, part] : version->parts) mine.push_back(rank);
  }
  std::vector<Offer> offers;
  for (const std::string& each : allgather_object(detail::ToBytes(mine), {.name = name})) {
    std::vector<int> words;
    detail::FromBytes(each, &words);
    Offer& offer = offers.emplace_back();
    if (words.empty()) continue;
    offer = {true, words[0], words[1], std::set<int>(words.begin() + 2, words.end())};
  }
  return offers;
}

// By part, the rank that has it: whose it is, before one that has a copy; -1: none.
inline std::vector<int> OwnState::HoldersOf(const std::vector<Offer>& offers, int size) {
  std::vector<int> holders(static_cast<size_t>(size), -1);
  for (int part = 0; part < size; ++part) {
    int& holder = holders[static_cast<size_t>(part)];
    for (size_t rank = 0; rank < offers.size(); ++rank) {
      const Offer& offer = offers[rank];
      if (!offer.is_there || !offer.parts.contains(part)) continue;
      if (holder < 0 || offer.rank == part) holder = static_cast<int>(rank);
    }
  }
  return holders;
}

inline std::vector<int> OwnState::Missing(const std::vector<int>& holders) {
  std::vector<int> missing;
  for (size_t part = 0; part < holders.size(); ++part) {
    if (holders[part] < 0) missing.push_back(static_cast<int>(part));
  }
  return missing;
}

// Collective: of parts that are as they were kept.
inline std::vector<int> OwnState::IntactHolders(const Version* version, std::vector<Offer> offers,
                                                int size, const std::string& name) {
  while (true) {
    std::vector<int> holders = HoldersOf(offers, size);
    std::vector<int> damaged;
    for (int part = 0; version != nullptr && part < size; ++part) {
      if (holders[static_cast<size_t>(part)] != rueda::rank()) continue;
      if (detail::FingerprintOf(version->parts.at(part).view) == version->sums.at(part)) continue;
      damaged.push_back(part);
    }
    const std::vector<std::string> all =
        allgather_object(detail::ToBytes(damaged), {.name = name + ".damaged"});
    bool is_done = true;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      detail::FromBytes(all[rank], &damaged);
      for (const int part : damaged) offers[rank].parts.erase(part);
      is_done &= damaged.empty();
    }
    if (is_done) return holders;
  }
}

inline std::vector<int> OwnState::Partners(const std::vector<Brings>& brings) const {
  std::set<int> leaving;
  std::vector<std::string> order;  // of hosts
  std::map<std::string, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < brings.size(); ++rank) {
    leaving.insert(brings[rank].leaving.begin(), brings[rank].leaving.end());
    std::vector<int>& ranks = ranks_of[brings[rank].host];
    if (ranks.empty()) order.push_back(brings[rank].host);
    ranks.push_back(static_cast<int>(rank));
  }
  std::vector<int> partners(brings.size(), -1);
  for (size_t host = 0; host < order.size(); ++host) {
    const std::vector<int>& own = ranks_of[order[host]];
    std::vector<int> far;
    for (size_t next = 1; next < order.size() && far.empty(); ++next) {
      for (const int rank : ranks_of[order[(host + next) % order.size()]]) {
        if (!leaving.contains(rank)) far.push_back(rank);
      }
    }
    for (size_t at = 0; at < own.size(); ++at) {
      const size_t rank = static_cast<size_t>(own[at]);
      const std::vector<int>& neighbors = brings[rank].neighbors;
      const bool is_opened = std::any_of(neighbors.begin(), neighbors.end(),
                                         [&](int other) { return !leaving.contains(other); });
      int& partner = partners[rank];
      for (size_t next = 1; next < own.size() && partner < 0 && !is_opened; ++next) {
        const int near = own[(at + next) % own.size()];
        if (!leaving.contains(near)) partner = near;
      }
      const bool crosses = redundancy_ == Redundancy::kHost || (partner < 0 && !is_opened);
      if (!far.empty() && crosses) partner = far[at % far.size()];
    }
  }
  return partners;
}

// It is spare until a version has it: after a loss none is freed before the regroup, as that waits
// for ranks that are stopped.
inline detail::SharedBytes OwnState::RoomFor(size_t bytes) {
  constexpr size_t kWaste = 65'536;
  const auto it = std::find_if(spare_.begin(), spare_.end(), [&](const detail::SharedBytes& room) {
    return bytes <= room.view.size() && room.view.size() <= 2 * bytes + kWaste;
  });
  detail::SharedBytes room;
  if (it != spare_.end()) room = *it;
  spare_.clear();
  if (room.owner == nullptr) {
    const size_t size = std::max<size_t>(bytes, 1);
    void* memory = nullptr;
    detail::Check(rueda_mem_alloc(detail::Current(), size, &memory));
    room = detail::SharedBytes(memory, size);
  }
  spare_ = {room};
  return room;
}

// Borrows the memory of `own`.
inline void OwnState::Send(const detail::SharedBytes& own, const std::vector<int>& partners,
                           const std::vector<Brings>& brings, const std::string& name,
                           int priority) {
  const int rank = rueda::rank(), partner = partners[static_cast<size_t>(rank)];
  int64_t bytes = partner < 0 ? 0 : static_cast<int64_t>(own.view.size());
  std::vector<int64_t> splits(brings.size(), 0);
  if (partner >= 0) splits[static_cast<size_t>(partner)] = bytes;
  const rueda_tensor part = {
      const_cast<char*>(own.view.data()), {RUEDA_CPU, 0}, 1, RUEDA_UINT8, &bytes, nullptr, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLTOALL;
  operation.name = name.c_str();
  operation.input = &part;
  operation.splits = splits.data();
  operation.split_count = splits.size();
  operation.priority = priority;
  auto sending = std::make_unique<Sending>();
  sending->number = newest_;
  sending->own = own;
  for (size_t other = 0; other < brings.size(); ++other) {
    if (partners[other] != rank) continue;
    sending->coming.emplace_back(static_cast<int>(other), brings[other].bytes);
  }
  sending->flight.Start({&operation, 1}, detail::When::kInBackground);
  sending_ = std::move(sending);
}

inline void OwnState::AwaitPartners() {
  const std::unique_ptr<Sending> sending = std::move(sending_);
  if (sending == nullptr) return;
  const detail::Flight& flight = sending->flight;
  flight.Wait();
  const std::shared_ptr<rueda_result> received(new rueda_result(RUEDA_RESULT_INIT),
                                               [](rueda_result* result) {
                                                 rueda_result_free(result);
                                                 delete result;
                                               });
  detail::Check(rueda_result_take(flight.context, flight.handle, 0, received.get()));
  const char* next = static_cast<const char*>(received->tensor.data);
  for (const auto& [rank, bytes] : sending->coming) {
    detail::SharedBytes& part = versions_.at(sending->number).parts[rank];
    part.view = {next, bytes};
    part.owner = received;
    next += bytes;
  }
}

inline void OwnState::Exchange(const std::string& name, bool in_background) {
  // One that comes later gets what there is with the first sync.
  if (rueda::membership() == 0) return;
  Brings mine;
  detail::SharedBytes room, own;
  try {
    AwaitPartners();
    std::string scratch;
    const std::string_view part = Pack(&scratch);
    mine.bytes = part.size();
    room = RoomFor(part.size());
    std::copy(part.begin(), part.end(), const_cast<char*>(room.view.data()));
    detail::Check(rueda_mem_offset(room.view.data(), &mine.offset));
    own = room;
    own.view = own.view.substr(0, part.size());
    mine.sum = detail::FingerprintOf(own.view);
  } catch (const std::bad_alloc&) {
    mine.has_room = false;
  } catch (const Error& error) {
    if (error.status() != RUEDA_RESOURCE_EXHAUSTED) throw;
    mine.has_room = false;
  }
  mine.waits = !in_background;
  mine.which = which_;
  mine.newest = newest_;
  mine.kept = kept_;
  mine.neighbors = detail::RanksOf(rueda_neighbor_ranks);
  mine.leaving = detail::RanksOf(rueda_leaving_ranks);
  const char* const given = std::getenv("HOROVOD_HOSTNAME");
  char host[256] = "";
  if (given == nullptr) gethostname(host, sizeof host - 1);
  mine.host = given != nullptr ? given : host;
  const std::vector<Brings> brings = Tell(mine, name + ".sizes");
  for (size_t rank = 0; rank < brings.size(); ++rank) {
    if (brings[rank].has_room) continue;
    throw Error(RUEDA_RESOURCE_EXHAUSTED,
                "elastic state " + name + ": rank " + std::to_string(rank) +
                    " has no memory for its part of " + std::to_string(brings[rank].bytes) +
                    " bytes, or for copies of others'; what was kept before remains");
  }
  const std::vector<int> partners = Partners(brings);
  const int rank = rueda::rank();
  for (const Brings& each : brings) newest_ = std::max(newest_, each.newest);
  ++newest_;
  const uint64_t membership = rueda::membership();
  Version version = {membership, rank, static_cast<int>(brings.size()), {}, {}, room};
  std::string why;
  for (const int neighbor : mine.neighbors) {
    const Brings& theirs = brings[static_cast<size_t>(neighbor)];
    const void* memory = nullptr;
    const rueda_status status =
        rueda_mem_open(detail::Current(), neighbor, theirs.offset, theirs.bytes, &memory);
    if (status == RUEDA_RESOURCE_EXHAUSTED) {
      why = std::string("for its neighbors' parts: ") + rueda_last_error();
      break;
    }
    detail::Check(status);
    version.parts[neighbor] = detail::SharedBytes(memory, theirs.bytes);
  }
  version.parts[rank] = own;
  for (size_t whose = 0; whose < brings.size(); ++whose) {
    version.sums[static_cast<int>(whose)] = brings[whose].sum;
  }
  std::set<int> sent;
  for (size_t whose = 0; whose < partners.size(); ++whose) {
    if (partners[whose] >= 0) sent.insert(static_cast<int>(whose));
  }
  in_background =
      std::none_of(brings.begin(), brings.end(), [](const Brings& each) { return each.waits; });
  if (in_background) version.on_their_way = sent;
  versions_[newest_] = std::move(version);
  spare_.clear();
  if (!sent.empty()) {
    // Another state's of the same name may be on its way.
    const std::string sent_as = name + ".parts." + std::to_string(brings.front().which);
    Send(own, partners, brings, sent_as, in_background ? -1 : 0);
    if (!in_background) {
      const std::string not_arrived = WhyNotArrived();
      if (why.empty()) why = not_arrived;
    }
  }
  detail::Check(rueda_mem_keep(detail::Current(), room.view.data(), mine.bytes, name.c_str(),
                               newest_, kept_by_all_, mine.sum));
  // Nobody comes behind this before all have come here.
  const std::vector<std::string> all = allgather_object(why, {.name = name + ".kept"});
  for (size_t other = 0; other < all.size(); ++other) {
    if (all[other].empty()) continue;
    (void)WhyNotArrived();
    Drop(versions_.find(newest_));
    throw Error(RUEDA_RESOURCE_EXHAUSTED,
                "elastic state " + name + ": rank " + std::to_string(other) + ": " + all[other]);
  }
  current_ = newest_;
  kept_by_all_ = kept_;
  for (const Brings& each : brings) kept_by_all_ = std::min(kept_by_all_, each.kept);
}

inline void OwnState::Drop(std::map<uint64_t, Version>::iterator it) {
  if (it->second.room.owner != nullptr) spare_.push_back(std::move(it->second.room));
  versions_.erase(it);
}

inline void OwnState::Keep() {
  if (versions_.find(current_) == versions_.end()) {  // nobody has asked the others yet
    const int rank = rueda::rank();
    std::string scratch;
    const detail::SharedBytes part{std::string(Pack(&scratch))};
    versions_[current_] = {rueda::membership(),
                           rank,
                           rueda::size(),
                           {{rank, part}},
                           {{rank, detail::FingerprintOf(part.view)}},
                           {}};
  }
  while (versions_.begin()->first < kept_by_all_) Drop(versions_.begin());
  kept_ = current_;
}

inline void OwnState::Sync(int source, const std::string& name) {
  std::string words;  // of the version that all go on from
  if (const auto it = versions_.find(current_); it != versions_.end()) {
    detail::AppendNumber(current_, &words);
    detail::AppendNumber(it->second.membership, &words);
    detail::AppendNumber(static_cast<uint64_t>(it->second.size), &words);
  }
  words = broadcast_object(words, source, {.name = name + ".number"});
  std::string_view rest = words;
  const uint64_t number = detail::TakeNumber(&rest);
  const uint64_t membership = detail::TakeNumber(&rest);
  const int size = static_cast<int>(detail::TakeNumber(&rest));
  rueda_membership info = RUEDA_MEMBERSHIP_INIT;
  detail::Check(rueda_membership_info(detail::Current(), &info));
  const bool is_new = 0 < info.survivors && info.survivors <= rueda::rank();
  const auto it = is_new ? versions_.end() : versions_.find(number);
  // One that came, and never had anything but what it was made with, has nothing of this.
  const bool has_own = it != versions_.end() && it->second.size == size;
  Version gained = {membership, -1, size, {}, {}, {}};
  Version* version = has_own ? &it->second : nullptr;
  std::vector<Offer> offers = TellOffer(version, name + ".holders");
  const std::vector<int> missing = Missing(HoldersOf(offers, size));
  if (!missing.empty() && number > 0) {
    if (version == nullptr) version = &gained;
    TakeOfTheGone(missing, name, number, version);
    offers = TellOffer(version, name + ".kept_holders");
  }
  const std::vector<int> holders = IntactHolders(version, std::move(offers), size, name);
  std::string lost;
  for (const int part : Missing(holders)) {
    lost += (lost.empty() ? "" : ", ") + std::to_string(part);
  }
  if (!lost.empty() && number > 0) {  // else it was what it was made with
    const std::string text = "elastic state " + name + ": the part of former rank " + lost +
                             " of " + std::to_string(size) +
                             " is lost or damaged, and so is every copy: begin again from a "
                             "checkpoint";
    if (!missing.empty()) {
      detail::PartMissingError error(RUEDA_DATA_LOSS, text);
      const std::vector<int> parts = Missing(holders);
      error.was_on_its_way = version != nullptr &&
                             std::includes(version->on_their_way.begin(),
                                           version->on_their_way.end(), parts.begin(), parts.end());
      throw error;
    }
    throw Error(RUEDA_DATA_LOSS, text);
  }
  if (has_own && current_ != number) Load(number);
  Take(version, holders, name);
}

/// A vector that the ranks share out. Each has one part of it, which no other rank has: elements
/// begin() to end().
///
///     rueda::elastic::Sharded<float> moments(1'000'000);
///     rueda::elastic::State state(step, weights, moments);
///     moments.local[i] = 0.9f * moments.local[i] + gradient[moments.begin() + i];
///
/// A commit copies the part into memory that the host's other ranks have open, which outlives this
/// rank. When ranks were lost or have come, the vector of the last commit is shared out anew:
/// `local`, begin() and end() have changed. If all ranks of a host were lost at once, the others
/// wait for the next one there. If the host was lost, so are the parts of its ranks, and all ranks
/// throw RUEDA_DATA_LOSS; with Redundancy::kHost that takes two hosts. A rank that is alone on its
/// host sends its part to a rank of another.
///
/// What is sent to another host is on its way when a commit returns. If the host is lost first, all
/// go back to the commit before that one.
///
/// The last commits are kept, and the next one needs room besides: three times the part's size.
/// What is sent to another host is kept there for two commits.
template <typename T>
class Sharded : public OwnState {
  static_assert(detail::Plain<T>, "elements of elastic state are copied as bytes");

 public:
  /// `total`: elements of the whole, which are zeros at first.
  explicit Sharded(size_t total, Redundancy redundancy = Redundancy::kRank)
      : OwnState(redundancy), total_(total) {
    Place(rueda::rank(), rueda::size());
  }
  /// The first element of this rank's part.
  size_t begin() const { return begin_; }
  /// The one behind its last.
  size_t end() const { return end_; }
  /// Elements of the whole.
  size_t total() const { return total_; }
  /// This rank's part, end() - begin() elements. It keeps that size.
  std::vector<T> local;

 protected:
  /// For OwnState.
  std::string_view Pack(std::string*) override {
    if (local.size() != end_ - begin_) {
      throw Error(RUEDA_INVALID_ARGUMENT, "elastic::Sharded: local has " +
                                              std::to_string(local.size()) + " elements; it has " +
                                              std::to_string(end_ - begin_));
    }
    return {reinterpret_cast<const char*>(local.data()), local.size() * sizeof(T)};
  }
  /// For OwnState.
  void Unpack(std::string_view part, int rank, int size) override {
    Place(rank, size);
    detail::FromBytes(part, &local);
  }
  /// For OwnState.
  void Take(const Version* version, const std::vector<int>& holders,
            const std::string& name) override {
    const int rank = rueda::rank(), ranks = rueda::size();
    const int size = static_cast<int>(holders.size());
    std::string sent;
    std::vector<int64_t> splits;
    for (int to = 0; to < ranks; ++to) {
      const size_t before = sent.size();
      ForOverlaps(to, ranks, size, [&](int part, size_t first, size_t begin, size_t end) {
        if (holders[static_cast<size_t>(part)] != rank) return;
        sent += version->parts.at(part).view.substr((begin - first) * sizeof(T),
                                                    (end - begin) * sizeof(T));
      });
      splits.push_back(static_cast<int64_t>(sent.size() - before));
    }
    SplitOptions options;
    options.name = name + ".shares";
    options.splits = splits;
    const auto received = alltoall(detail::BytesIn(sent, sent.size()), options);
    const char* next = reinterpret_cast<const char*>(received.tensor.data());
    Place(rank, ranks);
    for (int of = 0; of < ranks; ++of) {
      ForOverlaps(rank, ranks, size, [&](int part, size_t, size_t begin, size_t end) {
        if (holders[static_cast<size_t>(part)] != of) return;
        std::memcpy(local.data() + (begin - begin_), next, (end - begin) * sizeof(T));
        next += (end - begin) * sizeof(T);
      });
    }
  }

 private:
  size_t Bound(int rank, int size) const {
    return total_ * static_cast<size_t>(rank) / static_cast<size_t>(size);
  }
  void Place(int rank, int size) {
    begin_ = Bound(rank, size);
    end_ = Bound(rank + 1, size);
    local.assign(end_ - begin_, T{});
  }
  // Which of `parts` old parts the new one has something of, where each begins, and from where to
  // where.
  template <typename Fn>
  void ForOverlaps(int rank, int ranks, int parts, Fn&& fn) const {
    for (int part = 0; part < parts; ++part) {
      const size_t first = Bound(part, parts);
      const size_t begin = std::max(Bound(rank, ranks), first);
      const size_t end = std::min(Bound(rank + 1, ranks), Bound(part + 1, parts));
      if (begin < end) fn(part, first, begin, end);
    }
  }

  const size_t total_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

/// A value that only this rank has, such as the place in its file. A commit copies it to where it
/// outlives this rank, as of Sharded.
///
///     rueda::elastic::Own<int64_t> line(0);
///     rueda::elastic::State state(step, weights, line);
///     ++line.value;
///
/// After a loss it is as in the last commit; what a lost rank had is in `inherited` of one of the
/// others.
template <typename T>
class Own : public OwnState {
  static_assert(detail::Kept<T>,
                "elastic state is of values that are copied as bytes, of vectors and strings of "
                "such, or of what has to_bytes() and from_bytes()");

 public:
  /// Of a type that State takes, too.
  explicit Own(T initial, Redundancy redundancy = Redundancy::kRank)
      : OwnState(redundancy), value(std::move(initial)) {}
  /// It may be changed.
  T value;
  /// Those of ranks that are gone, which this rank has got. The program takes them over, and clears
  /// it.
  std::vector<T> inherited;

 protected:
  /// For OwnState.
  std::string_view Pack(std::string* scratch) override {
    AddTo(value, scratch);
    for (const T& each : inherited) AddTo(each, scratch);
    return *scratch;
  }
  /// For OwnState.
  void Unpack(std::string_view part, int, int) override {
    inherited = ValuesOf(part);
    value = std::move(inherited.front());
    inherited.erase(inherited.begin());
  }
  /// For OwnState.
  void Take(const Version* version, const std::vector<int>& holders, const std::string&) override {
    if (version == nullptr) return;
    for (size_t part = 0; part < holders.size(); ++part) {
      const int whose = static_cast<int>(part);
      if (holders[part] != rueda::rank() || whose == version->rank) continue;
      for (T& each : ValuesOf(version->parts.at(whose).view)) inherited.push_back(std::move(each));
    }
  }

 private:
  static void AddTo(const T& value, std::string* bytes) {
    const std::string own = detail::ToBytes(value);
    detail::AppendNumber(own.size(), bytes);
    *bytes += own;
  }
  static std::vector<T> ValuesOf(std::string_view bytes) {
    std::vector<T> values;
    while (!bytes.empty()) {
      const size_t size = detail::TakeNumber(&bytes);
      detail::FromBytes(bytes.substr(0, size), &values.emplace_back());
      bytes.remove_prefix(size);
    }
    return values;
  }
};

/// @}

}  // namespace rueda::elastic

#endif  // RUEDA_CPP_OWN_STATE_HPP_
