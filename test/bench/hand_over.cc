#include "test/bench/hand_over.h"

#include <errno.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "test/bench/support.h"

namespace rueda::bench {
namespace {

std::string Joined(const std::vector<size_t>& sizes) {
  std::string text;
  for (const size_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}

std::string ShapeText(const StepShape& shape) {
  if (shape.layers == 0) return "";
  return std::to_string(shape.layers) + "x" + std::to_string(shape.width) + "x" +
         std::to_string(shape.batch);
}

}  // namespace

void HandOver(const Options& options) {
  const std::string what = options.vs.empty() ? "scaling" : "vs";
  if (std::getenv("RUEDA_RANK") != nullptr) {
    Misused("--" + what + " starts the ranks itself: run it without ruedarun");
  }
  std::filesystem::path folder = options.peers_dir;
  if (folder.empty()) folder = RUEDA_PEERS_DIR;
  const std::string program = folder / (options.vs.empty() ? "scaling.py" : "compare.py");
  if (!std::filesystem::exists(program)) {
    Die("there is no " + program + "; say with --peers-dir where test/bench/peers is");
  }
  std::vector<std::string> words = {"python3", program};
  const auto add = [&words](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--bin", std::filesystem::read_symlink("/proc/self/exe").parent_path());
  add("--vs", options.vs);
  add("--scaling", options.scaling);
  add("--np", options.np);
  add("--bytes", Joined(options.bytes));
  add("--step", ShapeText(options.step));
  add("--rounds", options.rounds);
  add("--results", options.results);
  add("--plot", options.plot);
  if (options.iterations > 0) add("--iterations", std::to_string(options.iterations));
  if (options.registered) words.push_back("--registered");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  Die(std::string("python3 can't be started: ") + std::strerror(errno));
}

}  // namespace rueda::bench
