// Prints docs/reference/knobs.md.
#include <cstdio>

#include "core/config/config.h"

int main() {
  std::fputs(rueda::KnobsMarkdown().c_str(), stdout);
  return 0;
}
