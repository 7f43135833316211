// Reductions over pretended hosts: threads of one process, each with its own view of its host's
// shared memory and its own module's communicators, over loopback.
#include "ops/hierarchical/hierarchical_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "controller/rendezvous/lane_connector.h"
#include "ops/kernels/reduce.h"
#include "test/ops/backend/bucket_operations.h"
#include "test/ops/backend/memory_store.h"
#include "test/ops/shm/host.h"
#include "test/support/float16.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

// Hosts of so many ranks each, in blocks.
class Hosts {
 public:
  explicit Hosts(const std::vector<int>& sizes) {
    Rank next = 0;
    for (size_t host = 0; host < sizes.size(); ++host) {
      std::vector<Rank> ranks;
      for (int local = 0; local < sizes[host]; ++local) {
        ranks.push_back(next++);
        host_of_.push_back(static_cast<int>(host));
        local_of_.push_back(local);
      }
      hosts_.push_back(std::make_unique<Host>(ranks));
    }
  }

  int size() const { return static_cast<int>(host_of_.size()); }
  int hosts() const { return static_cast<int>(hosts_.size()); }
  // What shares memory on a rank's host.
  ShmBackend BackendOf(Rank rank) {
    Host& there = host(host_of(rank));
    std::vector<Rank> ranks;
    std::vector<std::shared_ptr<SharedMemory>> memories;
    for (Rank each = 0; each < size(); ++each) {
      if (host_of(each) != host_of(rank)) continue;
      ranks.push_back(each);
      memories.push_back(there.arena(local_of(each)).memory());
    }
    return {&there.segment(),
            &there.neighbours(local_of(rank)),
            ranks,
            memories,
            {std::shared_ptr<void>(), &there.arena(local_of(rank))}};
  }

  Host& host(int i) { return *hosts_[static_cast<size_t>(i)]; }
  int host_of(Rank rank) const { return host_of_[static_cast<size_t>(rank)]; }
  int local_of(Rank rank) const { return local_of_[static_cast<size_t>(rank)]; }
  const std::shared_ptr<MemoryStore>& store() { return store_; }

  std::vector<Rank> Everybody() const {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < size(); ++rank) ranks.push_back(rank);
    return ranks;
  }

 private:
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<int> host_of_;
  std::vector<int> local_of_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
};

struct Setting {
  size_t block_bytes = 0;
  bool narrow = true;
  Nanos timeout = 20 * kSecond;
  SetId set = kWorldSet;
  uint32_t generation = 0;
};

// Whether this run is over sockets of our own; else it is over Gloo.
bool OverSockets() {
  const char* const cross = getenv("TEST_CROSS");
  return cross != nullptr && strcmp(cross, "sockets") == 0;
}

// What a member's communicator wants to be woken for.
class Sockets final : public WaitSet {
 public:
  absl::Status Watch(int fd) override {
    epoll_event event = {};
    event.events = EPOLLIN;
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), 0);
    return absl::OkStatus();
  }
  void Unwatch(int fd) override {
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr), 0);
  }
  int fd() const { return epoll_.get(); }

 private:
  const UniqueFd epoll_{epoll_create1(EPOLL_CLOEXEC)};
};

// One rank's communicator.
class Member {
 public:
  Member(Hosts& hosts, Rank rank, const std::vector<Rank>& ranks, const Setting& setting = {})
      : host_(hosts.host(hosts.host_of(rank))),
        local_(hosts.local_of(rank)),
        inside_(hosts.BackendOf(rank)) {
    GlooOptions options;
    options.job = "test";
    options.store = hosts.store();
    options.module_directory = RUEDA_TEST_MODULE_DIRECTORY;
    options.timeout = setting.timeout;
    options.wake = [this] {
      std::atomic_thread_fence(std::memory_order_seq_cst);
      host_.neighbours(local_).WakeIdle(local_);
    };
    across_ = std::make_unique<GlooBackend>(std::move(options));
    HierarchicalOptions hierarchical;
    hierarchical.narrow = setting.narrow;
    hierarchical.block_bytes = setting.block_bytes;
    if (OverSockets()) {
      hierarchical.connector = &connector_;
      hierarchical.wait_set = &sockets_;
    }
    backend_ = std::make_unique<HierarchicalBackend>(&inside_, across_.get(), hierarchical);
    Members members;
    members.set = setting.set;
    members.generation = setting.generation;
    members.ranks = ranks;
    members.self = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    members.one_host = false;
    for (const Rank each : ranks) members.hosts.push_back(hosts.host_of(each));
    EXPECT_TRUE(backend_->Viable(members).ok()) << backend_->Viable(members);
    absl::StatusOr<std::unique_ptr<Communicator>> made = backend_->Connect(members);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) communicator_ = *std::move(made);
  }
  Communicator* communicator() { return communicator_.get(); }

  absl::Status Execute(const BucketOperation& operation) {
    communicator_->Start(operation);
    return host_.Finish(local_, communicator_.get(), sockets_.fd());
  }
  // Whether something that it watches would wake the engine.
  bool IsWoken() const {
    pollfd wait = {sockets_.fd(), POLLIN, 0};
    return poll(&wait, 1, 0) > 0;
  }
  // Closes its connections.
  void Leave() { communicator_.reset(); }

 private:
  Host& host_;
  const int local_;
  ShmBackend inside_;
  Sockets sockets_;
  LaneConnector connector_{SessionScope{"a secret of the test's", "test"}, "127.0.0.1"};
  std::unique_ptr<GlooBackend> across_;
  std::unique_ptr<HierarchicalBackend> backend_;
  std::unique_ptr<Communicator> communicator_;
};

// Runs body(member, index) on a thread for each of `ranks`. As in a job, nobody goes before all are
// done.
void RunMembers(Hosts& hosts, const std::vector<Rank>& ranks, const Setting& setting,
                const std::function<void(Member&, int)>& body) {
  std::barrier all(static_cast<std::ptrdiff_t>(ranks.size()));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      Member member(hosts, ranks[i], ranks, setting);
      body(member, static_cast<int>(i));
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Values in whose sums the order matters.
float Number(int member, int64_t i) {
  std::minstd_rand random(static_cast<uint32_t>(i * 64 + member + 1));
  random.discard(3);
  return std::ldexp(static_cast<float>(random() % 65'536) / 65'536 - 0.5f,
                    static_cast<int>(random() % 21) - 10);
}

// The sum of the hosts' sums, in order, without those who are absent.
float HostsSum(const Hosts& hosts, const std::vector<Rank>& ranks, const std::vector<int>& absent,
               int64_t i) {
  float total = 0;
  bool first_host = true;
  for (int host = 0; host < hosts.hosts(); ++host) {
    float sum = 0;
    bool first = true;
    for (size_t member = 0; member < ranks.size(); ++member) {
      const int index = static_cast<int>(member);
      if (hosts.host_of(ranks[member]) != host) continue;
      if (std::find(absent.begin(), absent.end(), index) != absent.end()) continue;
      sum = first ? Number(index, i) : sum + Number(index, i);
      first = false;
    }
    if (first) continue;
    total = first_host ? sum : total + sum;
    first_host = false;
  }
  return total;
}

// Sums of float32, of which every bit must be right, in one operation after the other.
void CheckSums(Hosts& hosts, const std::vector<Rank>& ranks, const std::vector<int>& absent,
               const Setting& setting, const std::vector<int64_t>& sizes) {
  RunMembers(hosts, ranks, setting, [&](Member& member, int self) {
    const bool gives = std::find(absent.begin(), absent.end(), self) == absent.end();
    for (const int64_t elements : sizes) {
      std::vector<float> data(static_cast<size_t>(elements));
      for (int64_t i = 0; i < elements; ++i) data[static_cast<size_t>(i)] = Number(self, i);
      const Piece piece = {gives ? data.data() : nullptr, gives ? data.data() : nullptr, elements};
      BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
      operation.absent = absent;
      ASSERT_EQ(member.Execute(operation), absl::OkStatus());
      if (!gives) continue;
      for (int64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(data[static_cast<size_t>(i)], HostsSum(hosts, ranks, absent, i))
            << "element " << i << " of " << elements << " at member " << self;
      }
    }
  });
}

const std::vector<int64_t> kSizes = {0,      1,      2, 15,      17, 1'000,  8'192, 8'193,
                                     20'001, 70'000, 3, 140'001, 5,  16'384, 0,     100'003};

const std::vector<std::vector<int>> kClusters = {
    {2, 2}, {1, 1}, {1, 3}, {3, 1}, {3, 2}, {1, 1, 1}, {2, 2, 2}, {1, 2, 3}, {2, 1, 1, 2}};

TEST(Hierarchical, SumsAreThoseOfTheHostsInOrder) {
  for (const std::vector<int>& sizes : kClusters) {
    for (const size_t block_bytes : {size_t{0}, size_t{4'096}}) {
      Hosts hosts(sizes);
      CheckSums(hosts, hosts.Everybody(), {}, {block_bytes}, kSizes);
      ASSERT_FALSE(HasFailure()) << ::testing::PrintToString(sizes) << ", blocks of "
                                 << block_bytes;
    }
  }
}

TEST(Hierarchical, ProcessSetsMayHaveAnyRanksOfAnyHosts) {
  Hosts hosts({3, 3, 2});
  for (const std::vector<Rank>& ranks :
       {std::vector<Rank>{0, 5}, {2, 3, 4}, {0, 1, 2, 7}, {1, 4, 6, 7}, {0, 3, 6}}) {
    Setting setting;
    setting.set = static_cast<SetId>(ranks.size() + static_cast<size_t>(ranks[0]) * 8);
    setting.block_bytes = 8'192;
    CheckSums(hosts, ranks, {}, setting, kSizes);
    ASSERT_FALSE(HasFailure()) << ::testing::PrintToString(ranks);
  }
}

TEST(Hierarchical, ASetMayTakeTheIdOfOneThatWasRemoved) {
  Hosts hosts({2, 2});
  for (uint32_t generation = 0; generation < 3; ++generation) {
    Setting setting;
    setting.set = 3;
    setting.generation = generation;
    setting.block_bytes = 4'096;
    CheckSums(hosts, hosts.Everybody(), {}, setting, {100, 20'000, 7});
  }
}

TEST(Hierarchical, TheAbsentGiveNothingAlsoWhereAWholeHostIs) {
  for (const std::vector<int>& sizes : {std::vector<int>{2, 2}, {1, 2, 2}, {2, 1}}) {
    Hosts hosts(sizes);
    const int members = hosts.size();
    for (int some = 1; some + 1 < (1 << members); some += members > 4 ? 3 : 1) {
      std::vector<int> absent;
      for (int member = 0; member < members; ++member) {
        if ((some >> member & 1) != 0) absent.push_back(member);
      }
      Setting setting;
      setting.set = static_cast<SetId>(some);
      setting.block_bytes = 8'192;
      CheckSums(hosts, hosts.Everybody(), absent, setting, {1, 5'000, 50'001});
      ASSERT_FALSE(HasFailure()) << ::testing::PrintToString(absent);
    }
  }
}

// What `giver` has for `taker` (allgather, gather, broadcast: for all, 0) of a piece.
int16_t Element(int giver, int taker, size_t piece, int64_t i) {
  return static_cast<int16_t>(giver * 7'919 + taker * 104'729 + static_cast<int>(piece) * 31 + i);
}

// An operation that hands data on, of pieces of uneven parts, as one member has it.
class Handing {
 public:
  Handing(OpKind kind, int members, int root, int64_t most, uint32_t seed)
      : kind_(kind), members_(members), root_(root) {
    std::minstd_rand random(seed);
    const size_t columns = kind == OpKind::kBroadcast  ? 1
                           : kind == OpKind::kAlltoall ? static_cast<size_t>(members) * members
                                                       : static_cast<size_t>(members);
    for (size_t piece = 0; piece < kPieces; ++piece) {
      for (size_t column = 0; column < columns; ++column) {
        const bool none = random() % 4 == 0;
        counts_.push_back(none ? 0 : static_cast<int64_t>(random() % static_cast<uint32_t>(most)));
      }
    }
  }

  void Check(Member& member, int self) {
    std::vector<std::vector<int16_t>> inputs(kPieces), outputs(kPieces), expected(kPieces);
    std::vector<Piece> pieces;
    int64_t elements = 0;
    const bool gives = self == root_ || (kind_ != OpKind::kBroadcast && kind_ != OpKind::kScatter);
    const bool gets = self == root_ || kind_ != OpKind::kGather;
    for (size_t piece = 0; piece < kPieces; ++piece) {
      for (int taker = 0; taker < (ByTaker() ? members_ : 1); ++taker) {
        if (gives) Append(self, taker, piece, &inputs[piece]);
      }
      for (int giver = 0; giver < members_; ++giver) {
        if (!gets || (kind_ != OpKind::kAllgather && kind_ != OpKind::kGather &&
                      kind_ != OpKind::kAlltoall && giver != root_)) {
          continue;
        }
        Append(giver, ByTaker() ? self : 0, piece, &expected[piece]);
      }
      outputs[piece].resize(expected[piece].size(), -1);
      const auto given = static_cast<int64_t>(inputs[piece].size());
      pieces.push_back({given > 0 ? inputs[piece].data() : nullptr,
                        outputs[piece].empty() ? nullptr : outputs[piece].data(),
                        kind_ == OpKind::kBroadcast ? counts_[piece] : given});
      elements += pieces.back().elements;
    }
    BucketOperation operation;
    operation.kind = kind_;
    operation.dtype = DType::kInt16;
    operation.root = root_;
    operation.pieces = pieces;
    operation.digest = 5;
    if (kind_ == OpKind::kBroadcast) {
      operation.elements = elements;
    } else {
      operation.counts = counts_;
    }
    ASSERT_EQ(member.Execute(operation), absl::OkStatus());
    ASSERT_EQ(outputs, expected) << "member " << self;
  }

 private:
  static constexpr size_t kPieces = 2;
  bool ByTaker() const { return kind_ == OpKind::kScatter || kind_ == OpKind::kAlltoall; }
  int64_t Count(int giver, int taker, size_t piece) const {
    const size_t columns = counts_.size() / kPieces;
    const size_t column = kind_ == OpKind::kBroadcast ? 0
                          : kind_ == OpKind::kScatter ? static_cast<size_t>(taker)
                          : kind_ == OpKind::kAlltoall
                              ? static_cast<size_t>(giver) * members_ + static_cast<size_t>(taker)
                              : static_cast<size_t>(giver);
    return counts_[piece * columns + column];
  }
  void Append(int giver, int taker, size_t piece, std::vector<int16_t>* to) const {
    for (int64_t i = 0; i < Count(giver, taker, piece); ++i) {
      to->push_back(Element(giver, taker, piece, i));
    }
  }

  const OpKind kind_;
  const int members_;
  const int root_;
  std::vector<int64_t> counts_;
};

TEST(Hierarchical, EverybodyGetsWhatIsForIt) {
  for (const std::vector<int>& sizes : kClusters) {
    for (const size_t block_bytes : {size_t{0}, size_t{4'096}}) {
      Hosts hosts(sizes);
      RunMembers(hosts, hosts.Everybody(), {block_bytes}, [&](Member& member, int self) {
        uint32_t seed = 1;
        for (const OpKind kind : {OpKind::kBroadcast, OpKind::kAllgather, OpKind::kGather,
                                  OpKind::kScatter, OpKind::kAlltoall}) {
          for (int root = 0; root < hosts.size(); ++root) {
            for (const int64_t most : {1, 5, 700, 30'000}) {
              Handing(kind, hosts.size(), root, most, ++seed).Check(member, self);
              ASSERT_FALSE(::testing::Test::HasFatalFailure())
                  << OpKindName(kind) << " at " << root << " of at most " << most;
            }
          }
        }
      });
      ASSERT_FALSE(HasFailure()) << ::testing::PrintToString(sizes) << ", blocks of "
                                 << block_bytes;
    }
  }
}

// Which goes flat.
TEST(Hierarchical, MuchThatIsDifferentForEverybodyArrivesToo) {
  Hosts hosts({2, 2});
  RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
    Handing(OpKind::kAlltoall, 4, 0, 2'000'000, 3).Check(member, self);
    Handing(OpKind::kAlltoall, 4, 0, 20, 4).Check(member, self);
    Handing(OpKind::kGather, 4, 3, 5'000'000, 5).Check(member, self);
  });
}

// Of every share the sum of the hosts' sums; those who are absent get nothing.
TEST(Hierarchical, SharesOfSumsAreThoseOfTheHostsInOrder) {
  for (const std::vector<int>& sizes : kClusters) {
    for (const std::vector<int>& absent : {std::vector<int>{}, {1}, {0}}) {
      Hosts hosts(sizes);
      const std::vector<Rank> ranks = hosts.Everybody();
      RunMembers(hosts, ranks, {4'096}, [&](Member& member, int self) {
        const bool gives = std::find(absent.begin(), absent.end(), self) == absent.end();
        for (const int64_t most : {1, 9, 20'000}) {
          std::vector<int64_t> counts;
          int64_t elements = 0, begin = 0;
          for (int each = 0; each < hosts.size(); ++each) {
            counts.push_back(std::max<int64_t>(0, most / (each % 3 + 1) - each % 2));
            if (each == self) begin = elements;
            elements += counts.back();
          }
          std::vector<float> data(static_cast<size_t>(elements));
          std::vector<float> output(static_cast<size_t>(counts[static_cast<size_t>(self)]), -1);
          for (int64_t i = 0; i < elements; ++i) data[static_cast<size_t>(i)] = Number(self, i);
          const Piece piece = {gives ? data.data() : nullptr, gives ? output.data() : nullptr,
                               elements};
          BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
          operation.kind = OpKind::kReducescatter;
          operation.counts = counts;
          operation.absent = absent;
          ASSERT_EQ(member.Execute(operation), absl::OkStatus());
          for (size_t i = 0; i < output.size(); ++i) {
            const float expected =
                gives ? HostsSum(hosts, ranks, absent, begin + static_cast<int64_t>(i)) : -1;
            ASSERT_EQ(output[i], expected) << i << " of " << output.size() << " at " << self;
          }
        }
      });
      ASSERT_FALSE(HasFailure()) << ::testing::PrintToString(sizes);
    }
  }
}

// What the same inputs give on one host, in exact numbers.
TEST(Hierarchical, EveryTypeAndReductionIsScaledAsElsewhere) {
  const DType dtypes[] = {DType::kBool,        DType::kInt8,    DType::kUInt8,   DType::kInt16,
                          DType::kInt32,       DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                          DType::kFloat8E5M2,  DType::kFloat32, DType::kFloat64, DType::kComplex64,
                          DType::kComplex128,  DType::kUInt16,  DType::kUInt32,  DType::kUInt64,
                          DType::kFloat8E4M3FN};
  const ReduceOp ops[] = {ReduceOp::kSum,   ReduceOp::kAverage, ReduceOp::kMin,
                          ReduceOp::kMax,   ReduceOp::kProduct, ReduceOp::kBitAnd,
                          ReduceOp::kBitOr, ReduceOp::kBitXor};
  for (const std::vector<int>& sizes : {std::vector<int>{2, 1}, {1, 1, 2}, {1, 1}}) {
    Hosts hosts(sizes);
    RunMembers(hosts, hosts.Everybody(), {4'096}, [&](Member& member, int self) {
      for (const DType dtype : dtypes) {
        for (const ReduceOp op : ops) {
          if (!kernels::CheckReducible(dtype, op).ok()) continue;
          for (const double prescale : {1.0, 2.0}) {
            const int64_t elements = prescale == 1 ? 9'000 : 33;
            const size_t bytes = static_cast<size_t>(elements) * DTypeSize(dtype);
            std::vector<std::string> inputs;
            for (int each = 0; each < hosts.size(); ++each) {
              std::vector<float> values(static_cast<size_t>(elements));
              for (int64_t i = 0; i < elements; ++i) {
                values[static_cast<size_t>(i)] = static_cast<float>((each + i) % 3);
              }
              inputs.emplace_back(bytes, 0);
              if (SumsInFloat32(dtype)) {
                kernels::FromFloat32(dtype, values.data(), inputs.back().data(), elements);
              } else if (dtype == DType::kFloat32 || dtype == DType::kComplex64) {
                memcpy(inputs.back().data(), values.data(),
                       static_cast<size_t>(elements) * sizeof(float));
              } else if (dtype != DType::kFloat64 && dtype != DType::kComplex128) {
                for (size_t i = 0; i < bytes; i += DTypeSize(dtype)) {
                  inputs.back()[i] = static_cast<char>((static_cast<size_t>(each) + i) % 3);
                }
              }
            }
            std::string output(bytes, 1);
            const Piece piece = {inputs[static_cast<size_t>(self)].data(), output.data(), elements};
            BucketOperation operation = AllreduceOf({&piece, 1}, dtype, op);
            operation.scaling.prescale = prescale;
            operation.scaling.postscale = 3;
            operation.scaling.divisor = op == ReduceOp::kAverage ? hosts.size() : 1;
            ASSERT_EQ(member.Execute(operation), absl::OkStatus());
            std::vector<const void*> sources;
            for (const std::string& input : inputs) sources.push_back(input.data());
            std::string expected(bytes, 0);
            kernels::Reduce(dtype, op, sources, expected.data(), elements,
                            {prescale, 3, operation.scaling.divisor});
            ASSERT_TRUE(output == expected)
                << "dtype " << static_cast<int>(dtype) << ", op " << static_cast<int>(op);
          }
        }
      }
    });
    ASSERT_FALSE(HasFailure());
  }
}

// Their partial sums are beyond the type, their average is not.
TEST(Hierarchical, AveragesOfIntegersAreThoseOfTheKernels) {
  for (const std::vector<int>& sizes : {std::vector<int>{2, 1}, {1, 1, 2}, {1, 1}}) {
    Hosts hosts(sizes);
    RunMembers(hosts, hosts.Everybody(), {4'096}, [&](Member& member, int self) {
      for (const DType dtype : {DType::kInt8, DType::kUInt8, DType::kInt16, DType::kUInt16,
                                DType::kInt32, DType::kUInt32, DType::kInt64, DType::kUInt64}) {
        for (const Scaling& scaling : {Scaling{1, 1, hosts.size()}, {3, 0.5, hosts.size()}}) {
          for (const int64_t elements : {7, 9'000}) {
            std::vector<std::string> inputs;
            std::vector<const void*> sources;
            for (int each = 0; each < hosts.size(); ++each) {
              std::mt19937 random(static_cast<uint32_t>(each));
              inputs.emplace_back(static_cast<size_t>(elements) * DTypeSize(dtype), 0);
              for (char& byte : inputs.back()) byte = static_cast<char>(random());
            }
            for (const std::string& input : inputs) sources.push_back(input.data());
            std::string expected(inputs[0].size(), 0), output = expected;
            kernels::Reduce(dtype, ReduceOp::kAverage, sources, expected.data(), elements, scaling);
            const Piece piece = {sources[static_cast<size_t>(self)], output.data(), elements};
            BucketOperation operation = AllreduceOf({&piece, 1}, dtype, ReduceOp::kAverage);
            operation.scaling = scaling;
            ASSERT_EQ(member.Execute(operation), absl::OkStatus());
            ASSERT_TRUE(output == expected) << DTypeName(dtype) << " of " << elements;
          }
        }
      }
    });
    ASSERT_FALSE(HasFailure());
  }
}

// Numbers of a narrow type, in whose sums each rounding shows.
std::vector<float> NarrowNumbers(DType dtype, int member, int64_t elements) {
  std::vector<float> values;
  for (int64_t i = 0; i < elements; ++i) values.push_back(Number(member, i));
  std::string narrow(static_cast<size_t>(elements) * DTypeSize(dtype), 0);
  kernels::FromFloat32(dtype, values.data(), narrow.data(), elements);
  kernels::ToFloat32(dtype, narrow.data(), values.data(), elements);
  return values;
}

float RoundedTo(DType dtype, float value) {
  uint16_t narrow = 0;
  kernels::FromFloat32(dtype, &value, &narrow, 1);
  kernels::ToFloat32(dtype, &narrow, &value, 1);
  return value;
}

// The sum of the hosts' sums in float32, each rounded to what travels; divided, of averages, by the
// largest host's ranks before that.
std::vector<float> HostsReduction(const Hosts& hosts, DType dtype, bool narrow, bool average,
                                  int64_t elements) {
  const DType wire = !narrow ? DType::kFloat32 : DTypeSize(dtype) == 1 ? DType::kBFloat16 : dtype;
  std::vector<std::vector<float>> inputs;
  std::vector<int> ranks_of(static_cast<size_t>(hosts.hosts()));
  for (int rank = 0; rank < hosts.size(); ++rank) {
    inputs.push_back(NarrowNumbers(dtype, rank, elements));
    ++ranks_of[static_cast<size_t>(hosts.host_of(rank))];
  }
  const auto most = static_cast<float>(*std::max_element(ranks_of.begin(), ranks_of.end()));
  const float before = average && narrow ? most : 1;
  std::vector<float> results;
  for (int64_t i = 0; i < elements; ++i) {
    float total = 0;
    for (int host = 0; host < hosts.hosts(); ++host) {
      float sum = 0;
      for (int rank = 0; rank < hosts.size(); ++rank) {
        if (hosts.host_of(rank) == host)
          sum += inputs[static_cast<size_t>(rank)][static_cast<size_t>(i)];
      }
      sum /= before;
      if (wire != DType::kFloat32) sum = RoundedTo(wire, sum);
      total += sum * before;
    }
    if (average) total /= static_cast<float>(hosts.size());
    results.push_back(RoundedTo(dtype, total));
  }
  return results;
}

TEST(Hierarchical, NarrowTypesAreRoundedWhereTheyTravelAndAtTheEnd) {
  for (const std::vector<int>& sizes :
       {std::vector<int>{1, 1}, {2, 2}, {1, 2}, {1, 1, 1}, {3, 1, 2}}) {
    for (const bool narrow : {true, false}) {
      Hosts hosts(sizes);
      Setting setting = {4'096};
      setting.narrow = narrow;
      RunMembers(hosts, hosts.Everybody(), setting, [&](Member& member, int self) {
        for (const DType dtype :
             {DType::kFloat16, DType::kBFloat16, DType::kFloat8E5M2, DType::kFloat8E4M3FN}) {
          for (const bool average : {false, true}) {
            for (const int64_t elements : {100, 30'001}) {
              const std::vector<float> given = NarrowNumbers(dtype, self, elements);
              std::string data(static_cast<size_t>(elements) * DTypeSize(dtype), 0);
              kernels::FromFloat32(dtype, given.data(), data.data(), elements);
              const Piece piece = {data.data(), data.data(), elements};
              BucketOperation operation =
                  AllreduceOf({&piece, 1}, dtype, average ? ReduceOp::kAverage : ReduceOp::kSum);
              if (average) operation.scaling.divisor = hosts.size();
              ASSERT_EQ(member.Execute(operation), absl::OkStatus());
              std::vector<float> sums(static_cast<size_t>(elements));
              kernels::ToFloat32(dtype, data.data(), sums.data(), elements);
              const std::vector<float> expected =
                  HostsReduction(hosts, dtype, narrow, average, elements);
              for (size_t i = 0; i < sums.size(); ++i) {
                if (std::isnan(expected[i]) && std::isnan(sums[i])) continue;
                ASSERT_EQ(sums[i], expected[i])
                    << DTypeName(dtype) << (average ? " average" : " sum") << ", element " << i
                    << " of " << elements << (narrow ? ", narrow" : "");
              }
            }
          }
        }
      });
      ASSERT_FALSE(HasFailure()) << ::testing::PrintToString(sizes);
    }
  }
}

// Their partial sums are beyond a float16, their average is not.
TEST(Hierarchical, AveragesFitWhereTheirOperandsDo) {
  for (const bool narrow : {true, false}) {
    Hosts hosts({2, 2});
    Setting setting;
    setting.narrow = narrow;
    RunMembers(hosts, hosts.Everybody(), setting, [&](Member& member, int) {
      for (const int64_t elements : {100, 100'000}) {
        std::vector<testing::Float16> data(static_cast<size_t>(elements),
                                           static_cast<testing::Float16>(60'000));
        const Piece piece = {data.data(), data.data(), elements};
        BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat16, ReduceOp::kAverage);
        operation.scaling.divisor = 4;
        ASSERT_EQ(member.Execute(operation), absl::OkStatus());
        for (const testing::Float16 value : data)
          ASSERT_EQ(value, static_cast<testing::Float16>(60'000));
      }
    });
  }
}

TEST(Hierarchical, BucketsOfManyPiecesAndReductionsToOne) {
  Hosts hosts({2, 1, 1});
  RunMembers(hosts, hosts.Everybody(), {4'096}, [&](Member& member, int self) {
    std::vector<std::vector<int32_t>> inputs, outputs;
    std::vector<Piece> pieces;
    const bool root = self == 2;
    for (const int64_t elements : {1, 5'000, 0, 77, 20'000}) {
      inputs.emplace_back(static_cast<size_t>(elements), self + 1);
      outputs.emplace_back(static_cast<size_t>(elements), -1);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      pieces.push_back({inputs[i].data(), root ? outputs[i].data() : nullptr,
                        static_cast<int64_t>(inputs[i].size())});
    }
    BucketOperation operation = AllreduceOf(pieces, DType::kInt32, ReduceOp::kSum);
    operation.kind = OpKind::kReduce;
    operation.root = 2;
    ASSERT_EQ(member.Execute(operation), absl::OkStatus());
    for (const std::vector<int32_t>& output : outputs) {
      for (const int32_t value : output) ASSERT_EQ(value, root ? 10 : -1);
    }
  });
}

TEST(Hierarchical, ABarrierWaitsForEverybody) {
  Hosts hosts({2, 2});
  std::atomic<int> came{0};
  RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
    for (int round = 1; round <= 20; ++round) {
      if (self == round % 4) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++came;
      ASSERT_EQ(member.Execute(BarrierOf()), absl::OkStatus());
      ASSERT_GE(came, 4 * round);
    }
  });
}

TEST(Hierarchical, OtherOperationsGoBetweenReductions) {
  Hosts hosts({2, 2});
  RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
    for (int round = 0; round < 3; ++round) {
      std::vector<int64_t> given(10, self), sum(10, self);
      const Piece piece = {sum.data(), sum.data(), 10};
      ASSERT_EQ(member.Execute(AllreduceOf({&piece, 1}, DType::kInt64, ReduceOp::kSum)),
                absl::OkStatus());
      ASSERT_EQ(sum[9], 6);
      const Piece broadcast = {self == 3 ? given.data() : nullptr, given.data(), 10};
      BucketOperation operation;
      operation.kind = OpKind::kBroadcast;
      operation.dtype = DType::kInt64;
      operation.root = 3;
      operation.pieces = {&broadcast, 1};
      operation.elements = 10;
      ASSERT_EQ(member.Execute(operation), absl::OkStatus());
      ASSERT_EQ(given[0], 3);
    }
  });
}

TEST(Hierarchical, HostsWithOtherLayoutsAreToldApart) {
  Hosts hosts({1, 1});
  RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
    std::vector<float> data(100);
    const Piece piece = {data.data(), data.data(), 100};
    BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
    operation.digest += static_cast<uint32_t>(self);
    const absl::Status status = member.Execute(operation);
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("another layout"));
  });
}

// One goes between two operations: the others are told, and nothing hangs.
TEST(Hierarchical, ALostHostIsAnError) {
  for (const int64_t elements : {int64_t{10}, int64_t{4'000'000}}) {
    Hosts hosts({1, 1, 1});
    std::barrier first(3);
    RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
      std::vector<float> data(static_cast<size_t>(elements));
      const Piece piece = {data.data(), data.data(), elements};
      const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
      EXPECT_EQ(member.Execute(operation), absl::OkStatus());
      first.arrive_and_wait();
      if (self == 1) return member.Leave();
      const absl::Status status = member.Execute(operation);
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    });
  }
}

TEST(Hierarchical, WhoDoesNotComeIsWaitedForNoLongerThanTheTimeOut) {
  Hosts hosts({1, 1});
  Setting setting;
  setting.timeout = kSecond;
  RunMembers(hosts, hosts.Everybody(), setting, [&](Member& member, int self) {
    float one = 1;
    const Piece piece = {&one, &one, 1};
    const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
    ASSERT_EQ(member.Execute(operation), absl::OkStatus());
    if (self == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      return;
    }
    EXPECT_TRUE(absl::IsUnavailable(member.Execute(operation)));
  });
}

// At any point: unconnected, waiting for a neighbour, for another host, in the midst of a large
// one.
TEST(Hierarchical, AnAbortEndsSoon) {
  for (const bool connected : {false, true}) {
    for (const int64_t elements : {int64_t{10}, int64_t{8'000'000}}) {
      Hosts hosts({2, 2});
      std::barrier first(4);
      RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
        std::vector<float> data(static_cast<size_t>(elements));
        const Piece piece = {data.data(), data.data(), elements};
        const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
        if (connected) {
          EXPECT_EQ(member.Execute(operation), absl::OkStatus());
        }
        first.arrive_and_wait();
        if (self == 3) {
          hosts.store()->Abort();
          return;
        }
        member.communicator()->Start(operation);
        for (int i = 0; i < 50 * self; ++i) (void)member.communicator()->Advance();
        member.communicator()->Abort();
        memset(data.data(), 0, data.size() * sizeof(float));  // it is the caller's again
      });
    }
  }
}

// The other host neither comes nor goes meanwhile: only the abort ends the wait for it.
TEST(Hierarchical, AnAbortNeedsNobodyElse) {
  for (const bool connected : {false, true}) {
    Hosts hosts({1, 1});
    std::barrier together(2);
    Setting setting;
    setting.timeout = 3'600 * kSecond;
    RunMembers(hosts, hosts.Everybody(), setting, [&](Member& member, int self) {
      std::vector<float> data(1'000'000);
      const Piece piece = {data.data(), data.data(), 1'000'000};
      const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
      if (connected) {
        EXPECT_EQ(member.Execute(operation), absl::OkStatus());
      }
      together.arrive_and_wait();
      if (self == 0) {
        member.communicator()->Start(operation);
        for (int i = 0; i < 1'000; ++i) (void)member.communicator()->Advance();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the lane thread waits by now
        if (!connected) hosts.store()->Abort();                      // as the engine does
        member.communicator()->Abort();
        member.Leave();
      }
      together.arrive_and_wait();
    });
  }
}

// The connections come about at any moment between two looks.
TEST(Hierarchical, WhoNeverSleepsStartsAsTheOthersDo) {
  Hosts hosts({1, 1});
  for (uint32_t generation = 0; generation < 200; ++generation) {
    Setting setting;
    setting.set = 3;
    setting.generation = generation;
    RunMembers(hosts, hosts.Everybody(), setting, [&](Member& member, int self) {
      std::vector<float> data(100, static_cast<float>(1 + self));
      const Piece piece = {data.data(), data.data(), 100};
      const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
      member.communicator()->Start(operation);
      absl::StatusOr<Progress> progress = Progress::kMoved;
      while (progress.ok() && *progress != Progress::kDone) {
        progress = member.communicator()->Advance();
      }
      ASSERT_TRUE(progress.ok()) << progress.status();
      ASSERT_EQ(data[99], 3);
    });
  }
}

// Nobody looks at the connections any more.
TEST(Hierarchical, NothingWakesBehindAnError) {
  for (const int64_t elements : {int64_t{10}, int64_t{1'000'000}}) {
    Hosts hosts({1, 1, 1});
    std::barrier first(3), left(3);
    RunMembers(hosts, hosts.Everybody(), {}, [&](Member& member, int self) {
      std::vector<float> data(static_cast<size_t>(elements));
      const Piece piece = {data.data(), data.data(), elements};
      const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
      EXPECT_EQ(member.Execute(operation), absl::OkStatus());
      first.arrive_and_wait();
      if (self == 1) {
        member.Leave();
        left.arrive_and_wait();
        return;
      }
      const absl::Status status = member.Execute(operation);
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      left.arrive_and_wait();
      EXPECT_FALSE(member.IsWoken()) << "member " << self << ", " << elements << " elements";
    });
  }
}

TEST(Hierarchical, ServesWhatIsOnSeveralHostsOnly) {
  Hosts hosts({2});
  GlooOptions options;
  options.module_directory = RUEDA_TEST_MODULE_DIRECTORY;
  GlooBackend across(std::move(options));
  ShmBackend inside = hosts.BackendOf(0);
  const HierarchicalBackend backend(&inside, &across);
  Members members;
  members.ranks = {0, 1};
  EXPECT_TRUE(absl::IsFailedPrecondition(backend.Viable(members)));
  members.one_host = false;
  EXPECT_EQ(backend.Viable(members), absl::OkStatus());
}

}  // namespace
}  // namespace rueda
