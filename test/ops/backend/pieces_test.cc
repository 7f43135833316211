// A bucket's pieces as one sequence, over random cuts with fixed seeds. Each test's own thread.
#include "ops/backend/pieces.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace rueda {
namespace {

// Pieces of random sizes, some empty; the inputs' bytes are all different from their neighbours'.
struct Bucket {
  explicit Bucket(uint32_t seed) : random(seed) {
    element_bytes = size_t{1} << random() % 4;
    const int count = static_cast<int>(random() % 6);
    for (int i = 0; i < count; ++i) {
      const size_t elements = random() % 3 == 0 ? 0 : random() % 20;
      inputs.emplace_back(elements * element_bytes);
      outputs.emplace_back(elements * element_bytes, '.');
      for (char& byte : inputs.back()) byte = static_cast<char>(random());
      dense.append(inputs.back().begin(), inputs.back().end());
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto elements = static_cast<int64_t>(inputs[i].size() / element_bytes);
      all.push_back({elements == 0 ? nullptr : inputs[i].data(), outputs[i].data(), elements});
    }
    pieces.Reset(all, element_bytes);
  }
  std::string Outputs() const {
    std::string text;
    for (const std::vector<char>& output : outputs) text.append(output.begin(), output.end());
    return text;
  }

  std::mt19937 random;
  size_t element_bytes;
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<Piece> all;
  std::string dense;  // the inputs, one behind the other
  Pieces pieces;
};

TEST(Pieces, CountTheirElements) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Bucket bucket(seed);
    EXPECT_EQ(static_cast<size_t>(bucket.pieces.elements()) * bucket.element_bytes,
              bucket.dense.size());
    EXPECT_EQ(bucket.pieces.single(), bucket.all.size() == 1);
  }
}

TEST(Pieces, AnyRangeIsPackedDensely) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const Bucket bucket(seed);
    const int64_t elements = bucket.pieces.elements();
    for (int64_t begin = 0; begin <= elements; begin += 3) {
      for (int64_t end = begin; end <= elements; end += 5) {
        const size_t bytes = static_cast<size_t>(end - begin) * bucket.element_bytes;
        std::string packed(bytes + 8, '#');
        bucket.pieces.Pack(begin, end, packed.data());
        ASSERT_EQ(packed,
                  bucket.dense.substr(static_cast<size_t>(begin) * bucket.element_bytes, bytes) +
                      "########")
            << "seed " << seed << ", [" << begin << ", " << end << ")";
      }
    }
  }
}

TEST(Pieces, AnyRangeIsUnpackedAndNothingElse) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Bucket bucket(seed);
    const int64_t elements = bucket.pieces.elements();
    const int64_t begin = elements == 0 ? 0 : bucket.random() % elements;
    const int64_t end = begin + bucket.random() % (elements - begin + 1);
    const size_t from = static_cast<size_t>(begin) * bucket.element_bytes;
    const size_t bytes = static_cast<size_t>(end - begin) * bucket.element_bytes;
    bucket.pieces.Unpack(begin, end, bucket.dense.data() + from);
    std::string expected(bucket.dense.size(), '.');
    expected.replace(from, bytes, bucket.dense.substr(from, bytes));
    ASSERT_EQ(bucket.Outputs(), expected) << "seed " << seed;
  }
}

TEST(Pieces, AnOutputThatIsNotWantedIsSkipped) {
  char first[2] = {'a', 'b'}, last[2] = {'.', '.'};
  const Piece all[] = {{first, nullptr, 2}, {first, last, 2}};
  Pieces pieces;
  pieces.Reset(all, 1);
  pieces.Unpack(0, 4, "wxyz");
  EXPECT_EQ(std::string(first, 2), "ab");
  EXPECT_EQ(std::string(last, 2), "yz");
}

TEST(Pieces, NothingIsFine) {
  Pieces pieces;
  pieces.Reset({}, 4);
  EXPECT_EQ(pieces.elements(), 0);
  pieces.Pack(0, 0, nullptr);
  pieces.Unpack(0, 0, nullptr);
}

}  // namespace
}  // namespace rueda
