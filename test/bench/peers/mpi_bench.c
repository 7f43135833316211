/* MPI_Allreduce of float32 (sum, in place), or MPI_Iallreduce of a batch, as rueda_bench measures
 * its own: one JSON line per size.
 *
 *     mpirun -np N mpi_bench ROW [--op OPERATION] [--dtype bfloat16] BYTES|COUNTxBYTES...
 *
 * OPERATION: another of rueda_bench's, blocking; a broadcast begins behind a barrier, and is over
 * when the last rank has it, as Rueda's is. bfloat16: sums of it by a function of ours, as MPI
 * has none, rounded once each. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

enum operation { ALLREDUCE, BROADCAST, ALLGATHER, ALLTOALL, REDUCESCATTER, BARRIER, OPERATIONS };
static const char* const kNames[] = {"allreduce", "broadcast",     "allgather",
                                     "alltoall",  "reducescatter", "barrier"};

/* What is measured; constant. */
static enum operation g_operation = ALLREDUCE;
static MPI_Datatype g_type;
static MPI_Op g_sum;
static int g_element = 4; /* bytes */
static int g_size = 1;    /* ranks */

struct batch {
  int tensors;  /* 0: one, blocking */
  long bytes;   /* of each */
  char* data;   /* of all, one behind the other */
  char* result; /* where it is not in place */
  MPI_Request* requests;
};

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static float to_float(unsigned short half) {
  const unsigned bits = (unsigned)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static unsigned short to_bfloat16(float value) { /* to the nearest, ties to even; no NaN here */
  unsigned bits;
  memcpy(&bits, &value, sizeof bits);
  return (unsigned short)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static void add_bfloat16(void* in, void* inout, int* count, MPI_Datatype* type) {
  const unsigned short* from = in;
  unsigned short* to = inout;
  (void)type;
  for (int i = 0; i < *count; ++i) to[i] = to_bfloat16(to_float(to[i]) + to_float(from[i]));
}

static void once(const struct batch* batch) {
  const int elements = (int)(batch->bytes / g_element);
  const int share = elements / g_size;
  if (batch->tensors > 0) {
    for (int i = 0; i < batch->tensors; ++i) {
      MPI_Iallreduce(MPI_IN_PLACE, batch->data + i * batch->bytes, elements, g_type, g_sum,
                     MPI_COMM_WORLD, &batch->requests[i]);
    }
    MPI_Waitall(batch->tensors, batch->requests, MPI_STATUSES_IGNORE);
    return;
  }
  switch (g_operation) {
    case ALLREDUCE:
      MPI_Allreduce(MPI_IN_PLACE, batch->data, elements, g_type, g_sum, MPI_COMM_WORLD);
      break;
    case BROADCAST:
      MPI_Bcast(batch->data, elements, g_type, 0, MPI_COMM_WORLD);
      break;
    case ALLGATHER:
      MPI_Allgather(batch->data, elements, g_type, batch->result, elements, g_type, MPI_COMM_WORLD);
      break;
    case ALLTOALL:
      MPI_Alltoall(batch->data, share, g_type, batch->result, share, g_type, MPI_COMM_WORLD);
      break;
    case REDUCESCATTER:
      MPI_Reduce_scatter_block(batch->data, batch->result, share, g_type, g_sum, MPI_COMM_WORLD);
      break;
    default:
      MPI_Barrier(MPI_COMM_WORLD);
  }
}

static void run(const struct batch* batch, int iterations, double* times) {
  for (int i = 0; i < iterations; ++i) {
    if (batch->tensors > 0 || g_operation == BROADCAST) MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    once(batch);
    times[i] = (MPI_Wtime() - start) * 1e6;
  }
}

/* Of an allreduce of ones; leaves zeros. */
static void check(const struct batch* batch, long elements) {
  float* values = (float*)batch->data;
  unsigned short* halves = (unsigned short*)batch->data;
  for (long i = 0; i < elements; ++i) {
    if (g_element == 4)
      values[i] = 1;
    else
      halves[i] = to_bfloat16(1);
  }
  once(batch);
  for (long i = 0; i < elements; ++i) {
    if ((g_element == 4 ? values[i] : to_float(halves[i])) != (float)g_size) {
      fprintf(stderr, "mpi_bench: wrong result\n");
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  memset(batch->data, 0, (size_t)(elements * g_element));
}

static void measure(const char* row, struct batch* batch, int rank, int size) {
  if (g_operation == ALLTOALL || g_operation == REDUCESCATTER) { /* whole shares, as rueda_bench */
    batch->bytes = (batch->bytes + 4 * size - 1) / (4 * size) * 4 * size;
  }
  const long bytes = batch->bytes * (batch->tensors > 0 ? batch->tensors : 1);
  batch->data = calloc(bytes > 0 ? (size_t)bytes : 1, 1);
  batch->result = calloc((size_t)(g_operation == ALLGATHER ? bytes * size : bytes) + 1, 1);
  batch->requests = malloc(sizeof(MPI_Request) * (size_t)(batch->tensors + 1));
  int iterations = iterations_for(bytes);
  double* times = malloc(sizeof(double) * (size_t)iterations);
  if (g_operation == ALLREDUCE) check(batch, bytes / g_element);
  /* At most a second's worth, the same on all ranks. */
  run(batch, 5, times);
  qsort(times, 5, sizeof(double), compare);
  double first = times[2];
  MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (iterations > 1e6 / first) iterations = (int)(1e6 / first);
  if (iterations < 5) iterations = 5;
  run(batch, iterations / 10 + 1, times);
  run(batch, iterations, times);
  qsort(times, (size_t)iterations, sizeof(double), compare);
  double p50 = times[iterations / 2];
  if (g_operation == BROADCAST) {
    MPI_Allreduce(MPI_IN_PLACE, &p50, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  if (rank == 0) {
    char op[64];
    snprintf(op, sizeof op, "%s", kNames[g_operation]);
    if (batch->tensors > 0) snprintf(op, sizeof op, "many_%dx%ld", batch->tensors, batch->bytes);
    printf(
        "{\"peer\": \"%s\", \"op\": \"%s\", \"np\": %d, \"bytes\": %ld, \"p50_us\": %.2f, "
        "\"min_us\": %.2f, \"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
        row, op, size, bytes, p50, times[0], times[iterations * 99 / 100],
        (double)bytes / p50 / 1e3);
    fflush(stdout);
  }
  free(times);
  free(batch->requests);
  free(batch->result);
  free(batch->data);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  g_size = size;
  g_type = MPI_FLOAT;
  g_sum = MPI_SUM;
  int arg = 2;
  for (; arg + 1 < argc && strncmp(argv[arg], "--", 2) == 0; arg += 2) {
    if (strcmp(argv[arg], "--dtype") == 0 && strcmp(argv[arg + 1], "bfloat16") == 0) {
      g_type = MPI_UINT16_T;
      g_element = 2;
      MPI_Op_create(add_bfloat16, 1, &g_sum);
      continue;
    }
    int known = 0;
    while (known < OPERATIONS && strcmp(argv[arg + 1], kNames[known]) != 0) ++known;
    if (strcmp(argv[arg], "--op") != 0 || known == OPERATIONS) {
      fprintf(stderr, "mpi_bench: %s %s is none of the options\n", argv[arg], argv[arg + 1]);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    g_operation = (enum operation)known;
  }
  for (; arg < argc; ++arg) {
    const char* x = strchr(argv[arg], 'x');
    struct batch batch = {x != NULL ? atoi(argv[arg]) : 0, atol(x != NULL ? x + 1 : argv[arg]),
                          NULL, NULL, NULL};
    measure(argv[1], &batch, rank, size);
  }
  MPI_Finalize();
  return 0;
}
