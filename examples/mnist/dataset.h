// Handwritten digits: the 1,797 small ones of the UCI repository, or MNIST's own files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace mnist {

// `count` images, row by row, of `height` x `width` values between 0 and 1, and what they show.
struct Images {
  int64_t count = 0;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<float> pixels;
  std::vector<int64_t> labels;
};

struct Dataset {
  Images train;
  Images test;
};

// Reads `path`: a directory is MNIST's, a file the UCI digits as comma-separated values. Throws
// std::runtime_error that says which file is wrong, and how.
Dataset Load(const std::filesystem::path& path);

// A line an image: 64 values from 0 to 16, then the digit. Every fifth line (the 5th, 10th, ...) is
// for the test.
Dataset LoadDigits(const std::filesystem::path& file);

// train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
// t10k-labels-idx1-ubyte, unpacked; "images.idx3" for "images-idx3" does too.
Dataset LoadIdx(const std::filesystem::path& directory);

// Where third_party/setup.sh puts the UCI digits.
std::filesystem::path DefaultPath();

}  // namespace mnist
