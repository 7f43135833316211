// The two steps of Adasum: dot products and combination, against models of one element at a time.
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/kernels/adasum.h"
#include "test/ops/kernels/formats.h"
#include "test/ops/kernels/targets.h"

namespace rueda::kernels {
namespace {

using Bytes = std::vector<uint8_t>;

constexpr DType kAdasumDTypes[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                                   DType::kFloat64};
constexpr size_t kCounts[] = {0, 1, 2, 7, 15, 16, 17, 31, 33, 100, 1023, 1024, 1025, 1040, 3001};

double ElementOf(DType dtype, const Bytes& from, size_t i) {
  const uint8_t* const at = from.data() + i * DTypeSize(dtype);
  if (dtype == DType::kFloat64) {
    double value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (dtype == DType::kFloat32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return FormatOf(dtype).Decode(bits);
}

void PutElement(DType dtype, double value, Bytes* to, size_t i) {
  uint8_t* const at = to->data() + i * DTypeSize(dtype);
  const auto narrow = static_cast<float>(value);
  if (dtype == DType::kFloat64) {
    std::memcpy(at, &value, sizeof(value));
  } else if (dtype == DType::kFloat32) {
    std::memcpy(at, &narrow, sizeof(narrow));
  } else {
    const uint16_t bits = FormatOf(dtype).Encode(value);
    std::memcpy(at, &bits, sizeof(bits));
  }
}

std::vector<Bytes> RandomVectors(DType dtype, size_t n, size_t count) {
  std::mt19937_64 random(n);
  std::normal_distribution<double> normal;
  std::vector<Bytes> out(n, Bytes(count * DTypeSize(dtype)));
  for (Bytes& vector : out) {
    for (size_t i = 0; i < count; ++i) PutElement(dtype, normal(random), &vector, i);
  }
  return out;
}

// Copies that begin `shift` bytes, and some more each, after an allocation's start.
struct Placed {
  Placed(const std::vector<Bytes>& vectors, size_t shift) {
    for (const Bytes& vector : vectors) {
      const size_t start = shift + blocks.size();
      Bytes block(start);
      block.insert(block.end(), vector.begin(), vector.end());
      blocks.push_back(std::move(block));
      pointers.push_back(blocks.back().data() + start);
    }
  }
  std::vector<Bytes> blocks;
  std::vector<const void*> pointers;
};

// Blocks of 1,024 elements, 16 sums in each, added up in halves.
double OrderedProduct(DType dtype, const Bytes& x, const Bytes& y, size_t count, double start) {
  for (size_t at = 0; at < count; at += 1024) {
    double sums[16] = {};
    for (size_t i = at; i < std::min(count, at + 1024); ++i) {
      sums[i % 16] += ElementOf(dtype, x, i) * ElementOf(dtype, y, i);
    }
    for (size_t half : {8, 4, 2, 1}) {
      for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    start += sums[0];
  }
  return start;
}

using AdasumTest = OnTarget;
INSTANTIATE_TEST_SUITE_P(Targets, AdasumTest, testing::ValuesIn(Targets()), NameOfTarget);

TEST_P(AdasumTest, ProductsAreSummedInOneOrderAndAddedToWhatIsThere) {
  for (DType dtype : kAdasumDTypes) {
    for (size_t n : {1, 2, 3, 8}) {
      for (size_t count : kCounts) {
        const std::vector<Bytes> vectors = RandomVectors(dtype, n, count);
        std::vector<double> expected;
        for (size_t r = 0; r < n; ++r) {
          for (size_t s = r; s < n; ++s) {
            expected.push_back(OrderedProduct(dtype, vectors[r], vectors[s], count, 0.1));
          }
        }
        std::vector<double> products(expected.size() + 1, 0.1);
        AddProducts(dtype, Placed(vectors, 0).pointers, static_cast<int64_t>(count),
                    products.data());
        expected.push_back(0.1);
        EXPECT_EQ(products, expected)
            << DTypeName(dtype) << ", " << n << " vectors of " << count << " elements";
      }
    }
  }
}

TEST_P(AdasumTest, ProductsDoNotDependOnAlignment) {
  for (DType dtype : kAdasumDTypes) {
    for (size_t count : {5, 1100}) {
      const std::vector<Bytes> vectors = RandomVectors(dtype, 2, count);
      double expected[3] = {};
      AddProducts(dtype, Placed(vectors, 0).pointers, static_cast<int64_t>(count), expected);
      for (size_t shift = 1; shift < 64; ++shift) {
        double products[3] = {};
        AddProducts(dtype, Placed(vectors, shift).pointers, static_cast<int64_t>(count), products);
        EXPECT_EQ(std::memcmp(products, expected, sizeof(products)), 0)
            << DTypeName(dtype) << ", shift " << shift;
      }
    }
  }
}

TEST_P(AdasumTest, ProductsAreAsGoodAsFloat64) {
  constexpr size_t kCount = 20'000;
  for (DType dtype : kAdasumDTypes) {
    const std::vector<Bytes> vectors = RandomVectors(dtype, 2, kCount);
    long double sum = 0, magnitudes = 0;
    for (size_t i = 0; i < kCount; ++i) {
      const long double product = static_cast<long double>(ElementOf(dtype, vectors[0], i)) *
                                  ElementOf(dtype, vectors[1], i);
      sum += product;
      magnitudes += std::fabs(product);
    }
    double products[3] = {};
    AddProducts(dtype, Placed(vectors, 0).pointers, kCount, products);
    // A product's rounding, 64 additions in a lane, 4 of the lanes, one for each of 20 blocks.
    EXPECT_LE(std::fabs(products[1] - sum), (1 + 64 + 4 + 20) * 0x1p-53 * magnitudes)
        << DTypeName(dtype);
  }
}

TEST_P(AdasumTest, AProductThatIsNoNumberIsTheOneNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float x[] = {infinity, -infinity, 1}, y[] = {1, 1, 1};
  const float z[] = {std::bit_cast<float>(0xff800123), 1, 1};
  const void* const vectors[] = {x, y, z};
  double products[6] = {};
  AddProducts(DType::kFloat32, vectors, 3, products);
  EXPECT_EQ(products[0], infinity);
  EXPECT_EQ(products[3], 3);
  for (size_t i : {1, 2, 4, 5}) {
    EXPECT_EQ(std::bit_cast<uint64_t>(products[i]), 0x7ff8000000000000u) << i;
  }
}

// ---- combination ----

template <class T>
double Combined(DType dtype, const std::vector<Bytes>& sources, const std::vector<double>& factors,
                size_t i) {
  T sum = 0;
  for (size_t r = 0; r < sources.size(); ++r) {
    const T term = static_cast<T>(factors[r]) * static_cast<T>(ElementOf(dtype, sources[r], i));
    sum = r == 0 ? term : sum + term;
  }
  return sum;
}

Bytes CombinedModel(DType dtype, const std::vector<Bytes>& sources,
                    const std::vector<double>& factors) {
  Bytes out(sources[0].size());
  for (size_t i = 0; i < out.size() / DTypeSize(dtype); ++i) {
    const double value = dtype == DType::kFloat64 ? Combined<double>(dtype, sources, factors, i)
                                                  : Combined<float>(dtype, sources, factors, i);
    PutElement(dtype, value, &out, i);
  }
  return out;
}

std::vector<double> FactorsFor(size_t n) {
  const double all[] = {0.3, -1.7, 1, 0, 1e-3, 2, 1 / 3.0, 5};
  return {all, all + n};
}

TEST_P(AdasumTest, ACombinationAgreesWithTheModel) {
  for (DType dtype : kAdasumDTypes) {
    for (size_t n : {1, 2, 3, 8}) {
      for (size_t count : kCounts) {
        const std::vector<Bytes> sources = RandomVectors(dtype, n, count);
        const Bytes expected = CombinedModel(dtype, sources, FactorsFor(n));
        for (size_t shift : {0, 1, 6, 63}) {
          Bytes out(shift + expected.size() + 8, 0xcd), wanted = out;
          std::copy(expected.begin(), expected.end(), wanted.begin() + shift);
          Combine(dtype, Placed(sources, shift).pointers, FactorsFor(n), out.data() + shift,
                  static_cast<int64_t>(count));
          EXPECT_TRUE(out == wanted)
              << DTypeName(dtype) << ", " << n << " of " << count << ", shift " << shift;
        }
      }
    }
  }
}

TEST_P(AdasumTest, TheDestinationMayBeASource) {
  for (DType dtype : kAdasumDTypes) {
    for (size_t target : {0, 1, 2}) {
      std::vector<Bytes> working = RandomVectors(dtype, 3, 777);
      const Bytes expected = CombinedModel(dtype, working, FactorsFor(3));
      const void* const sources[] = {working[0].data(), working[1].data(), working[2].data()};
      Combine(dtype, sources, FactorsFor(3), working[target].data(), 777);
      EXPECT_TRUE(working[target] == expected) << DTypeName(dtype) << " into " << target;
    }
  }
}

// ---- both ----

// Adasum of two vectors, by the paper's formula.
Bytes AdasumOf(DType dtype, const Bytes& x, const Bytes& y) {
  const void* const vectors[] = {x.data(), y.data()};
  const auto count = static_cast<int64_t>(x.size() / DTypeSize(dtype));
  double products[3] = {};
  AddProducts(dtype, vectors, count, products);
  const double factors[] = {1 - products[1] / (2 * products[0]),
                            1 - products[1] / (2 * products[2])};
  Bytes out(x.size());
  Combine(dtype, vectors, factors, out.data(), count);
  return out;
}

TEST_P(AdasumTest, OrthogonalVectorsAreAddedAndEqualOnesAreAveraged) {
  for (DType dtype : kAdasumDTypes) {
    Bytes x(40 * DTypeSize(dtype)), y = x, sum = x;
    for (size_t i = 0; i < 40; ++i) {
      const auto value = static_cast<double>(i % 7) - 3;
      PutElement(dtype, i % 2 == 0 ? value : 0, &x, i);
      PutElement(dtype, i % 2 == 1 ? value : 0, &y, i);
      PutElement(dtype, value, &sum, i);
    }
    EXPECT_TRUE(AdasumOf(dtype, x, y) == sum) << DTypeName(dtype);
    EXPECT_TRUE(AdasumOf(dtype, sum, sum) == sum) << DTypeName(dtype);
  }
}

TEST(AdasumDeathTest, ABrokenCallIsOurOwnBug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  int32_t value = 1;
  double product = 0;
  const double factors[] = {1, 2};
  const void* const source[] = {&value};
  EXPECT_DEATH(AddProducts(DType::kInt32, source, 1, &product), "int32");
  EXPECT_DEATH(AddProducts(DType::kFloat32, source, -1, &product), "count");
  EXPECT_DEATH(Combine(DType::kComplex64, source, {factors, 1}, &value, 0), "complex64");
  EXPECT_DEATH(Combine(DType::kFloat32, source, factors, &value, 1), "factors");
}

}  // namespace
}  // namespace rueda::kernels
