// Runs the fuzz target without libFuzzer: over every file of a folder, over mutations of them from
// fixed seeds, so that each run is the same, and, of the short ones, with lengths of 40 MB in every
// two places of them. No input may make anybody ask for more memory at once than the longest frame
// takes.
//
//   fuzz_corpus_test FOLDER MUTATIONS
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/limits.h"
#include "google/protobuf/stubs/logging.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

void* operator new(size_t bytes) {
  RUEDA_CHECK(bytes <= rueda::kControlFrameBytesMax) << "somebody asked for " << bytes << " bytes";
  void* memory = std::malloc(bytes);
  if (memory == nullptr) std::abort();
  return memory;
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace {

// All messages that travel are in inputs as short.
constexpr size_t kLiesBytesMax = 320;

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// Changes all but the first byte, which chooses the reader.
std::string Mutated(std::string input, std::mt19937* random) {
  const int changes = 1 + static_cast<int>((*random)() % 4);
  for (int i = 0; i < changes; ++i) {
    const size_t at = 1 + (*random)() % std::max<size_t>(input.size() - 1, 1);
    const char kTelling[] = {0, 1, 2, '\x7f', '\x80', '\xff'};
    switch ((*random)() % 6) {
      case 0:
        input.resize(at);
        break;
      case 1:
        if (at < input.size()) input[at] ^= static_cast<char>(1 << (*random)() % 8);
        break;
      case 2:
        if (at < input.size()) input[at] = kTelling[(*random)() % sizeof kTelling];
        break;
      case 3:
        input.insert(std::min(at, input.size()), 1 + (*random)() % 12,
                     static_cast<char>((*random)()));
        break;
      case 4:
        if (at < input.size()) input.erase(at, 1 + (*random)() % 8);
        break;
      default:  // a piece of itself, elsewhere
        if (at < input.size()) input.insert(1, input.substr(at, (*random)() % 40));
    }
  }
  return input;
}

// A message may lie about its length, and then a text in it, which is believed as far as the first
// lie goes. The second takes as many bytes from the text as both put in, so that the lengths around
// them stay true.
void RunWithLies(const std::string& input) {
  const std::string kOfMessage = "\xc0\xb8\xc6\x13";  // 41,000,000 as a varint
  const std::string kOfText = "\x80\xb4\x89\x13";     // 40,000,000
  for (size_t i = 1; i < input.size(); ++i) {
    const std::string lying = std::string(input).replace(i, 1, kOfMessage);
    for (size_t j = i + kOfMessage.size(); j < lying.size(); ++j) {
      Run(std::string(lying).replace(j, 7, kOfText));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fuzz_corpus_test FOLDER MUTATIONS\n");
    return 2;
  }
  google::protobuf::SetLogHandler(nullptr);  // it has a line for each text that is not UTF-8
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  const int mutations = std::atoi(argv[2]);
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string input((std::istreambuf_iterator<char>(file)), {});
    // On the screen before it runs, so that a crash names its input.
    std::printf("%s: %zu bytes and %d mutations\n", path.filename().c_str(), input.size(),
                mutations);
    std::fflush(stdout);
    Run(input);
    for (int seed = 0; seed < mutations && !input.empty(); ++seed) {
      std::mt19937 random(static_cast<uint32_t>(seed));
      Run(Mutated(input, &random));
    }
    if (input.size() <= kLiesBytesMax) RunWithLies(input);
  }
  return paths.empty() ? 1 : 0;
}
