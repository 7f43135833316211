// Adasum's factors, against the definition applied to the vectors themselves, in float64.
#include "ops/adasum/factors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace rueda {
namespace {

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i];
  return dot;
}

// The definition: arXiv 2006.02924, equation 4.
Vector Pair(const Vector& a, const Vector& b) {
  const double dot = Dot(a, b), aa = Dot(a, a), bb = Dot(b, b);
  Vector sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = (aa == 0 ? 1 : 1 - dot / (2 * aa)) * a[i] + (bb == 0 ? 1 : 1 - dot / (2 * bb)) * b[i];
  }
  return sum;
}

Vector Tree(std::vector<Vector> vectors) {
  size_t power = 1;
  while (power * 2 <= vectors.size()) power *= 2;
  for (size_t i = power; i < vectors.size(); ++i) {
    vectors[i - power] = Pair(vectors[i - power], vectors[i]);
  }
  vectors.resize(power);
  while (vectors.size() > 1) {
    std::vector<Vector> half;
    for (size_t i = 0; i < vectors.size(); i += 2) half.push_back(Pair(vectors[i], vectors[i + 1]));
    vectors = half;
  }
  return vectors[0];
}

Vector ByFactors(const std::vector<Vector>& vectors) {
  std::vector<double> products;
  for (size_t i = 0; i < vectors.size(); ++i) {
    for (size_t j = i; j < vectors.size(); ++j) products.push_back(Dot(vectors[i], vectors[j]));
  }
  const std::vector<double> factors = AdasumFactors(products, static_cast<int>(vectors.size()));
  Vector sum(vectors[0].size(), 0);
  for (size_t r = 0; r < vectors.size(); ++r) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factors[r] * vectors[r][i];
  }
  return sum;
}

TEST(AdasumFactors, FollowTheDefinitionForAnyNumberOfMembers) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (int members = 1; members <= 17; ++members) {
    std::vector<Vector> vectors(members, Vector(50));
    const Vector common = [&] {
      Vector v(50);
      for (double& x : v) x = normal(random);
      return v;
    }();
    for (Vector& vector : vectors) {
      for (size_t i = 0; i < vector.size(); ++i) vector[i] = common[i] + normal(random);
    }
    const Vector expected = Tree(vectors), actual = ByFactors(vectors);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 1e-12 * (1 + std::abs(expected[i]))) << members;
    }
  }
}

TEST(AdasumFactors, ParallelVectorsAreAveragedAndOrthogonalOnesAdded) {
  EXPECT_EQ(ByFactors({{1, 2}, {1, 2}}), (Vector{1, 2}));
  EXPECT_EQ(ByFactors({{2, 0}, {0, 3}}), (Vector{2, 3}));
}

TEST(AdasumFactors, AVectorOfZerosChangesNothing) {
  EXPECT_EQ(ByFactors({{0, 0}, {4, 5}}), (Vector{4, 5}));
  EXPECT_EQ(ByFactors({{4, 5}, {0, 0}, {0, 0}}), (Vector{4, 5}));
  EXPECT_EQ(ByFactors({{0, 0}, {0, 0}}), (Vector{0, 0}));
}

}  // namespace
}  // namespace rueda
