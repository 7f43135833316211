// Runs the fuzz target without libFuzzer: over every file of a folder, and over mutations of them
// from fixed seeds, so that each run is the same.
//
//   fuzz_corpus_test FOLDER MUTATIONS
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

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
  }
  return paths.empty() ? 1 : 0;
}
