// The shared-memory collectives between threads: small, staged and direct, at and around the sizes
// where one gives way to the other. Inputs are small whole numbers, so that results are exact in
// every dtype.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <complex>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "ops/kernels/reduce.h"
#include "ops/shm/algorithm.h"
#include "test/ops/backend/bucket_operations.h"
#include "test/ops/shm/host.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

constexpr size_t kGuardBytes = 64;
constexpr char kGuard = 0x5A;

void Put(DType dtype, void* buffer, int64_t k, int value) {
  char* at = static_cast<char*>(buffer) + k * static_cast<int64_t>(DTypeSize(dtype));
  const auto put = [&](auto typed) { memcpy(at, &typed, sizeof typed); };
  switch (dtype) {
    case DType::kUInt8:
      return put(static_cast<uint8_t>(value));
    case DType::kInt8:
      return put(static_cast<int8_t>(value));
    case DType::kInt16:
      return put(static_cast<int16_t>(value));
    case DType::kUInt16:
      return put(static_cast<uint16_t>(value));
    case DType::kInt32:
      return put(static_cast<int32_t>(value));
    case DType::kUInt32:
      return put(static_cast<uint32_t>(value));
    case DType::kInt64:
      return put(static_cast<int64_t>(value));
    case DType::kUInt64:
      return put(static_cast<uint64_t>(value));
    case DType::kFloat32:
      return put(static_cast<float>(value));
    case DType::kFloat64:
      return put(static_cast<double>(value));
    case DType::kBool:
      return put(static_cast<uint8_t>(value != 0));
    case DType::kComplex64:
      return put(std::complex<float>(static_cast<float>(value), static_cast<float>(-value)));
    case DType::kComplex128:
      return put(std::complex<double>(value, -value));
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat16:
    case DType::kBFloat16: {
      const float wide = static_cast<float>(value);
      return kernels::FromFloat32(dtype, &wide, at, 1);
    }
  }
}

// Elements 0, factor, 2 * factor, ... up to 6 * factor, over and over; of float8_e5m2, which has
// three significant bits, those multiples that it holds for factors 1, 2, 3 and 6.
void Fill(DType dtype, char* buffer, int64_t elements, int factor) {
  constexpr int kMultiples[] = {0, 1, 2, 3, 4, 5, 6}, kFewBits[] = {0, 1, 2, 4, 1, 4, 2};
  const int* const multiples = dtype == DType::kFloat8E5M2 ? kFewBits : kMultiples;
  const int64_t period = std::min<int64_t>(elements, 7);
  for (int64_t k = 0; k < period; ++k) Put(dtype, buffer, k, factor * multiples[k]);
  for (int64_t done = period; done < elements;) {  // `done` is a multiple of 7
    const int64_t more = std::min(done, elements - done);
    const auto size = static_cast<int64_t>(DTypeSize(dtype));
    memcpy(buffer + done * size, buffer, static_cast<size_t>(more * size));
    done += more;
  }
}

// Where a tensor lies.
enum class Place { kHeap, kInPlace, kArena, kArenaInPlace };

// One rank's input and output, with a guard behind each.
class Tensor {
 public:
  Tensor(Arena* arena, Place place, DType dtype, int64_t elements)
      : bytes_(static_cast<size_t>(elements) * DTypeSize(dtype)) {
    arena_ = place == Place::kArena || place == Place::kArenaInPlace ? arena : nullptr;
    input_ = New();
    const bool in_place = place == Place::kInPlace || place == Place::kArenaInPlace;
    output_ = in_place ? input_ : New();
  }
  ~Tensor() {
    EXPECT_EQ(std::string(input_ + bytes_, kGuardBytes), std::string(kGuardBytes, kGuard));
    EXPECT_EQ(std::string(output_ + bytes_, kGuardBytes), std::string(kGuardBytes, kGuard));
    if (arena_ == nullptr) return;
    EXPECT_TRUE(arena_->Free(input_).ok());
    if (output_ != input_) {
      EXPECT_TRUE(arena_->Free(output_).ok());
    }
  }
  char* input() { return input_; }
  char* output() { return output_; }
  size_t bytes() const { return bytes_; }

 private:
  char* New() {
    char* memory;
    if (arena_ != nullptr) {
      memory = static_cast<char*>(*arena_->Allocate(bytes_ + kGuardBytes));
    } else {
      heap_.emplace_back(bytes_ + kGuardBytes);
      memory = heap_.back().data();
    }
    memset(memory + bytes_, kGuard, kGuardBytes);
    return memory;
  }

  Arena* arena_;
  const size_t bytes_;
  std::vector<std::vector<char>> heap_;
  char* input_;
  char* output_;
};

// What one test does over and over, on every rank.
class Worker {
 public:
  Worker(Host* host, int local, SetId set, std::vector<Rank> members, int self)
      : host_(host),
        local_(local),
        self_(self),
        members_(static_cast<int>(members.size())),
        communicator_(host->Connect(local, set, members)) {}
  Worker(Host* host, int local)
      : Worker(host, local, kWorldSet, Host::FirstRanks(host->size()), local) {}

  Communicator* communicator() { return communicator_.get(); }
  // From now on each operation begins early, or not quite, or not, by `random`; nobody starts it
  // before all have `met`.
  void PrepareBy(std::mt19937* random, std::barrier<>* met) {
    random_ = random;
    met_ = met;
  }
  absl::Status Execute(const BucketOperation& operation) {
    const uint32_t how = random_ == nullptr ? 0 : (*random_)() % 4;
    const bool prepared = how > 0 && communicator_->early_start()->Prepare(operation);
    if (prepared && how == 1) communicator_->early_start()->Drop();
    if (met_ != nullptr) met_->arrive_and_wait();
    if (prepared && how == 2) communicator_->early_start()->TakeBack();
    communicator_->Start(operation);
    return host_->Finish(local_, communicator_.get());
  }

  // Sums `elements` elements, cut into `pieces` pieces, and looks at the result.
  void Sum(DType dtype, int64_t elements, Place place, int pieces = 1) {
    const std::string what =
        absl::StrCat(DTypeName(dtype), "[", elements, "] at ", static_cast<int>(place), " in ",
                     pieces, " pieces, ", members_, " members");
    Tensor tensor(&host_->arena(local_), place, dtype, elements);
    const size_t size = DTypeSize(dtype);
    Fill(dtype, tensor.input(), elements, self_ + 1);
    std::vector<Piece> parts;
    for (int i = 0; i < pieces; ++i) {
      const int64_t begin = elements * i / pieces;
      const int64_t end = elements * (i + 1) / pieces;
      parts.push_back({tensor.input() + begin * static_cast<int64_t>(size),
                       tensor.output() + begin * static_cast<int64_t>(size), end - begin});
    }
    ASSERT_EQ(Execute(AllreduceOf(parts, dtype)), absl::OkStatus()) << what;
    std::vector<char> expected(tensor.bytes() + 1);  // never null
    Fill(dtype, expected.data(), elements, members_ * (members_ + 1) / 2);
    ASSERT_EQ(memcmp(tensor.output(), expected.data(), tensor.bytes()), 0) << what;
  }

  void Broadcast(int root, int64_t elements, bool in_place) {
    Tensor tensor(nullptr, in_place ? Place::kInPlace : Place::kHeap, DType::kInt32, elements);
    Fill(DType::kInt32, tensor.input(), elements, self_ + 1);
    const Piece piece = {tensor.input(), tensor.output(), elements};
    BucketOperation operation;
    operation.kind = OpKind::kBroadcast;
    operation.dtype = DType::kInt32;
    operation.root = root;
    operation.pieces = {&piece, 1};
    operation.elements = elements;
    ASSERT_EQ(Execute(operation), absl::OkStatus());
    std::vector<char> expected(tensor.bytes() + 1);  // never null
    Fill(DType::kInt32, expected.data(), elements, root + 1);
    ASSERT_EQ(memcmp(tensor.output(), expected.data(), tensor.bytes()), 0)
        << elements << " elements from " << root;
  }

  void Allgather(const std::vector<int64_t>& counts, bool wanted = true) {
    const int64_t mine = counts[static_cast<size_t>(self_)];
    int64_t total = 0;
    for (const int64_t count : counts) total += count;
    std::vector<char> input(static_cast<size_t>(mine) * 2 + 1);
    std::vector<char> output(static_cast<size_t>(total) * 2 + kGuardBytes, kGuard);
    Fill(DType::kFloat16, input.data(), mine, self_ + 1);
    const Piece piece = {mine == 0 ? nullptr : input.data(), wanted ? output.data() : nullptr,
                         mine};
    BucketOperation operation;
    operation.kind = OpKind::kAllgather;
    operation.dtype = DType::kFloat16;
    operation.pieces = {&piece, 1};
    operation.elements = mine;
    operation.counts = counts;
    ASSERT_EQ(Execute(operation), absl::OkStatus());
    std::vector<char> expected(output.size(), kGuard);
    char* at = expected.data();
    for (int rank = 0; wanted && rank < members_; ++rank) {
      const int64_t count = counts[static_cast<size_t>(rank)];
      Fill(DType::kFloat16, at, count, rank + 1);
      at += count * 2;
    }
    ASSERT_EQ(memcmp(output.data(), expected.data(), output.size()), 0) << total;
  }

  void Barrier() { ASSERT_EQ(Execute(BarrierOf()), absl::OkStatus()); }

 private:
  Host* const host_;
  const int local_;
  const int self_;
  const int members_;
  const std::unique_ptr<Communicator> communicator_;
  std::mt19937* random_ = nullptr;
  std::barrier<>* met_ = nullptr;
};

// Elements of `size` bytes each: nothing, a little, and around the ends of a slot, of a block, and
// of several.
std::vector<int64_t> SizesAround(size_t size) {
  const auto slot = static_cast<int64_t>(kSlotBytes / size);
  const auto block = static_cast<int64_t>(kBlockBytes / size);
  const auto many = static_cast<int64_t>(((1 << 20) + 3) / size);
  return {0, 1, 2, 17, slot - 1, slot, slot + 1, block - 1, block, block + 1, many};
}

class MemberCounts : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, MemberCounts, ::testing::Range(1, 6));

TEST_P(MemberCounts, SumTensorsOfEverySizeWhereverTheyLie) {
  Host host(GetParam());
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (const int64_t elements : SizesAround(4)) {
      for (const Place place :
           {Place::kHeap, Place::kInPlace, Place::kArena, Place::kArenaInPlace}) {
        rank.Sum(DType::kFloat32, elements, place);
      }
    }
  });
}

// What is not in an arena on every rank is staged, and read in place where it is in one.
TEST_P(MemberCounts, SumTensorsOfWhichSomeLieInArenas) {
  Host host(GetParam());
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (const int64_t elements : SizesAround(4)) {
      rank.Sum(DType::kInt32, elements, local == 0 ? Place::kArenaInPlace : Place::kHeap);
      rank.Sum(DType::kInt32, elements, local % 2 == 1 ? Place::kArena : Place::kInPlace);
    }
  });
}

TEST_P(MemberCounts, SumBucketsOfManyPieces) {
  Host host(GetParam());
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (const int64_t elements : SizesAround(8)) {
      for (const int pieces : {2, 7}) {
        rank.Sum(DType::kFloat64, elements, local == 0 ? Place::kInPlace : Place::kHeap, pieces);
        rank.Sum(DType::kFloat64, elements, Place::kArena, pieces);
      }
    }
  });
}

TEST_P(MemberCounts, BroadcastFromEveryRoot) {
  Host host(GetParam());
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (int root = 0; root < host.size(); ++root) {
      for (const int64_t elements : SizesAround(4)) rank.Broadcast(root, elements, elements % 2);
    }
  });
}

TEST_P(MemberCounts, GatherPartsOfUnequalSize) {
  Host host(GetParam());
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (const int64_t elements : SizesAround(2)) {
      for (int shift = 0; shift < host.size(); ++shift) {
        std::vector<int64_t> counts;
        for (int i = 0; i < host.size(); ++i) {
          counts.push_back((i + shift) % 3 == 0 ? elements : (i + shift) % 3 == 1 ? 0 : 5);
        }
        rank.Allgather(counts);
      }
    }
  });
}

TEST_P(MemberCounts, NobodyPassesABarrierBeforeAllHaveCome) {
  Host host(GetParam());
  std::atomic<int> come{0};
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (int round = 1; round <= 500; ++round) {
      ++come;
      rank.Barrier();
      ASSERT_GE(come.load(), round * host.size());
      rank.Barrier();
    }
  });
}

// One operation behind the other, of any kind: slots, blocks and descriptors alternate for all.
TEST_P(MemberCounts, RandomSequencesComeOutRight) {
  Host host(GetParam());
  std::barrier met(host.size());
  host.Run([&](int local) {
    Worker rank(&host, local);
    std::mt19937 random(5);  // the same on every rank
    std::mt19937 own_random(static_cast<uint32_t>(local));
    rank.PrepareBy(&own_random, &met);
    for (int i = 0; i < 150; ++i) {
      const uint32_t kind = random() % 6;
      const int64_t elements = random() % 4 == 0 ? random() % 300'000 : random() % 9'000;
      const int root = static_cast<int>(random() % static_cast<uint32_t>(host.size()));
      const int other = static_cast<int>(random() % static_cast<uint32_t>(host.size()));
      if (kind == 0) rank.Barrier();
      if (kind == 1) rank.Broadcast(root, elements, false);
      if (kind == 2) rank.Sum(DType::kInt64, elements, Place::kHeap);
      if (kind == 3) rank.Sum(DType::kInt64, elements, Place::kArena);
      if (kind == 4)
        rank.Sum(DType::kInt64, elements, local == other ? Place::kArena : Place::kHeap);
      if (kind == 5) {
        std::vector<int64_t> counts(static_cast<size_t>(host.size()), 3);
        counts[static_cast<size_t>(root)] = elements;
        rank.Allgather(counts);
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(Shm, EveryDtypeComesThroughEveryAlgorithm) {
  Host host(3);
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      const int64_t large = static_cast<int64_t>(2 * kBlockBytes / DTypeSize(dtype)) + 5;
      rank.Sum(dtype, 100, Place::kHeap);
      rank.Sum(dtype, large, Place::kHeap);
      rank.Sum(dtype, large, Place::kArena);
    }
  });
}

// What reduces, and how it is scaled, is the kernels' business; that it is asked for is ours.
TEST(Shm, OperationAndScalingReachEveryAlgorithm) {
  Host host(3);
  host.Run([&](int local) {
    Worker rank(&host, local);
    for (const int64_t elements : {int64_t{10}, int64_t{200'000}}) {
      for (const Place place : {Place::kHeap, Place::kArena}) {
        const std::pair<ReduceOp, float> kCases[] = {{ReduceOp::kMin, 4},
                                                     {ReduceOp::kMax, 12},
                                                     {ReduceOp::kProduct, 384},
                                                     {ReduceOp::kAverage, 8}};
        for (const auto& [op, expected] : kCases) {
          Tensor tensor(&host.arena(local), place, DType::kFloat32, elements);
          auto* input = reinterpret_cast<float*>(tensor.input());
          auto* output = reinterpret_cast<float*>(tensor.output());
          std::fill(input, input + elements, static_cast<float>(local + 1));  // 1, 2, 3
          const Piece piece = {input, output, elements};
          BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, op);
          operation.scaling.prescale = 2;
          operation.scaling.postscale = op == ReduceOp::kProduct ? 8 : 2;
          operation.scaling.divisor = op == ReduceOp::kAverage ? 3 : 1;
          ASSERT_EQ(rank.Execute(operation), absl::OkStatus());
          for (int64_t k = 0; k < elements; ++k) ASSERT_EQ(output[k], expected) << k;
        }
      }
    }
  });
}

TEST(Shm, AResultThatNobodyWantsIsThrownAway) {
  Host host(2);
  host.Run([&](int local) {
    Worker rank(&host, local);
    rank.Allgather({5, 7}, local == 0);
    rank.Allgather({50'000, 70'000}, local == 1);
  });
}

TEST(Shm, MembersNeedNotBeAllNorNeighbours) {
  Host host({2, 5, 9, 11});
  host.Run([&](int local) {
    const std::vector<Rank> outer = {2, 11};
    const std::vector<Rank> rest = {5, 9, 11};
    std::unique_ptr<Worker> in_outer, in_rest;
    if (local == 0 || local == 3) {
      in_outer = std::make_unique<Worker>(&host, local, 1, outer, local == 0 ? 0 : 1);
    }
    if (local > 0) in_rest = std::make_unique<Worker>(&host, local, 2, rest, local - 1);
    for (int round = 0; round < 20; ++round) {
      for (const int64_t elements : {int64_t{10}, int64_t{100'000}}) {
        if (in_outer) in_outer->Sum(DType::kFloat32, elements, Place::kHeap);
        if (in_rest) in_rest->Sum(DType::kFloat32, elements, Place::kArena);
      }
    }
  });
}

TEST(Shm, ARankOfAnotherHostIsRefused) {
  Host host({2, 5});
  Members members;
  members.ranks = {2, 3};
  const ShmBackend backend(&host.segment(), &host.neighbours(0), {2, 5}, {nullptr, nullptr},
                           nullptr);
  EXPECT_TRUE(backend.Viable(members).ok());
  members.one_host = false;
  EXPECT_TRUE(absl::IsFailedPrecondition(backend.Viable(members)));
  EXPECT_TRUE(absl::IsInternal(const_cast<ShmBackend&>(backend).Connect(members).status()));
}

// Early -----------------------------------------------------------------------------------------

BucketOperation SumOf(const Piece* piece, uint32_t digest) {
  BucketOperation operation = AllreduceOf({piece, 1}, DType::kUInt8);
  operation.digest = digest;
  return operation;
}

// Two ranks on one thread, each with one number.
class Early : public ::testing::Test {
 protected:
  BucketOperation Operation(int rank, uint32_t digest = 8) {
    pieces_[rank] = {&inputs_[rank], &outputs_[rank], 1};
    return SumOf(&pieces_[rank], digest);
  }
  Communicator& At(int rank) { return *communicators_[rank]; }
  EarlyStart& EarlyAt(int rank) { return *communicators_[rank]->early_start(); }
  Progress Advance(int rank) { return *communicators_[rank]->Advance(); }

  Host host_{2};
  std::unique_ptr<Communicator> communicators_[2] = {host_.Connect(0, kWorldSet, {0, 1}),
                                                     host_.Connect(1, kWorldSet, {0, 1})};
  uint8_t inputs_[2] = {1, 2};
  uint8_t outputs_[2] = {};

 private:
  Piece pieces_[2];
};

TEST_F(Early, WhatAllHavePreparedWaitsForNobody) {
  for (int round = 0; round < 5; ++round) {
    inputs_[0] = static_cast<uint8_t>(round);
    for (int rank : {0, 1}) ASSERT_TRUE(EarlyAt(rank).Prepare(Operation(rank)));
    for (int rank : {0, 1}) {
      At(rank).Start(Operation(rank));
      EXPECT_EQ(Advance(rank), Progress::kDone) << "though the other may not have started";
      EXPECT_EQ(outputs_[rank], round + 2);
    }
  }
}

TEST_F(Early, WhatIsTakenBackMayHaveBegunElsewhere) {
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  At(1).Start(Operation(1));
  EXPECT_EQ(Advance(1), Progress::kDone);
  EarlyAt(0).TakeBack();
  inputs_[0] = 100;  // the slot is not written again: rank 1 might be reading it
  At(0).Start(Operation(0));
  EXPECT_EQ(Advance(0), Progress::kDone);
  EXPECT_EQ(outputs_[0], 3);
  EXPECT_EQ(outputs_[1], 3);
}

TEST_F(Early, WhatIsTakenBackIsWaitedForAgain) {
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  EarlyAt(0).TakeBack();
  At(1).Start(Operation(1));
  EXPECT_EQ(Advance(1), Progress::kBlocked);
  At(0).Start(Operation(0));
  for (int rank : {0, 1}) EXPECT_EQ(Advance(rank), Progress::kDone);
  EXPECT_EQ(outputs_[1], 3);
}

TEST_F(Early, WhatNeverComesLeavesNothingBehind) {
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  EarlyAt(0).Drop();
  inputs_[0] = 100;
  for (int rank : {1, 0}) At(rank).Start(Operation(rank));
  for (int rank : {0, 1}) {
    EXPECT_EQ(Advance(rank), Progress::kDone);
    EXPECT_EQ(outputs_[rank], 102);
  }
  // Another operation in its place, and then another.
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  EarlyAt(0).Drop();
  for (const uint32_t digest : {9u, 8u}) {
    for (int rank : {1, 0}) At(rank).Start(Operation(rank, digest));
    for (int rank : {0, 1}) EXPECT_EQ(Advance(rank), Progress::kDone);
  }
}

TEST_F(Early, OnlyWhatIsReducedIsPrepared) {
  BucketOperation broadcast = Operation(0);
  broadcast.kind = OpKind::kBroadcast;
  EXPECT_FALSE(EarlyAt(0).Prepare(broadcast));
  broadcast.kind = OpKind::kSendRecv;
  EXPECT_FALSE(EarlyAt(0).Prepare(broadcast));
}

// Two ranks on one thread, each with a tensor that does not fit a slot.
class EarlyLarge : public ::testing::TestWithParam<std::tuple<Place, int64_t>> {
 protected:
  EarlyLarge() {
    for (int rank : {0, 1}) {
      memset(tensors_[rank]->input(), rank + 1, tensors_[rank]->bytes());
    }
  }
  bool resident() const { return std::get<0>(GetParam()) == Place::kArenaInPlace; }
  BucketOperation Operation(int rank, uint32_t digest = 8) {
    Tensor& tensor = *tensors_[rank];
    pieces_[rank] = {tensor.input(), tensor.output(), static_cast<int64_t>(tensor.bytes())};
    return SumOf(&pieces_[rank], digest);
  }
  Communicator& At(int rank) { return *communicators_[rank]; }
  EarlyStart& EarlyAt(int rank) { return *communicators_[rank]->early_start(); }
  Progress Advance(int rank) { return *communicators_[rank]->Advance(); }
  void FinishBoth() {
    bool done[2] = {};
    for (int turns = 0; !(done[0] && done[1]); ++turns) {
      ASSERT_LT(turns, 100'000) << "both wait";
      for (int rank : {0, 1}) {
        if (!done[rank]) done[rank] = Advance(rank) == Progress::kDone;
      }
    }
  }
  void ExpectAll(char value) {
    for (int rank : {0, 1}) {
      EXPECT_EQ(std::string(tensors_[rank]->output(), tensors_[rank]->bytes()),
                std::string(tensors_[rank]->bytes(), value));
    }
  }
  std::unique_ptr<Tensor> New(int rank) {
    return std::make_unique<Tensor>(&host_.arena(rank), std::get<0>(GetParam()), DType::kUInt8,
                                    std::get<1>(GetParam()));
  }

  Host host_{2};
  std::unique_ptr<Communicator> communicators_[2] = {host_.Connect(0, kWorldSet, {0, 1}),
                                                     host_.Connect(1, kWorldSet, {0, 1})};
  std::unique_ptr<Tensor> tensors_[2] = {New(0), New(1)};

 private:
  Piece pieces_[2];
};
INSTANTIATE_TEST_SUITE_P(All, EarlyLarge,
                         ::testing::Combine(::testing::Values(Place::kInPlace,
                                                              Place::kArenaInPlace),
                                            ::testing::Values(40'001, 700'000)));

TEST_P(EarlyLarge, WhatAllHavePreparedBeginsAtOnce) {
  for (int rank : {0, 1}) ASSERT_TRUE(EarlyAt(rank).Prepare(Operation(rank)));
  At(0).Start(Operation(0));
  EXPECT_EQ(Advance(0), Progress::kMoved) << "though the other has not started";
  At(1).Start(Operation(1));
  FinishBoth();
  ExpectAll(3);
}

TEST_P(EarlyLarge, WhatIsTakenBackMayHaveBegunElsewhere) {
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  At(1).Start(Operation(1));
  while (Advance(1) == Progress::kMoved) {
  }
  EarlyAt(0).TakeBack();
  At(0).Start(Operation(0));
  FinishBoth();
  ExpectAll(3);
}

// Rank 1 may be reading the first block: it is not written again.
TEST_P(EarlyLarge, WhatIsStagedIsNotStagedTwice) {
  if (resident()) return;  // nothing is
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  Area& area = (*host_.segment().Areas(kWorldSet))[0];
  const std::string staged(area.input[0], kBlockBytes);
  memset(tensors_[0]->input(), 100, tensors_[0]->bytes());
  EarlyAt(0).TakeBack();
  At(0).Start(Operation(0));
  EXPECT_EQ(std::string(area.input[0], kBlockBytes), staged);
  At(1).Start(Operation(1));
  FinishBoth();
}

TEST_P(EarlyLarge, WhatNeverComesLeavesNothingBehind) {
  ASSERT_TRUE(EarlyAt(0).Prepare(Operation(0)));
  EarlyAt(0).Drop();
  memset(tensors_[0]->input(), 100, tensors_[0]->bytes());
  for (int rank : {1, 0}) At(rank).Start(Operation(rank, 9));
  FinishBoth();
  ExpectAll(102);
}

// Faults ----------------------------------------------------------------------------------------

TEST(Shm, OtherLayoutsAreAnErrorOnEveryMember) {
  for (const int64_t elements : {int64_t{8}, int64_t{100'000}}) {
    Host host(3);
    host.Run([&](int local) {
      Worker rank(&host, local);
      std::vector<char> data(static_cast<size_t>(elements));
      const Piece piece = {data.data(), data.data(), elements};
      const absl::Status status = rank.Execute(SumOf(&piece, local == 1 ? 7 : 8));
      EXPECT_TRUE(absl::IsInternal(status)) << "rank " << local << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("another layout"));
    });
  }
}

// Two wait in an operation in which the third takes no part; it fails the membership. Nobody stays.
TEST(Shm, AFailureLeavesNobodyWaiting) {
  for (const int64_t elements : {int64_t{8}, int64_t{3'000'000}}) {
    for (const Place place : {Place::kHeap, Place::kArena}) {
      Host host(3);
      host.Run([&](int local) {
        Worker rank(&host, local);
        Tensor tensor(&host.arena(local), place, DType::kUInt8, elements);
        const Piece piece = {tensor.input(), tensor.output(), elements};
        if (local == 2) {
          if (elements > 8) {  // somewhere in the middle
            rank.communicator()->Start(SumOf(&piece, 1));
            for (int i = 0; i < 6; ++i) EXPECT_TRUE(rank.communicator()->Advance().ok());
          }
          for (const int other : {0, 1}) {
            while (host.segment().page(other).sleep.load() == 0) std::this_thread::yield();
          }
          host.segment().Fail("gone");
          host.neighbours(local).RingAll();
          return;
        }
        EXPECT_EQ(rank.Execute(SumOf(&piece, 1)), absl::AbortedError("gone"));
        rank.communicator()->Abort();
      });
    }
  }
}

// A neighbour that writes nonsense into its part of the segment.
TEST(Shm, MemoryOutsideAnArenaIsRefused) {
  const auto with = [](Descriptor descriptor) {
    Host host(2);
    Worker rank(&host, 0);
    Tensor tensor(&host.arena(0), Place::kArenaInPlace, DType::kUInt8, 100'000);
    const Piece piece = {tensor.input(), tensor.output(), 100'000};
    rank.communicator()->Start(SumOf(&piece, 1));
    Area& area = (*host.segment().Areas(kWorldSet))[1];
    area.digest[0] = 1;
    area.descriptor[0] = descriptor;
    area.arrivals.store(1);
    return rank.communicator()->Advance().status();
  };
  Host host(1);
  const uint64_t end = host.arena(0).memory()->bytes();
  EXPECT_TRUE(with({1, 1, 0, end - 100'000}).ok());
  EXPECT_TRUE(absl::IsInternal(with({1, 1, 0, end - 99'999})));
  EXPECT_TRUE(absl::IsInternal(with({1, 1, end, 0})));
  EXPECT_TRUE(absl::IsInternal(with({1, 1, UINT64_MAX, 0})));
  EXPECT_TRUE(absl::IsInternal(with({2, 1, 0, 0})));
  EXPECT_TRUE(absl::IsInternal(with({1, UINT32_MAX, 0, 0})));
}

// Slices ----------------------------------------------------------------------------------------

TEST(Slices, PartitionTheRangeAtCacheLines) {
  for (const size_t bytes : {1, 2, 4, 8}) {
    const auto line = static_cast<int64_t>(64 / bytes);
    for (const int members : {1, 2, 3, 5, 7, 64, 1'024}) {
      for (const int64_t size : {int64_t{0}, int64_t{1}, line, line + 1, int64_t{1'000},
                                 int64_t{65'536}, int64_t{1'000'003}, INT64_MAX / 16}) {
        const Range range = {line * 10, line * 10 + size};
        int64_t at = range.begin;
        int64_t largest = 0;
        for (int i = 0; i < members; ++i) {
          const Range slice = SliceOf(range, i, members, bytes);
          ASSERT_EQ(slice.begin, at) << bytes << " " << members << " " << size << " " << i;
          ASSERT_GE(slice.size(), 0);
          ASSERT_TRUE(slice.end % line == 0 || slice.end == range.end);
          largest = std::max(largest, slice.size());
          at = slice.end;
        }
        ASSERT_EQ(at, range.end);
        ASSERT_LE(largest, size / members + 2 * line) << "fair shares";
      }
    }
  }
}

}  // namespace
}  // namespace rueda
