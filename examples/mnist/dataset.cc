#include "examples/mnist/dataset.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace mnist {
namespace {

constexpr int64_t kDigits = 10;

[[noreturn]] void Fail(const std::filesystem::path& file, const std::string& what) {
  throw std::runtime_error(file.string() + ": " + what);
}

void Add(const std::vector<int>& line, Images* images) {
  for (int64_t i = 0; i < images->height * images->width; ++i) {
    images->pixels.push_back(static_cast<float>(line[i]) / 16);
  }
  images->labels.push_back(line.back());
  ++images->count;
}

// The whole file.
std::string Read(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) Fail(file, "can't be opened");
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return std::move(bytes).str();
}

// The 32-bit number, high byte first, at `offset`.
int64_t Number(const std::string& bytes, size_t offset) {
  int64_t number = 0;
  for (size_t i = 0; i < 4; ++i) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i]);
  }
  return number;
}

// The sizes in the header of an IDX file of bytes with `dims` dimensions; the file is as long as
// they say.
std::vector<int64_t> ReadHeader(const std::filesystem::path& file, const std::string& bytes,
                                size_t dims) {
  if (bytes.starts_with("\x1f\x8b")) Fail(file, "is compressed; unpack it with gunzip");
  const size_t header = 4 + 4 * dims;
  const int64_t magic = 0x800 + static_cast<int64_t>(dims);
  if (bytes.size() < header) Fail(file, "is too short for an IDX file");
  if (Number(bytes, 0) != magic) {
    Fail(file, "begins with " + std::to_string(Number(bytes, 0)) + " instead of " +
                   std::to_string(magic) + ": not an IDX file of bytes in " + std::to_string(dims) +
                   " dimensions");
  }
  std::vector<int64_t> sizes;
  int64_t expected = 1;
  for (size_t i = 0; i < dims; ++i) {
    const int64_t size = Number(bytes, 4 + 4 * i);
    const int64_t limit = i == 0 ? 10'000'000 : 1024;
    if (size < 1 || size > limit) {
      Fail(file, "dimension " + std::to_string(i) + " is " + std::to_string(size) +
                     "; expected 1 to " + std::to_string(limit));
    }
    sizes.push_back(size);
    expected *= size;
  }
  const int64_t got = static_cast<int64_t>(bytes.size() - header);
  if (got != expected) {
    Fail(file, "has " + std::to_string(got) + " bytes of data where its header says " +
                   std::to_string(expected));
  }
  return sizes;
}

std::filesystem::path Find(const std::filesystem::path& directory, const std::string& name) {
  std::string other = name;
  other[other.find("-idx")] = '.';
  for (const std::string& candidate : {name, other}) {
    if (std::filesystem::exists(directory / candidate)) return directory / candidate;
  }
  if (std::filesystem::exists(directory / (name + ".gz"))) {
    Fail(directory / (name + ".gz"), "is compressed; unpack it with gunzip");
  }
  Fail(directory, "has no " + name + ", one of MNIST's four files");
}

Images LoadPart(const std::filesystem::path& directory, const std::string& part) {
  const std::filesystem::path images_file = Find(directory, part + "-images-idx3-ubyte");
  const std::filesystem::path labels_file = Find(directory, part + "-labels-idx1-ubyte");
  const std::string pixels = Read(images_file);
  const std::string labels = Read(labels_file);
  const std::vector<int64_t> sizes = ReadHeader(images_file, pixels, 3);
  const std::vector<int64_t> label_sizes = ReadHeader(labels_file, labels, 1);
  if (label_sizes[0] != sizes[0]) {
    Fail(labels_file, "has " + std::to_string(label_sizes[0]) + " labels for " +
                          std::to_string(sizes[0]) + " images");
  }
  Images images{sizes[0], sizes[1], sizes[2], {}, {}};
  images.pixels.reserve(pixels.size());
  for (size_t i = 16; i < pixels.size(); ++i) {
    images.pixels.push_back(static_cast<float>(static_cast<unsigned char>(pixels[i])) / 255);
  }
  for (size_t i = 8; i < labels.size(); ++i) {
    const int64_t label = static_cast<unsigned char>(labels[i]);
    if (label >= kDigits) Fail(labels_file, "has a label " + std::to_string(label));
    images.labels.push_back(label);
  }
  return images;
}

}  // namespace

Dataset LoadDigits(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    Fail(file,
         "can't be opened. third_party/setup.sh puts the digits in " + DefaultPath().string());
  }
  Dataset dataset{{0, 8, 8, {}, {}}, {0, 8, 8, {}, {}}};
  std::string text;
  for (int64_t number = 1; std::getline(stream, text); ++number) {
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream words(text);
    std::vector<int> line;
    for (int value; words >> value;) line.push_back(value);
    const bool fits = words.eof() && line.size() == 65 && line.back() >= 0 &&
                      line.back() < kDigits &&
                      std::all_of(line.begin(), line.end() - 1,
                                  [](int value) { return value >= 0 && value <= 16; });
    if (!fits) {
      Fail(file, "line " + std::to_string(number) +
                     " is not 64 numbers from 0 to 16 and a digit, separated by commas");
    }
    Add(line, number % 5 == 0 ? &dataset.test : &dataset.train);
  }
  if (dataset.test.count == 0) Fail(file, "has fewer than five images");
  return dataset;
}

Dataset LoadIdx(const std::filesystem::path& directory) {
  Dataset dataset{LoadPart(directory, "train"), LoadPart(directory, "t10k")};
  if (dataset.train.height != dataset.test.height || dataset.train.width != dataset.test.width) {
    Fail(directory, "has images of different sizes for training and test");
  }
  return dataset;
}

Dataset Load(const std::filesystem::path& path) {
  return std::filesystem::is_directory(path) ? LoadIdx(path) : LoadDigits(path);
}

std::filesystem::path DefaultPath() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      cache != nullptr && *cache != '\0'
          ? std::filesystem::path(cache)
          : std::filesystem::path(home == nullptr ? "" : home) / ".cache";
  return base / "rueda" / "data" / "digits.csv";
}

}  // namespace mnist
