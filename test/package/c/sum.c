/* A C11 program outside the tree: sums a vector over two ranks and checks the result. */
#include <rueda/rueda.h>

#include <stdio.h>

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "%d: %s: %s\n", __LINE__, #condition, rueda_last_error()); \
      return 1;                                                                  \
    }                                                                            \
  } while (0)

int main(void) {
  CHECK(rueda_version() == RUEDA_VERSION);

  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;
  rueda_context* context = NULL;
  CHECK(rueda_init(RUEDA_VERSION, &options, &context) == RUEDA_OK);
  CHECK(rueda_size(context) == 2);

  int64_t values[3];
  for (int i = 0; i < 3; ++i) values[i] = 10 * i + rueda_rank(context);
  int64_t shape[1] = {3};
  const rueda_tensor tensor = {values, {RUEDA_CPU, 0}, 1, RUEDA_INT64, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_SUM;
  operation.name = "values";
  operation.input = &tensor;
  rueda_handle handle = 0;
  CHECK(rueda_submit(context, &operation, 1, NULL, &handle) == RUEDA_OK);
  CHECK(rueda_wait(context, handle, RUEDA_FOREVER) == RUEDA_OK);
  CHECK(rueda_release(context, handle) == RUEDA_OK);
  for (int i = 0; i < 3; ++i) CHECK(values[i] == 20 * i + 1);

  const int rank = rueda_rank(context);
  CHECK(rueda_shutdown(context) == RUEDA_OK);
  rueda_context_destroy(context);
  printf("rank %d: right\n", rank);
  return 0;
}
