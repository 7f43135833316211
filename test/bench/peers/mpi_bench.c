/* MPI_Allreduce of float32 (sum, in place), or MPI_Iallreduce of a batch, as rueda_bench measures
 * its own: one JSON line per size.
 *
 *     mpirun -np N mpi_bench ROW BYTES|COUNTxBYTES... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct batch {
  int tensors; /* 0: one, blocking */
  long bytes;  /* of each */
  float* data; /* of all, one behind the other */
  MPI_Request* requests;
};

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int iterations_for(long bytes) {
  return bytes <= 4 << 10    ? 20000
         : bytes <= 64 << 10 ? 2000
         : bytes <= 1 << 20  ? 200
         : bytes <= 16 << 20 ? 30
         : bytes <= 64 << 20 ? 8
                             : 5;
}

static void once(const struct batch* batch) {
  const int elements = (int)(batch->bytes / 4);
  if (batch->tensors == 0) {
    MPI_Allreduce(MPI_IN_PLACE, batch->data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return;
  }
  for (int i = 0; i < batch->tensors; ++i) {
    MPI_Iallreduce(MPI_IN_PLACE, batch->data + (long)i * elements, elements, MPI_FLOAT, MPI_SUM,
                   MPI_COMM_WORLD, &batch->requests[i]);
  }
  MPI_Waitall(batch->tensors, batch->requests, MPI_STATUSES_IGNORE);
}

static void run(const struct batch* batch, int iterations, double* times) {
  for (int i = 0; i < iterations; ++i) {
    if (batch->tensors > 0) MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    once(batch);
    times[i] = (MPI_Wtime() - start) * 1e6;
  }
}

static void measure(const char* row, struct batch* batch, int rank, int size) {
  const long bytes = batch->bytes * (batch->tensors > 0 ? batch->tensors : 1);
  const long elements = bytes / 4;
  batch->data = malloc(bytes > 0 ? (size_t)bytes : 1);
  batch->requests = malloc(sizeof(MPI_Request) * (size_t)(batch->tensors + 1));
  int iterations = iterations_for(bytes);
  double* times = malloc(sizeof(double) * (size_t)iterations);
  for (long i = 0; i < elements; ++i) batch->data[i] = 1;
  once(batch);
  for (long i = 0; i < elements; ++i) {
    if (batch->data[i] != (float)size) {
      fprintf(stderr, "mpi_bench: wrong result\n");
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    batch->data[i] = 0;
  }
  /* At most a second's worth, the same on all ranks. */
  run(batch, 5, times);
  qsort(times, 5, sizeof(double), compare);
  double first = times[2];
  MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (iterations > 1e6 / first) iterations = (int)(1e6 / first);
  if (iterations < 5) iterations = 5;
  run(batch, iterations / 10 + 1, times);
  run(batch, iterations, times);
  if (rank == 0) {
    char op[64] = "allreduce";
    if (batch->tensors > 0) snprintf(op, sizeof op, "many_%dx%ld", batch->tensors, batch->bytes);
    qsort(times, (size_t)iterations, sizeof(double), compare);
    const double p50 = times[iterations / 2];
    printf(
        "{\"peer\": \"%s\", \"op\": \"%s\", \"np\": %d, \"bytes\": %ld, \"p50_us\": %.2f, "
        "\"min_us\": %.2f, \"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
        row, op, size, bytes, p50, times[0], times[iterations * 99 / 100],
        (double)bytes / p50 / 1e3);
    fflush(stdout);
  }
  free(times);
  free(batch->requests);
  free(batch->data);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int arg = 2; arg < argc; ++arg) {
    const char* x = strchr(argv[arg], 'x');
    struct batch batch = {x != NULL ? atoi(argv[arg]) : 0, atol(x != NULL ? x + 1 : argv[arg]),
                          NULL, NULL};
    measure(argv[1], &batch, rank, size);
  }
  MPI_Finalize();
  return 0;
}
