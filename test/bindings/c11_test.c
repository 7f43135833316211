/* The header is C11, and a C program can do everything with it. Compiled as C; exits with 0 or says
 * what went wrong. */
#include <rueda/rueda.h>

#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                                      \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, rueda_last_error()); \
      return 1;                                                                               \
    }                                                                                         \
  } while (0)

_Static_assert(sizeof(rueda_dtype) == 4, "the layout of DLPack's DLDataType");
_Static_assert(sizeof(rueda_device) == 8, "the layout of DLPack's DLDevice");
_Static_assert(sizeof(rueda_tensor) == 48, "the layout of DLPack's DLTensor");
_Static_assert(offsetof(rueda_tensor, device) == 8, "the layout of DLPack's DLTensor");
_Static_assert(offsetof(rueda_tensor, dtype) == 20, "the layout of DLPack's DLTensor");
_Static_assert(offsetof(rueda_tensor, shape) == 24, "the layout of DLPack's DLTensor");
_Static_assert(offsetof(rueda_tensor, byte_offset) == 40, "the layout of DLPack's DLTensor");

static int calls = 0;

static void count_call(void* user, rueda_handle handle, rueda_status status) {
  (void)handle;
  if (status == RUEDA_OK && user == &calls) ++calls;
}

int main(void) {
  CHECK(rueda_version() == RUEDA_VERSION);
  CHECK(strcmp(rueda_status_name(RUEDA_ABORTED), "ABORTED") == 0);

  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  const char* knobs[] = {"fusion_threshold", "1048576", "log_level", "error"};
  options.name = "c11";
  options.knobs = knobs;
  options.knob_count = 2;
  rueda_context* context = NULL;
  CHECK(rueda_init(RUEDA_VERSION, &options, &context) == RUEDA_OK);
  CHECK(rueda_rank(context) == 0 && rueda_size(context) == 1);

  float values[6] = {1, 2, 3, 4, 5, 6};
  int64_t shape[2] = {2, 3};
  rueda_tensor tensor = {values, {RUEDA_CPU, 0}, 2, RUEDA_FLOAT32, shape, NULL, 0};
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_SUM;
  operation.name = "values";
  operation.input = &tensor;
  operation.postscale = 2;
  rueda_completion completion = RUEDA_COMPLETION_INIT;
  completion.callback = count_call;
  completion.user = &calls;
  completion.flags = RUEDA_COMPLETION_INLINE;
  rueda_handle handle = 0;
  CHECK(rueda_submit(context, &operation, 1, &completion, &handle) == RUEDA_OK);
  CHECK(rueda_wait(context, handle, RUEDA_FOREVER) == RUEDA_OK);
  CHECK(values[5] == 12);
  rueda_error error = RUEDA_ERROR_INIT;
  CHECK(rueda_handle_error(context, handle, &error) == RUEDA_OK && error.code == RUEDA_OK);
  CHECK(rueda_release(context, handle) == RUEDA_OK);
  CHECK(rueda_wait(context, handle, 0) == RUEDA_NOT_FOUND);

  rueda_operation gather = RUEDA_OPERATION_INIT;
  gather.kind = RUEDA_ALLGATHER;
  gather.input = &tensor;
  CHECK(rueda_execute(context, &gather, 1, RUEDA_FOREVER, &handle) == RUEDA_OK);
  rueda_result result = RUEDA_RESULT_INIT;
  CHECK(rueda_result_take(context, handle, 0, &result) == RUEDA_OK);
  CHECK(result.tensor.ndim == 2 && result.tensor.shape[0] == 2 && result.tensor.shape[1] == 3);
  CHECK(rueda_release(context, handle) == RUEDA_OK);
  CHECK(rueda_shutdown(context) == RUEDA_OK);
  rueda_context_destroy(context);
  CHECK(((float*)result.tensor.data)[5] == 12); /* it outlives the context */
  rueda_result_free(&result);
  CHECK(calls == 1);
  return 0;
}
