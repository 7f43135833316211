#include "test/bench/support.h"

#include <errno.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "test/bench/peers/timing.h"

namespace rueda::bench {

namespace {

[[noreturn]] void End(const std::string& what, int status) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::fflush(nullptr);
  std::_Exit(
      status);  // the library's threads run: static objects must not be taken from under them
}

}  // namespace

void Die(const std::string& what) {
  End(what, 1);
}

void Misused(const std::string& what) {
  End(what, 2);
}

void Check(rueda_status status) {
  if (status != RUEDA_OK) Die(rueda_last_error());
}

double NowUs() {
  return now_us();
}

void SleepSeconds(double seconds) {
  timespec time = {
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  while (nanosleep(&time, &time) != 0) {
  }
}

rueda_context* Init(const char* name) {
  rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
  init.flags = RUEDA_INIT_READ_ENVIRONMENT;
  init.name = name;
  rueda_context* context = nullptr;
  Check(rueda_init(RUEDA_VERSION, &init, &context));
  return context;
}

}  // namespace rueda::bench
