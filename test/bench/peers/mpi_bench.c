/* MPI_Allreduce of float32, in place, as rueda_bench measures its own: one JSON line a size.
 *
 *     mpirun -np N mpi_bench PEER BYTES... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int iterations_for(long bytes) {
  return bytes <= 4 << 10    ? 20000
         : bytes <= 64 << 10 ? 2000
         : bytes <= 1 << 20  ? 200
         : bytes <= 16 << 20 ? 30
                             : 8;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int arg = 2; arg < argc; ++arg) {
    const long bytes = atol(argv[arg]);
    const int elements = (int)(bytes / 4);
    float* data = malloc(bytes > 0 ? (size_t)bytes : 1);
    for (int i = 0; i < elements; ++i) data[i] = 1;
    MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < elements; ++i) {
      if (data[i] != (float)size) {
        fprintf(stderr, "mpi_bench: wrong result\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      data[i] = 0;
    }
    const int iterations = iterations_for(bytes);
    const int warm = iterations / 10 + 1;
    double* times = malloc(sizeof(double) * (size_t)iterations);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -warm; i < iterations; ++i) {
      const double start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (i >= 0) times[i] = (MPI_Wtime() - start) * 1e6;
    }
    if (rank == 0) {
      qsort(times, (size_t)iterations, sizeof(double), compare);
      const double p50 = times[iterations / 2];
      printf(
          "{\"peer\": \"%s\", \"op\": \"allreduce\", \"np\": %d, \"bytes\": %ld, "
          "\"p50_us\": %.2f, \"min_us\": %.2f, \"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
          argv[1], size, bytes, p50, times[0], times[iterations * 99 / 100],
          (double)bytes / p50 / 1e3);
      fflush(stdout);
    }
    free(times);
    free(data);
  }
  MPI_Finalize();
  return 0;
}
