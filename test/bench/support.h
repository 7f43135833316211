// What every part of the benchmarks needs.
#pragma once

#include <string>

#include "rueda/rueda.h"

namespace rueda::bench {

[[noreturn]] void Die(const std::string& what);
// The same, of what the command line asks for: exit status 2.
[[noreturn]] void Misused(const std::string& what);

void Check(rueda_status status);

double NowUs();

void SleepSeconds(double seconds);

// A context of all ranks; `name` is null for the job's own.
rueda_context* Init(const char* name);

}  // namespace rueda::bench
