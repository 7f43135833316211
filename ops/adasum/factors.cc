// PURE
#include "ops/adasum/factors.h"

namespace rueda {
namespace {

// A vector as the factors of the inputs that make it up.
using Combination = std::vector<double>;

// Where the product of inputs i and j is in the upper triangle.
size_t IndexOf(size_t i, size_t j, size_t members) {
  if (i > j) return IndexOf(j, i, members);
  return i * members - i * (i + 1) / 2 + j;
}

double Dot(const Combination& a, const Combination& b, absl::Span<const double> products) {
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      // Inputs that have no part in it don't touch it, not even with a NaN.
      if (a[i] != 0 && b[j] != 0) dot += a[i] * b[j] * products[IndexOf(i, j, a.size())];
    }
  }
  return dot;
}

// What of a vector goes into the combination; all of it when it has no length.
double Share(double dot, double square) {
  return square == 0 ? 1 : 1 - dot / (2 * square);
}

void CombineInto(Combination* a, const Combination& b, absl::Span<const double> products) {
  const double dot = Dot(*a, b, products);
  const double of_a = Share(dot, Dot(*a, *a, products));
  const double of_b = Share(dot, Dot(b, b, products));
  for (size_t i = 0; i < a->size(); ++i) (*a)[i] = of_a * (*a)[i] + of_b * b[i];
}

}  // namespace

std::vector<double> AdasumFactors(absl::Span<const double> products, int members) {
  const size_t count = static_cast<size_t>(members);
  std::vector<Combination> vectors(count, Combination(count, 0));
  for (size_t i = 0; i < count; ++i) vectors[i][i] = 1;
  size_t power = 1;
  while (2 * power <= count) power *= 2;
  for (size_t i = power; i < count; ++i) CombineInto(&vectors[i - power], vectors[i], products);
  for (size_t distance = 1; distance < power; distance *= 2) {
    for (size_t i = 0; i < power; i += 2 * distance) {
      CombineInto(&vectors[i], vectors[i + distance], products);
    }
  }
  return vectors[0];
}

}  // namespace rueda
