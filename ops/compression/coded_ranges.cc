// PURE
#include "ops/compression/coded_ranges.h"

#include <algorithm>
#include <numeric>

#include "ops/compression/codec.h"

namespace rueda {

void CodedRanges::Add(Compressor compressor, size_t operand, int64_t begin, int64_t elements) {
  if (elements == 0) return;
  ranges_.push_back({operand, begin, elements});
  bytes_.back() += CodedBytes(compressor, elements);
}

void CodedRanges::Cut(Compressor compressor, absl::Span<const Size> operands,
                      absl::Span<const int64_t> shares, int members) {
  ranges_.clear();
  first_.clear();
  bytes_.clear();
  for (int owner = 0; owner < members; ++owner) {
    first_.push_back(ranges_.size());
    bytes_.push_back(0);
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!shares.empty()) {
        const int64_t* const own = &shares[i * static_cast<size_t>(members)];
        Add(compressor, i, std::accumulate(own, own + owner, int64_t{0}), own[owner]);
        continue;
      }
      const auto [elements, identity] = operands[i];
      const int64_t blocks = (elements + kCodecBlock - 1) / kCodecBlock;
      const int64_t part = static_cast<int64_t>((static_cast<uint64_t>(owner) + identity) %
                                                static_cast<uint64_t>(members));
      const auto begin_of = [&, all = elements](int64_t k) {
        return std::min(blocks * k / members * kCodecBlock, all);
      };
      Add(compressor, i, begin_of(part), begin_of(part + 1) - begin_of(part));
    }
  }
  first_.push_back(ranges_.size());
}

int64_t CodedRanges::bytes_of_all() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0});
}

}  // namespace rueda
