/* How all programs of the comparison are timed, those in C too: each measures an operation equally
 * often. */
#ifndef RUEDA_TEST_BENCH_PEERS_TIMING_H_
#define RUEDA_TEST_BENCH_PEERS_TIMING_H_

#include <time.h>

/* In microseconds, since some moment. */
static inline double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* How often an operation of so many bytes is measured. */
static inline int iterations_for(long bytes) {
  return bytes <= 4 << 10    ? 20000
         : bytes <= 64 << 10 ? 2000
         : bytes <= 1 << 20  ? 200
         : bytes <= 16 << 20 ? 30
         : bytes <= 64 << 20 ? 8
                             : 5;
}

#endif /* RUEDA_TEST_BENCH_PEERS_TIMING_H_ */
