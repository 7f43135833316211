// Timelines in tests: check_timeline.py looks at them, as a parser that is not ours.
#pragma once

#include <stdio.h>

#include <string>
#include <vector>

namespace rueda::testing {

// What check_timeline.py, which CHECK_TIMELINE names, says with these options about these files;
// "" when all is well.
inline std::string TimelineComplaint(const std::vector<std::string>& options,
                                     const std::vector<std::string>& files) {
  std::string command = "python3 '" CHECK_TIMELINE "'";
  for (const auto* words : {&options, &files}) {
    for (const std::string& word : *words) {
      command += " '";
      for (const char c : word) command += c == '\'' ? std::string("'\\''") : std::string(1, c);
      command += "'";
    }
  }
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "can't run " + command;
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return status == 0 ? output : output + " (status " + std::to_string(status) + ")";
}

}  // namespace rueda::testing
