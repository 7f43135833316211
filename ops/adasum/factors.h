// Adasum as a linear combination: the pairwise combinations of arXiv 2006.02924 give vectors that
// are sums of the inputs times factors, and the dot products that decide on the factors follow from
// those of the inputs. PURE
#pragma once

#include <vector>

#include "absl/types/span.h"

namespace rueda {

// The factors of `members` inputs, given their dot products: row by row of the upper triangle, 0
// with 0, 0 with 1, ..., 1 with 1, ... Pairs are combined as a binary tree, neighbours first; if
// `members` is no power of two, those above the largest one below are first combined with the
// lowest.
std::vector<double> AdasumFactors(absl::Span<const double> products, int members);

}  // namespace rueda
