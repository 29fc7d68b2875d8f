/* Each pointer argument NULL in turn: the argument is named, outputs are zeroed. destroy(NULL). */
#include <string.h>
#include "tests/abi/check.h"

#define CHECK_NULL(call, name) CHECK_FAILS((call), PKV_INVALID_ARGUMENT, name " is NULL")

static void test_runtime_nulls(pkv_runtime *runtime) {
  int32_t number = 0;
  const char *text = "x";
  pkv_backend_info info;
  CHECK_OK(pkv_backend_info_init(&info, sizeof(info)));

  CHECK_NULL(pkv_runtime_create(NULL, NULL), "out");
  CHECK_NULL(pkv_runtime_describe(NULL, &text), "runtime");
  CHECK(text == NULL);
  CHECK_NULL(pkv_runtime_describe(runtime, NULL), "out");
  CHECK_NULL(pkv_runtime_backend_count(NULL, &number), "runtime");
  CHECK_NULL(pkv_runtime_backend_count(runtime, NULL), "out");
  CHECK_NULL(pkv_runtime_backend_info(NULL, 0, &info), "runtime");
  CHECK_NULL(pkv_runtime_backend_info(runtime, 0, NULL), "out");
  CHECK_NULL(pkv_runtime_backend_load(NULL, "/x", &number), "runtime");
  CHECK_NULL(pkv_runtime_backend_load(runtime, NULL, &number), "path");
  CHECK_NULL(pkv_runtime_backend_load(runtime, "/x", NULL), "out_index");

  CHECK_FAILS(pkv_runtime_backend_info(runtime, -1, &info), PKV_OUT_OF_RANGE, "index=-1");
  CHECK_OK(pkv_runtime_backend_count(runtime, &number));
  CHECK_FAILS(pkv_runtime_backend_info(runtime, number, &info), PKV_OUT_OF_RANGE, "accepted: 0..");
}

static int32_t two_workers(void *user) {
  (void)user;
  return 2;
}

static void test_device_nulls(pkv_runtime *runtime, pkv_device *device, pkv_stream *stream) {
  char byte = 0;
  const char *text = "x";
  void *data = &byte;
  pkv_device *no_device = device;
  pkv_stream *no_stream = stream;
  pkv_event *event = NULL;

  CHECK_NULL(pkv_device_open(NULL, "auto", 0, &no_device), "runtime");
  CHECK(no_device == NULL);
  CHECK_NULL(pkv_device_open(runtime, NULL, 0, &no_device), "backend");
  CHECK_NULL(pkv_device_open(runtime, "auto", 0, NULL), "out");
  CHECK_FAILS(pkv_device_open(runtime, "nix", 0, &no_device), PKV_NOT_FOUND, "cpu_ref");
  CHECK_FAILS(pkv_device_open(runtime, "cpu_ref", 7, &no_device), PKV_OUT_OF_RANGE, "ordinal=7");
  CHECK_FAILS(pkv_device_open(runtime, "cpu_ref", -1, &no_device), PKV_OUT_OF_RANGE, "ordinal=-1");

  CHECK_NULL(pkv_device_describe(NULL, &text), "device");
  CHECK(text == NULL);
  CHECK_NULL(pkv_device_describe(device, NULL), "out");
  CHECK(pkv_device_backend(NULL) != NULL);

  CHECK_NULL(pkv_device_set(NULL, "threads", "1"), "device");
  CHECK_NULL(pkv_device_set(device, NULL, "1"), "name");
  CHECK_NULL(pkv_device_set(device, "threads", NULL), "value");
  CHECK_FAILS(pkv_device_set(device, "threads", "1"), PKV_INVALID_ARGUMENT, "cpu_ref");
  CHECK_NULL(pkv_device_set_parallel(NULL, NULL), "device");
  CHECK_FAILS(pkv_device_set_parallel(device, NULL), PKV_UNIMPLEMENTED, "cpu_ref");

  CHECK_NULL(pkv_device_alloc(NULL, PKV_ALLOC_DEVICE, 1, &data), "device");
  CHECK(data == NULL);
  CHECK_NULL(pkv_device_alloc(device, PKV_ALLOC_DEVICE, 1, NULL), "out");
  CHECK_FAILS(pkv_device_alloc(device, 3, 1, &data), PKV_INVALID_ARGUMENT, "kind=3");
  CHECK_FAILS(pkv_device_alloc(device, PKV_ALLOC_HOST, 0, &data), PKV_INVALID_ARGUMENT, "bytes=0");
  CHECK_FAILS(pkv_device_alloc(device, PKV_ALLOC_HOST, -5, &data), PKV_INVALID_ARGUMENT,
              "bytes=-5");
  CHECK_FAILS(pkv_device_alloc(device, PKV_ALLOC_DEVICE, INT64_MAX, &data), PKV_RESOURCE_EXHAUSTED,
              "9223372036854775807 bytes of device memory");
  CHECK(data == NULL);
  CHECK_NULL(pkv_device_free(NULL, &byte), "device");
  CHECK_OK(pkv_device_free(device, NULL));
  CHECK_FAILS(pkv_device_free(device, &byte), PKV_INVALID_ARGUMENT, "no address");

  CHECK_NULL(pkv_device_copy(NULL, &byte, &byte, 1), "stream");
  CHECK_NULL(pkv_device_copy(stream, NULL, &byte, 1), "target");
  CHECK_NULL(pkv_device_copy(stream, &byte, NULL, 1), "source");
  CHECK_OK(pkv_device_copy(stream, NULL, NULL, 0));
  CHECK_FAILS(pkv_device_copy(stream, &byte, &byte, -1), PKV_INVALID_ARGUMENT, "bytes=-1");

  CHECK_NULL(pkv_stream_create(NULL, &no_stream), "device");
  CHECK(no_stream == NULL);
  CHECK_NULL(pkv_stream_create(device, NULL), "out");
  CHECK_NULL(pkv_stream_wrap(NULL, 0, &no_stream), "device");
  CHECK_NULL(pkv_stream_wrap(device, 0, NULL), "out");
  CHECK_NULL(pkv_stream_sync(NULL), "stream");

  CHECK_NULL(pkv_event_create(NULL, &event), "device");
  CHECK_NULL(pkv_event_create(device, NULL), "out");
  CHECK_OK(pkv_event_create(device, &event));
  CHECK_NULL(pkv_event_record(NULL, stream), "event");
  CHECK_NULL(pkv_event_record(event, NULL), "stream");
  CHECK_NULL(pkv_event_wait(NULL, stream), "event");
  CHECK_NULL(pkv_event_wait(event, NULL), "stream");
  pkv_event_destroy(event);
}

/* Options and threads of a backend that has them. */
static void test_device_options(pkv_runtime *runtime) {
  pkv_device *device = NULL;
  pkv_parallel parallel;
  CHECK_OK(pkv_device_open(runtime, "cpu", 0, &device));
  CHECK_OK(pkv_device_set(device, "threads", "2"));
  CHECK_OK(pkv_device_set(device, "isa", "best"));
  CHECK_FAILS(pkv_device_set(device, "threads", "-1"), PKV_INVALID_ARGUMENT, "-1");
  CHECK_FAILS(pkv_device_set(device, "threads", "two"), PKV_INVALID_ARGUMENT, "two");
  CHECK_FAILS(pkv_device_set(device, "isa", "mmx"), PKV_INVALID_ARGUMENT, "mmx");
  CHECK_FAILS(pkv_device_set(device, "colour", "red"), PKV_INVALID_ARGUMENT, "colour");
  memset(&parallel, 0, sizeof(parallel));
  parallel.struct_size = sizeof(parallel);
  CHECK_OK(pkv_device_set_parallel(device, &parallel));
  CHECK_OK(pkv_device_set_parallel(device, NULL));
  parallel.workers = two_workers;
  CHECK_FAILS(pkv_device_set_parallel(device, &parallel), PKV_INVALID_ARGUMENT, "parallel.run");
  parallel.struct_size = 3;
  CHECK_FAILS(pkv_device_set_parallel(device, &parallel), PKV_INVALID_ARGUMENT, "struct_size=3");
  pkv_device_close(device);
}

static void test_config_nulls(void) {
  pkv_config *config = NULL;
  const char *text = "x";
  int32_t number = 0;
  pkv_option_info info;
  CHECK_OK(pkv_option_info_init(&info, sizeof(info)));

  CHECK_NULL(pkv_config_create(NULL, &config), "profile");
  CHECK_NULL(pkv_config_create("default", NULL), "out");
  CHECK_FAILS(pkv_config_create("fast", &config), PKV_INVALID_ARGUMENT, "default, paper");
  CHECK(config == NULL);
  CHECK_OK(pkv_config_create("default", &config));
  CHECK_NULL(pkv_config_set(NULL, "k", "1"), "config");
  CHECK_NULL(pkv_config_set(config, NULL, "1"), "name");
  CHECK_NULL(pkv_config_set(config, "k", NULL), "value");
  CHECK_NULL(pkv_config_get(NULL, "k", &text), "config");
  CHECK(text == NULL);
  CHECK_NULL(pkv_config_get(config, NULL, &text), "name");
  CHECK_NULL(pkv_config_get(config, "k", NULL), "out");
  CHECK_NULL(pkv_config_option_count(NULL), "out");
  CHECK_NULL(pkv_config_option_info(0, NULL), "out");
  CHECK_OK(pkv_config_option_count(&number));
  CHECK_FAILS(pkv_config_option_info(-1, &info), PKV_OUT_OF_RANGE, "index=-1");
  CHECK_FAILS(pkv_config_option_info(number, &info), PKV_OUT_OF_RANGE, "accepted: 0..22");
  pkv_config_destroy(config);
}

static void test_destroy_null(void) {
  pkv_runtime_destroy(NULL);
  pkv_device_close(NULL);
  pkv_stream_destroy(NULL);
  pkv_event_destroy(NULL);
  pkv_config_destroy(NULL);
  pkv_codec_destroy(NULL);
  pkv_index_destroy(NULL);
  pkv_plan_destroy(NULL);
}

void test_arguments(void) {
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  pkv_stream *stream = NULL;
  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_device_open(runtime, "cpu_ref", 0, &device));
  CHECK_OK(pkv_stream_create(device, &stream));
  test_runtime_nulls(runtime);
  test_device_nulls(runtime, device, stream);
  test_device_options(runtime);
  test_config_nulls();
  test_destroy_null();
  pkv_stream_destroy(stream);
  pkv_device_close(device);
  pkv_runtime_destroy(runtime);
}
