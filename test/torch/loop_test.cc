// examples/torch_loop runs, and docs/guides/libtorch.md and docs/guides/strategies.md quote it word
// for word.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "test/torch/ranks.h"

namespace {

namespace fs = std::filesystem;

std::vector<std::string> Lines(const fs::path& file) {
  std::ifstream stream(file);
  EXPECT_TRUE(stream) << file;
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The page's blocks of C++.
std::vector<std::vector<std::string>> Quotes(const fs::path& page) {
  std::vector<std::vector<std::string>> blocks;
  bool inside = false;
  for (const std::string& line : Lines(page)) {
    if (inside && line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back().push_back(line);
    } else if (line == "```cpp") {
      inside = true;
      blocks.emplace_back();
    }
  }
  return blocks;
}

TEST(TorchLoop, ComesToTheWeightsOfOneProcess) {
  const fs::path bin = fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin";
  for (const int ranks : {1, 2, 3}) {
    const auto ended = rueda::test::RunProgram(ranks, {(bin / "torch_loop").string()});
    for (const auto& rank : ended) EXPECT_EQ(rank.status, 0) << rank.out << rank.err;
    EXPECT_NE(ended[0].out.find("replicas equal"), std::string::npos) << ended[0].out;
  }
}

TEST(TorchLoop, IsWhatItsPagesQuote) {
  const fs::path root = RUEDA_SOURCE_DIR;
  const std::vector<std::string> code = Lines(root / "examples/torch_loop/torch_loop.cc");
  auto blocks = Quotes(root / "docs/guides/libtorch.md");
  EXPECT_GE(blocks.size(), 4u);
  const auto more = Quotes(root / "docs/guides/strategies.md");
  EXPECT_GE(more.size(), 1u);
  blocks.insert(blocks.end(), more.begin(), more.end());
  for (const auto& block : blocks) {
    EXPECT_NE(std::search(code.begin(), code.end(), block.begin(), block.end()), code.end())
        << "not in torch_loop.cc:\n"
        << testing::PrintToString(block);
  }
}

}  // namespace
