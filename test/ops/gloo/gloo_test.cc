// Gloo behind its wall, ranks being threads: results, and what happens when peers don't play along.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "ops/backend/module.h"
#include "ops/kernels/reduce.h"
#include "test/ops/gloo/ranks.h"

namespace rueda {
namespace {

// The thread sanitizer takes its time over the model of large tensors.
#if defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

std::vector<DType> AllDTypes() {
  std::vector<DType> out;
  for (int i = 0; i < kDTypeCount; ++i) out.push_back(static_cast<DType>(i));
  return out;
}

std::vector<ReduceOp> OpsOf(DType dtype) {
  std::vector<ReduceOp> out;
  for (int i = 0; i < kReduceOpCount; ++i) {
    const auto op = static_cast<ReduceOp>(i);
    if (op != ReduceOp::kAdasum && kernels::CheckReducible(dtype, op).ok()) out.push_back(op);
  }
  return out;
}

// The model ------------------------------------------------------------------------------------

using Bytes = std::vector<char>;

template <typename T>
void StoreAs(double value, char* to) {
  const T typed = static_cast<T>(value);
  memcpy(to, &typed, sizeof(T));
}

// One element of any type. The values of these tests are exact in all of them but for quotients.
void Put(DType dtype, double value, char* to) {
  const float single = static_cast<float>(value);
  switch (dtype) {
    case DType::kUInt8:
      return StoreAs<uint8_t>(value, to);
    case DType::kInt8:
      return StoreAs<int8_t>(value, to);
    case DType::kInt16:
      return StoreAs<int16_t>(value, to);
    case DType::kUInt16:
      return StoreAs<uint16_t>(value, to);
    case DType::kInt32:
      return StoreAs<int32_t>(value, to);
    case DType::kUInt32:
      return StoreAs<uint32_t>(value, to);
    case DType::kInt64:
      return StoreAs<int64_t>(value, to);
    case DType::kUInt64:
      return StoreAs<uint64_t>(value, to);
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E5M2:
    case DType::kFloat16:
    case DType::kBFloat16:
      return kernels::FromFloat32(dtype, &single, to, 1);
    case DType::kFloat32:
      return StoreAs<float>(value, to);
    case DType::kFloat64:
      return StoreAs<double>(value, to);
    case DType::kBool:
      return StoreAs<uint8_t>(value, to);
    case DType::kComplex64:
      return StoreAs<std::complex<float>>(value, to);
    case DType::kComplex128:
      return StoreAs<std::complex<double>>(value, to);
  }
}

// What rank `rank` brings at place `i`: 1 to 4, so that the product over four ranks is at most 256
// only where all bring 4, which they don't; in float8, which holds few products, 1 or 2.
double InputAt(DType dtype, int rank, int64_t i) {
  if (dtype == DType::kBool) return (i + rank) % 3 == 0 ? 0 : i % 5 == 0 ? 255 : 1;
  const bool float8 = IsFloating(dtype) && DTypeSize(dtype) == 1;
  return static_cast<double>(1 + (i * 7 + rank * 3) % (float8 ? 2 : 4));
}

double ExpectedOfBool(ReduceOp op, int size, int64_t i) {
  int trues = 0;
  for (int rank = 0; rank < size; ++rank) trues += InputAt(DType::kBool, rank, i) != 0;
  if (op == ReduceOp::kBitXor) return trues % 2;
  const bool both = op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kBitAnd;
  return both ? trues == size : trues > 0;
}

double Expected(DType dtype, ReduceOp op, int size, int64_t i) {
  if (dtype == DType::kBool) return ExpectedOfBool(op, size, i);
  double result = InputAt(dtype, 0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = InputAt(dtype, rank, i);
    const int left = static_cast<int>(result), right = static_cast<int>(next);
    switch (op) {
      case ReduceOp::kMin:
        result = std::min(result, next);
        break;
      case ReduceOp::kMax:
        result = std::max(result, next);
        break;
      case ReduceOp::kProduct:
        result *= next;
        break;
      case ReduceOp::kBitAnd:
        result = left & right;
        break;
      case ReduceOp::kBitOr:
        result = left | right;
        break;
      case ReduceOp::kBitXor:
        result = left ^ right;
        break;
      default:
        result += next;
    }
  }
  return IsAverage(op) ? result / size : result;
}

Bytes Inputs(DType dtype, int rank, int64_t begin, int64_t count) {
  const size_t element_bytes = DTypeSize(dtype);
  Bytes bytes(static_cast<size_t>(count) * element_bytes);
  for (int64_t i = 0; i < count; ++i) {
    Put(dtype, InputAt(dtype, rank, begin + i),
        bytes.data() + static_cast<size_t>(i) * element_bytes);
  }
  return bytes;
}

Bytes Results(DType dtype, ReduceOp op, int size, int64_t begin, int64_t count) {
  const size_t element_bytes = DTypeSize(dtype);
  Bytes bytes(static_cast<size_t>(count) * element_bytes);
  for (int64_t i = 0; i < count; ++i) {
    Put(dtype, Expected(dtype, op, size, begin + i),
        bytes.data() + static_cast<size_t>(i) * element_bytes);
  }
  return bytes;
}

std::string Describe(DType dtype, ReduceOp op, int size, int64_t count) {
  return std::string(DTypeName(dtype)) + " " + std::string(ReduceOpName(op)) + " of " +
         std::to_string(count) + " on " + std::to_string(size) + " ranks";
}

// Results --------------------------------------------------------------------------------------

class Sizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Gloo, Sizes, testing::Values(2, 3, 4));

TEST_P(Sizes, EveryTypeAndOperationIsRightForFusedPieces) {
  const int size = GetParam();
  // One for each way that an allreduce goes: see the table in gloo_module.cc.
  for (const int64_t count : {1, 1'000, 150'000, 1'300'000}) {
    RunMembers(size, [&](Member& member, int rank) {
      for (const DType dtype : AllDTypes()) {
        for (const ReduceOp op : OpsOf(dtype)) {
          if (count > 1'000 && op != ReduceOp::kAverage && dtype != DType::kBool) continue;
          if (kSlow && count > 1'000 && dtype != DType::kFloat32) continue;
          SCOPED_TRACE(Describe(dtype, op, size, count));
          Bytes first = Inputs(dtype, rank, 0, count);
          const Bytes second = Inputs(dtype, rank, count, 17);
          Bytes second_out(second.size(), 'x');
          const Bytes third = Inputs(dtype, rank, count + 17, 3);
          const Piece pieces[] = {{first.data(), first.data(), count},
                                  {nullptr, nullptr, 0},
                                  {second.data(), second_out.data(), 17},
                                  {third.data(), nullptr, 3}};
          ASSERT_TRUE(member.Execute(AllreduceOf(pieces, dtype, op)).ok());
          EXPECT_TRUE(first == Results(dtype, op, size, 0, count));
          EXPECT_TRUE(second_out == Results(dtype, op, size, count, 17));
          EXPECT_TRUE(second == Inputs(dtype, rank, count, 17));
          EXPECT_TRUE(third == Inputs(dtype, rank, count + 17, 3));
        }
      }
    });
  }
}

TEST_P(Sizes, ALoneTensorIsRightInPlaceAndOutOfPlace) {
  const int size = GetParam();
  RunMembers(size, [&](Member& member, int rank) {
    for (const DType dtype : AllDTypes()) {
      const ReduceOp op = IsComplex(dtype) ? ReduceOp::kSum : ReduceOp::kMax;
      for (const bool in_place : {true, false}) {
        const int64_t count = 3'001;
        Bytes input = Inputs(dtype, rank, 0, count);
        Bytes other(input.size(), 'x');
        Bytes& output = in_place ? input : other;
        const Piece piece = {input.data(), output.data(), count};
        ASSERT_TRUE(member.Execute(AllreduceOf({&piece, 1}, dtype, op)).ok());
        EXPECT_TRUE(output == Results(dtype, op, size, 0, count))
            << DTypeName(dtype) << (in_place ? " in place" : "");
        if (!in_place) {
          EXPECT_TRUE(input == Inputs(dtype, rank, 0, count));
        }
      }
    }
  });
}

TEST_P(Sizes, FactorsApplyWhereTheKernelsSay) {
  const int size = GetParam();
  RunMembers(size, [&](Member& member, int rank) {
    for (const DType dtype : AllDTypes()) {
      for (const int64_t count : {5, 70'000}) {
        Bytes mine = Inputs(dtype, rank, 0, count);
        std::vector<Bytes> all;
        std::vector<const void*> sources;
        for (int i = 0; i < size; ++i) all.push_back(Inputs(dtype, i, 0, count));
        for (const Bytes& one : all) sources.push_back(one.data());
        Bytes expected(mine.size());
        const ReduceOp op = dtype == DType::kBool ? ReduceOp::kSum : ReduceOp::kAverage;
        kernels::Reduce(dtype, op, sources, expected.data(), count,
                        {0.75, 3, op == ReduceOp::kAverage ? size : 1});
        const Piece piece = {mine.data(), mine.data(), count};
        BucketOperation operation = AllreduceOf({&piece, 1}, dtype, op);
        operation.scaling.prescale = 0.75;
        operation.scaling.postscale = 3;
        ASSERT_TRUE(member.Execute(operation).ok());
        EXPECT_TRUE(mine == expected) << Describe(dtype, op, size, count);
      }
    }
  });
}

// Sums leave the type on their way between the ranks.
TEST_P(Sizes, AveragesOfIntegersAreThoseOfTheKernels) {
  const int size = GetParam();
  RunMembers(size, [&](Member& member, int rank) {
    for (const DType dtype : AllDTypes()) {
      if (IsFloating(dtype) || IsComplex(dtype) || dtype == DType::kBool) continue;
      for (const Scaling& scaling : {Scaling{1, 1, size}, {0.75, 3, size}, {3, 0.5, size}}) {
        for (const int64_t count : {5, 70'000}) {
          std::vector<Bytes> all;
          std::vector<const void*> sources;
          for (int i = 0; i < size; ++i) {
            std::mt19937 random(static_cast<uint32_t>(i));
            all.emplace_back(static_cast<size_t>(count) * DTypeSize(dtype));
            for (char& byte : all.back()) byte = static_cast<char>(random());
          }
          for (const Bytes& one : all) sources.push_back(one.data());
          Bytes expected(all[0].size());
          kernels::Reduce(dtype, ReduceOp::kAverage, sources, expected.data(), count, scaling);
          Bytes& mine = all[static_cast<size_t>(rank)];
          const Piece piece = {mine.data(), mine.data(), count};
          BucketOperation operation = AllreduceOf({&piece, 1}, dtype, ReduceOp::kAverage);
          operation.scaling = scaling;
          ASSERT_TRUE(member.Execute(operation).ok());
          EXPECT_TRUE(mine == expected) << Describe(dtype, ReduceOp::kAverage, size, count);
        }
      }
    }
  });
}

// Random bits of every kind, not-a-numbers and infinities among them.
Bytes RandomBits(DType dtype, uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed);
  Bytes bytes(static_cast<size_t>(count) * DTypeSize(dtype));
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) * DTypeSize(dtype);
    if (i % 100 == 0) {
      for (size_t b = 0; b < DTypeSize(dtype); ++b) bytes[at + b] = static_cast<char>(random());
    } else {
      Put(dtype, normal(random) * std::exp(normal(random)), bytes.data() + at);
    }
  }
  return bytes;
}

class ManySizes : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Gloo, ManySizes, testing::Values(2, 3, 4, 5, 6, 7, 8));

TEST_P(ManySizes, RanksAgreeBitForBit) {
  const int size = GetParam();
  for (const int64_t count : {1, 3, 1'000, 100'001, 230'007, 600'011}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16}) {
      if (kSlow && count > 1'000 && dtype != DType::kFloat32) continue;
      std::vector<Bytes> results(size);
      RunMembers(size, [&](Member& member, int rank) {
        Bytes data = RandomBits(dtype, static_cast<uint64_t>(rank) * 1'000 + count, count);
        const Piece piece = {data.data(), data.data(), count};
        for (int round = 0; round < 2; ++round) {
          ASSERT_TRUE(member.Execute(AllreduceOf({&piece, 1}, dtype, ReduceOp::kSum)).ok());
        }
        results[rank] = data;
      });
      for (int rank = 1; rank < size; ++rank) {
        EXPECT_TRUE(results[rank] == results[0])
            << "rank " << rank << ", " << Describe(dtype, ReduceOp::kSum, size, count);
      }
    }
  }
}

TEST_P(ManySizes, SmallOnesAreReducedInRankOrder) {
  const int size = GetParam();
  const int64_t count = 1'001;
  RunMembers(size, [&](Member& member, int rank) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
      std::vector<Bytes> all;
      std::vector<const void*> sources;
      for (int i = 0; i < size; ++i) all.push_back(RandomBits(dtype, i, count));
      for (const Bytes& one : all) sources.push_back(one.data());
      Bytes expected(all[0].size());
      kernels::Reduce(dtype, ReduceOp::kSum, sources, expected.data(), count, {});
      Bytes mine = all[rank];
      const Piece piece = {mine.data(), mine.data(), count};
      ASSERT_TRUE(member.Execute(AllreduceOf({&piece, 1}, dtype, ReduceOp::kSum)).ok());
      EXPECT_TRUE(mine == expected) << Describe(dtype, ReduceOp::kSum, size, count);
    }
  });
}

TEST(Gloo, BucketsBeyondAChunkAreRight) {
  constexpr int64_t kCount = 9'500'000;
  for (const DType dtype : {DType::kInt8, DType::kBFloat16, DType::kFloat32}) {
    RunMembers(2, [&](Member& member, int rank) {
      Bytes data = Inputs(dtype, rank, 0, kCount);
      const Bytes more = Inputs(dtype, rank, kCount, kCount);
      Bytes out(more.size());
      const Piece pieces[] = {{data.data(), data.data(), kCount},
                              {more.data(), out.data(), kCount}};
      ASSERT_TRUE(member.Execute(AllreduceOf(pieces, dtype, ReduceOp::kSum)).ok());
      EXPECT_TRUE(data == Results(dtype, ReduceOp::kSum, 2, 0, kCount)) << DTypeName(dtype);
      EXPECT_TRUE(out == Results(dtype, ReduceOp::kSum, 2, kCount, kCount)) << DTypeName(dtype);
    });
  }
}

TEST_P(Sizes, NothingIsMovedForNoElements) {
  RunMembers(GetParam(), [&](Member& member, int) {
    const Piece pieces[] = {{}, {}};
    EXPECT_TRUE(member.Execute(AllreduceOf(pieces, DType::kFloat16, ReduceOp::kAverage)).ok());
    EXPECT_TRUE(member.Execute(AllreduceOf({}, DType::kFloat32, ReduceOp::kSum)).ok());
    EXPECT_TRUE(member.Execute(BroadcastOf(pieces[0], DType::kInt64, 1)).ok());
    const std::vector<int64_t> counts(GetParam(), 0);
    EXPECT_TRUE(member.Execute(AllgatherOf(pieces[0], DType::kInt8, counts)).ok());
    EXPECT_TRUE(member.Execute(BarrierOf()).ok());
  });
}

TEST_P(Sizes, AllgatherPutsUnequalPartsInRankOrder) {
  const int size = GetParam();
  RunMembers(size, [&](Member& member, int rank) {
    // Rank 1 brings nothing, the last one much.
    for (const int64_t most : {3, 3'000'000}) {
      std::vector<int64_t> counts;
      std::vector<int32_t> expected;
      for (int i = 0; i < size; ++i) {
        counts.push_back(i == 1 ? 0 : i == size - 1 ? most : 7 * (i + 1));
        for (int64_t k = 0; k < counts[i]; ++k)
          expected.push_back(static_cast<int32_t>(k * 10 + i));
      }
      std::vector<int32_t> mine;
      for (int64_t k = 0; k < counts[rank]; ++k)
        mine.push_back(static_cast<int32_t>(k * 10 + rank));
      // To an output of its own; where it will stand; and to nobody who wants it (on rank 0).
      std::vector<int32_t> output(expected.size(), -1);
      const Piece piece = {mine.data(), output.data(), counts[rank]};
      ASSERT_TRUE(member.Execute(AllgatherOf(piece, DType::kInt32, counts)).ok());
      EXPECT_TRUE(output == expected);

      int64_t before = 0;
      for (int i = 0; i < rank; ++i) before += counts[i];
      std::vector<int32_t> whole(expected.size(), -1);
      std::copy(mine.begin(), mine.end(), whole.begin() + before);
      const Piece in_place = {whole.data() + before, whole.data(), counts[rank]};
      ASSERT_TRUE(member.Execute(AllgatherOf(in_place, DType::kInt32, counts)).ok());
      EXPECT_TRUE(whole == expected);

      std::fill(output.begin(), output.end(), -1);
      const Piece unwanted = {mine.data(), rank == 0 ? nullptr : output.data(), counts[rank]};
      ASSERT_TRUE(member.Execute(AllgatherOf(unwanted, DType::kInt32, counts)).ok());
      EXPECT_TRUE(rank == 0 || output == expected);
    }
  });
}

TEST_P(Sizes, BroadcastReachesAllFromEachRoot) {
  const int size = GetParam();
  RunMembers(size, [&](Member& member, int rank) {
    for (int root = 0; root < size; ++root) {
      for (const int64_t count : {1, 1'000, 5'000'000}) {
        const Bytes wanted = Inputs(DType::kFloat32, root, 0, count);
        Bytes data = Inputs(DType::kFloat32, rank, 0, count);
        const Piece in_place = {data.data(), data.data(), count};
        ASSERT_TRUE(member.Execute(BroadcastOf(in_place, DType::kFloat32, root)).ok());
        EXPECT_TRUE(data == wanted) << "root " << root;

        const Bytes input = Inputs(DType::kFloat32, rank, 0, count);
        Bytes output(input.size());
        const Piece piece = {input.data(), rank == size - 1 ? nullptr : output.data(), count};
        ASSERT_TRUE(member.Execute(BroadcastOf(piece, DType::kFloat32, root)).ok());
        EXPECT_TRUE(rank == size - 1 || output == wanted) << "root " << root;
        EXPECT_TRUE(input == Inputs(DType::kFloat32, rank, 0, count));
      }
    }
  });
}

TEST_P(Sizes, NobodyLeavesABarrierBeforeAllHaveCome) {
  const int size = GetParam();
  std::atomic<int> arrived{0};
  RunMembers(size, [&](Member& member, int) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      ASSERT_TRUE(member.Execute(BarrierOf()).ok());
      EXPECT_GE(arrived.load(), round * size);
    }
  });
}

TEST(Gloo, ManyMembersAreServedToo) {
  constexpr int kMembers = 18;  // too many for an exchange of all with all
  RunMembers(kMembers, [&](Member& member, int rank) {
    for (const int64_t count : {1, 17, 19, 5'000}) {
      Bytes data = Inputs(DType::kFloat64, rank, 0, count);
      const Piece piece = {data.data(), data.data(), count};
      ASSERT_TRUE(member.Execute(AllreduceOf({&piece, 1}, DType::kFloat64, ReduceOp::kSum)).ok());
      EXPECT_TRUE(data == Results(DType::kFloat64, ReduceOp::kSum, kMembers, 0, count)) << count;
    }
    std::vector<int64_t> counts(kMembers, 1);
    std::vector<uint8_t> all(kMembers), expected(kMembers);
    for (int i = 0; i < kMembers; ++i) expected[i] = static_cast<uint8_t>(i);
    const auto mine = static_cast<uint8_t>(rank);
    const Piece piece = {&mine, all.data(), 1};
    ASSERT_TRUE(member.Execute(AllgatherOf(piece, DType::kUInt8, counts)).ok());
    EXPECT_EQ(all, expected);
  });
}

TEST(Gloo, ManyOperationsInARowDontMixUp) {
  RunMembers(3, [&](Member& member, int rank) {
    for (int round = 0; round < 400; ++round) {
      std::vector<int64_t> data(1 + round % 50, rank + round);
      const Piece piece = {data.data(), data.data(), static_cast<int64_t>(data.size())};
      if (round % 3 == 2) {
        ASSERT_TRUE(member.Execute(BroadcastOf(piece, DType::kInt64, round % 2)).ok());
        ASSERT_EQ(data, std::vector<int64_t>(data.size(), round % 2 + round));
      } else {
        ASSERT_TRUE(member.Execute(AllreduceOf({&piece, 1}, DType::kInt64, ReduceOp::kSum)).ok());
        ASSERT_EQ(data, std::vector<int64_t>(data.size(), 3 + 3 * round));
      }
    }
  });
}

TEST(Gloo, SeveralProcessSetsAreServedAtOnce) {
  const std::vector<std::vector<Rank>> sets = {{0, 1, 2, 3}, {0, 1}, {2, 3}, {1, 3}, {0, 2, 3}};
  const auto store = std::make_shared<MemoryStore>();
  RunThreads(4, [&](int rank) {
    std::vector<std::unique_ptr<Member>> members;
    for (size_t set = 0; set < sets.size(); ++set) {
      const bool in = std::count(sets[set].begin(), sets[set].end(), rank) > 0;
      members.push_back(
          in ? std::make_unique<Member>(OptionsFor(store), static_cast<SetId>(set), sets[set], rank)
             : nullptr);
    }
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<float>> data(sets.size());
      std::vector<Piece> pieces(sets.size());
      for (size_t set = 0; set < sets.size(); ++set) {
        if (members[set] == nullptr) continue;
        data[set].assign(20'000, static_cast<float>(rank + round));
        pieces[set] = {data[set].data(), data[set].data(), 20'000};
        members[set]->communicator()->Start(
            AllreduceOf({&pieces[set], 1}, DType::kFloat32, ReduceOp::kSum));
      }
      // Ranks look after them in different orders.
      for (size_t k = 0; k < sets.size(); ++k) {
        const size_t set = (k + static_cast<size_t>(rank)) % sets.size();
        if (members[set] == nullptr) continue;
        ASSERT_TRUE(members[set]->Finish().ok());
        float sum = 0;
        for (const Rank other : sets[set]) sum += static_cast<float>(other + round);
        EXPECT_EQ(data[set], std::vector<float>(20'000, sum));
      }
    }
  });
}

// Peers that don't play along ------------------------------------------------------------------

TEST(Gloo, AMissingModuleIsAReasonInTheTable) {
  GlooOptions options = OptionsFor(nullptr);
  options.module_directory = "/nowhere";
  const GlooBackend backend(std::move(options));
  Members members;
  members.ranks = {0, 1};
  const absl::Status status = backend.Viable(members);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "/nowhere/librueda_gloo.so")) << status;
}

TEST(Gloo, AnyGroupOfTwoRanksOrMoreIsViable) {
  const GlooBackend backend(OptionsFor(nullptr));
  Members members;
  members.ranks = {0};
  EXPECT_FALSE(backend.Viable(members).ok());
  members.ranks = {0, 1};
  EXPECT_TRUE(backend.Viable(members).ok()) << backend.Viable(members);
  members.one_host = false;
  EXPECT_TRUE(backend.Viable(members).ok());
}

TEST(Gloo, AnInterfaceThatDoesNotExistIsRefusedWithThoseThatDo) {
  GlooOptions options = OptionsFor(std::make_shared<MemoryStore>());
  options.network_interface = "tin0";
  GlooBackend backend(std::move(options));
  Members members;
  members.ranks = {0, 1};
  const absl::Status status = backend.Connect(members).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "tin0")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "lo")) << status;
}

TEST(Gloo, KeysOfTheStoreNameJobMembershipAndProcessSetAndFit) {
  const auto store = std::make_shared<MemoryStore>();
  GlooOptions options = OptionsFor(store);
  options.job = std::string(1'000, 'j');
  options.membership = 12;
  RunThreads(2, [&](int rank) {
    Member member(options, 34, {5, 9}, rank == 0 ? 5 : 9);
    EXPECT_TRUE(member.Execute(BarrierOf()).ok());
  });
  EXPECT_EQ(store->values().size(), 2u);
  for (const auto& [key, value] : store->values()) {
    EXPECT_TRUE(absl::StartsWith(key, "gloo/jjjj")) << key;
    EXPECT_TRUE(absl::StrContains(key, "/12/34.0/")) << key;
    EXPECT_LE(key.size(), 256u);
  }
}

GlooOptions Impatient(const std::shared_ptr<MemoryStore>& store) {
  GlooOptions options = OptionsFor(store);
  options.timeout = 300 * kMillisecond;
  return options;
}

TEST(Gloo, AMemberThatNeverComesIsNamedInTime) {
  Member member(Impatient(std::make_shared<MemoryStore>()), kWorldSet, {0, 1, 2}, 1);
  const Nanos start = MonotonicNow();
  const absl::Status status = member.Execute(BarrierOf());
  EXPECT_GE(MonotonicNow() - start, 300 * kMillisecond);
  EXPECT_LT(MonotonicNow() - start, 10 * kSecond);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "gloo: member 0 of 3 did not come within 300 ms"))
      << status;
}

TEST(Gloo, AMemberThatComesAndDoesNotConnectIsNoticedInTime) {
  const auto store = std::make_shared<MemoryStore>();
  {  // Leaves its address behind, where nobody listens any more, or nobody will ever connect from.
    Member gone(Impatient(store), kWorldSet, {0, 1}, 0);
    EXPECT_FALSE(gone.Execute(BarrierOf()).ok());
  }
  Member member(Impatient(store), kWorldSet, {0, 1}, 1);
  const Nanos start = MonotonicNow();
  const absl::Status status = member.Execute(BarrierOf());
  EXPECT_LT(MonotonicNow() - start, 10 * kSecond);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "connecting to member 0")) << status;
}

TEST(Gloo, AnOperationThatAPeerNeverStartsTimesOut) {
  const auto store = std::make_shared<MemoryStore>();
  std::atomic<bool> over{false};
  RunThreads(2, [&](int rank) {
    Member member(Impatient(store), kWorldSet, {0, 1}, rank);
    ASSERT_TRUE(member.Execute(BarrierOf()).ok());
    if (rank == 1) {
      while (!over) std::this_thread::yield();
      return;
    }
    const absl::Status status = member.Execute(BarrierOf());
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), "gloo: Timed out waiting 300ms")) << status;
    over = true;
  });
}

TEST(Gloo, BucketsThatDifferTimeOutRatherThanAddUp) {
  const auto store = std::make_shared<MemoryStore>();
  RunThreads(2, [&](int rank) {
    Member member(Impatient(store), kWorldSet, {0, 1}, rank);
    ASSERT_TRUE(member.Execute(BarrierOf()).ok());
    std::vector<float> data(10, 1);
    const Piece piece = {data.data(), data.data(), 10};
    BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
    operation.digest = 77 + static_cast<uint32_t>(rank);
    EXPECT_TRUE(absl::IsUnavailable(member.Execute(operation)));
    EXPECT_EQ(data, std::vector<float>(10, 1));
  });
}

TEST(Gloo, AnAbortIsQuickWhenAPeerNeverStartsAndTellsTheOthers) {
  RunMembers(3, [&](Member& member, int rank) {
    ASSERT_TRUE(member.Execute(BarrierOf()).ok());
    if (rank == 2) {  // stays, and never starts; what the others do ends it
      EXPECT_FALSE(member.Execute(BarrierOf()).ok());
      return;
    }
    std::vector<float> data(100, 1);
    const Piece piece = {data.data(), data.data(), 100};
    const BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum);
    member.communicator()->Start(operation);
    if (rank == 0) {
      const Nanos start = MonotonicNow();
      member.communicator()->Abort();
      EXPECT_LT(MonotonicNow() - start, 5 * kSecond);
      std::fill(data.begin(), data.end(), 3.0f);
      member.Close();
      EXPECT_EQ(data, std::vector<float>(100, 3));
    } else {
      const Nanos start = MonotonicNow();
      const absl::Status status = member.Finish();
      EXPECT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_LT(MonotonicNow() - start, 20 * kSecond);
    }
  });
}

TEST(Gloo, AnAbortInTheMiddleOfMuchDataIsQuickAndLeavesItAlone) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "libgloo's thread is ordered by a counter that the thread sanitizer does not see";
#endif
  for (int round = 0; round < 10; ++round) {
    const auto store = std::make_shared<MemoryStore>();
    RunThreads(2, [&](int rank) {
      GlooOptions options = OptionsFor(store);
      // A peer that is lost in the middle of a message may be noticed by the clock only.
      if (rank == 1) options.timeout = 2 * kSecond;
      Member member(options, kWorldSet, {0, 1}, rank);
      ASSERT_TRUE(member.Execute(BarrierOf()).ok());
      std::vector<float> data(4'000'000, 1);
      const Piece piece = {data.data(), data.data(), 4'000'000};
      member.communicator()->Start(AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum));
      const Nanos start = MonotonicNow();
      if (rank == 0) {
        while (MonotonicNow() < start + round * kMillisecond) std::this_thread::yield();
        const Nanos abort = MonotonicNow();
        member.communicator()->Abort();
        EXPECT_LT(MonotonicNow() - abort, 5 * kSecond);
        std::fill(data.begin(), data.end(), 3.0f);
        member.Close();
        EXPECT_EQ(data, std::vector<float>(data.size(), 3));
      } else {
        (void)member.Finish();  // it may have been done
        EXPECT_LT(MonotonicNow() - start, 20 * kSecond);
      }
    });
  }
}

TEST(Gloo, AnAbortOfAConnectionUnderWayIsQuick) {
  const auto store = std::make_shared<MemoryStore>();
  Member member(OptionsFor(store), kWorldSet, {0, 1}, 0);
  std::vector<float> data(100, 1);
  const Piece piece = {data.data(), data.data(), 100};
  member.communicator()->Start(AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kSum));
  store->AwaitWaiter();
  const Nanos start = MonotonicNow();
  store->Abort();  // as the engine does, first
  member.communicator()->Abort();
  std::fill(data.begin(), data.end(), 3.0f);
  member.Close();
  EXPECT_LT(MonotonicNow() - start, 5 * kSecond);
}

// Its process set is removed, and the job goes on: this would wait for an hour.
TEST(Gloo, ALaneThatConnectsEndsWithoutTheJob) {
  const auto store = std::make_shared<MemoryStore>();
  GlooOptions options = OptionsFor(store);
  options.timeout = 3'600 * kSecond;
  Member member(options, kWorldSet, {0, 1}, 0);
  member.communicator()->Start(BarrierOf());
  store->AwaitWaiter();
  member.Close();
  EXPECT_TRUE(store->Set("others", "go on").ok());
}

// A peer whose addresses are there and that does not connect, either.
TEST(Gloo, AnAbortWhileAPairWaitsForItsConnectionIsQuick) {
  for (const int rank : {0, 1}) {
    const auto store = std::make_shared<MemoryStore>();
    Member peer(OptionsFor(store), kWorldSet, {0, 1, 2}, rank == 0 ? 1 : 0);
    Member member(OptionsFor(store), kWorldSet, {0, 1, 2}, rank);
    member.communicator()->Start(BarrierOf());
    store->AwaitWaiter();
    peer.communicator()->Start(BarrierOf());  // both now wait for each other or for member 2
    const Nanos start = MonotonicNow();
    store->Abort();
    member.communicator()->Abort();
    peer.communicator()->Abort();
    member.Close();
    peer.Close();
    EXPECT_LT(MonotonicNow() - start, 5 * kSecond);
  }
}

TEST(Gloo, AMissingMemberIsDeadlineExceededAtTheWall) {
  const absl::StatusOr<const rueda_module*> module =
      LoadModule({"gloo"}, RUEDA_TEST_MODULE_DIRECTORY);
  ASSERT_TRUE(module.ok()) << module.status();
  rueda_module_group group = {};
  group.size = sizeof(group);
  group.members = 2;
  group.self = 1;
  group.prefix = "prefix";
  group.interface = "lo";
  group.timeout = kSecond;
  group.store.set = [](void*, const char*, const void*, size_t, char*) -> int32_t { return 0; };
  group.store.get = [](void*, const char*, int64_t timeout, void*, size_t*, char*) -> int32_t {
    EXPECT_LE(timeout, kSecond);
    return static_cast<int32_t>(absl::StatusCode::kDeadlineExceeded);
  };
  rueda_module_communicator* communicator = nullptr;
  char message[RUEDA_MODULE_MESSAGE_BYTES];
  ASSERT_EQ((*module)->create(&group, &communicator, message), 0);
  EXPECT_EQ((*module)->connect(communicator, -1, message),
            static_cast<int32_t>(absl::StatusCode::kDeadlineExceeded));
  (*module)->abort(communicator);
  EXPECT_EQ((*module)->barrier(communicator, 1, message),
            static_cast<int32_t>(absl::StatusCode::kAborted));
  (*module)->destroy(communicator);
}

}  // namespace
}  // namespace rueda
