/* Handles: what was made from another object keeps that alive, in whatever order they go. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "tests/abi/check.h"

static void test_reverse_order(void) {
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  pkv_stream *stream = NULL;
  pkv_stream *borrowed = NULL;
  pkv_event *event = NULL;
  int source[4] = {1, 2, 3, 4};
  int target[4] = {0, 0, 0, 0};

  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_device_open(runtime, "cpu_ref", 0, &device));
  pkv_runtime_destroy(runtime);
  CHECK(strcmp(pkv_device_backend(device), "cpu_ref") == 0);
  CHECK_OK(pkv_stream_create(device, &stream));
  CHECK_OK(pkv_stream_wrap(device, 0, &borrowed));
  pkv_stream_destroy(borrowed);
  CHECK_FAILS(pkv_stream_wrap(device, 1, &borrowed), PKV_INVALID_ARGUMENT, "cpu_ref");
  CHECK(borrowed == NULL);
  CHECK_OK(pkv_event_create(device, &event));
  pkv_device_close(device);
  CHECK_OK(pkv_device_copy(stream, target, source, sizeof(source)));
  CHECK_OK(pkv_event_record(event, stream));
  CHECK_OK(pkv_event_wait(event, stream));
  CHECK_OK(pkv_stream_sync(stream));
  CHECK(memcmp(target, source, sizeof(source)) == 0);
  pkv_stream_destroy(stream);
  pkv_event_destroy(event);
}

static void test_memory(void) {
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  pkv_device *other = NULL;
  void *data = NULL;
  void *kept = NULL;

  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_device_open(runtime, "auto", 0, &device));
  CHECK_OK(pkv_device_open(runtime, "auto", 0, &other));
  CHECK_OK(pkv_device_alloc(device, PKV_ALLOC_DEVICE, 1000, &data));
  CHECK_OK(pkv_device_alloc(device, PKV_ALLOC_HOST, 1, &kept));
  CHECK((uintptr_t)data % 256 == 0 && (uintptr_t)kept % 256 == 0 && data != kept);
  memset(data, 1, 1000);
  CHECK_FAILS(pkv_device_free(other, data), PKV_INVALID_ARGUMENT, "data");
  CHECK_OK(pkv_device_free(device, data));
  CHECK_FAILS(pkv_device_free(device, data), PKV_INVALID_ARGUMENT, "freed before");
  /* `kept` goes with the device. */
  pkv_device_close(device);
  pkv_device_close(other);
  pkv_runtime_destroy(runtime);
}

static void *allocate_and_free(void *user) {
  int i;
  for (i = 0; i < 200; ++i) {
    void *data = NULL;
    if (pkv_device_alloc(user, PKV_ALLOC_HOST, 64, &data) != PKV_OK) return user;
    if (pkv_device_free(user, data) != PKV_OK) return user;
  }
  return NULL;
}

/* Memory of one device from several threads at once. */
static void test_memory_threads(void) {
  enum { THREADS = 4 };
  pthread_t threads[THREADS];
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  int i;
  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_device_open(runtime, "cpu_ref", 0, &device));
  for (i = 0; i < THREADS; ++i) {
    CHECK(pthread_create(&threads[i], NULL, allocate_and_free, device) == 0);
  }
  for (i = 0; i < THREADS; ++i) {
    void *failed = device;
    CHECK(pthread_join(threads[i], &failed) == 0);
    CHECK(failed == NULL);
  }
  pkv_device_close(device);
  pkv_runtime_destroy(runtime);
}

static void test_events_of_other_devices(void) {
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  pkv_device *other = NULL;
  pkv_stream *stream = NULL;
  pkv_event *event = NULL;
  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_device_open(runtime, "cpu_ref", 0, &device));
  CHECK_OK(pkv_device_open(runtime, "cpu_ref", 0, &other));
  CHECK_OK(pkv_stream_create(device, &stream));
  CHECK_OK(pkv_event_create(other, &event));
  CHECK_FAILS(pkv_event_record(event, stream), PKV_INVALID_ARGUMENT, "opened apart");
  CHECK_FAILS(pkv_event_wait(event, stream), PKV_INVALID_ARGUMENT, "opened apart");
  pkv_event_destroy(event);
  pkv_stream_destroy(stream);
  pkv_device_close(other);
  pkv_device_close(device);
  pkv_runtime_destroy(runtime);
}

/* Texts live as long as the object, also when it is asked again. */
static void test_texts(void) {
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  const char *first = NULL;
  const char *second = NULL;
  CHECK_OK(pkv_runtime_create(NULL, &runtime));
  CHECK_OK(pkv_runtime_describe(runtime, &first));
  CHECK_OK(pkv_runtime_describe(runtime, &second));
  CHECK(first == second);
  CHECK(strstr(first, "\"cpu_ref\"") != NULL && strstr(first, "\"places\"") != NULL);
  CHECK_OK(pkv_device_open(runtime, "cpu_ref", 0, &device));
  CHECK_OK(pkv_device_describe(device, &second));
  pkv_runtime_destroy(runtime);
  CHECK(strstr(second, "\"head_dims\"") != NULL && strstr(second, "\"sketch4\"") != NULL);
  pkv_device_close(device);
}

void test_handles(void) {
  test_reverse_order();
  test_memory();
  test_memory_threads();
  test_events_of_other_devices();
  test_texts();
}
