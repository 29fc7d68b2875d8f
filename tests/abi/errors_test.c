/* The text of the last error: per thread, with the function's name, left alone by success. */
#include <pthread.h>
#include <string.h>

#include "tests/abi/check.h"

static void *fail_elsewhere(void *user) {
  pkv_config *config = user;
  CHECK(strcmp(pkv_last_error(), "") == 0); /* of this thread: none yet */
  CHECK_FAILS(pkv_config_create("elsewhere", &config), PKV_INVALID_ARGUMENT, "\"elsewhere\"");
  return NULL;
}

void test_errors(void) {
  pkv_config *config = NULL;
  const char *value = NULL;
  pthread_t thread;
  int status;

  CHECK_FAILS(pkv_config_create("here", &config), PKV_INVALID_ARGUMENT,
              "pkv_config_create: profile \"here\", accepted: default, paper");
  /* Checks are counted without a lock: none here before the other thread's are done. */
  status = pthread_create(&thread, NULL, fail_elsewhere, NULL);
  if (status == 0) status = pthread_join(thread, NULL);
  CHECK(status == 0);
  CHECK(strstr(pkv_last_error(), "\"here\"") != NULL);

  CHECK_OK(pkv_config_create("default", &config));
  CHECK(strstr(pkv_last_error(), "\"here\"") != NULL);
  CHECK_FAILS(pkv_config_set(config, "k", "65537"), PKV_INVALID_ARGUMENT,
              "k=\"65537\", accepted: 0..65536");
  CHECK_OK(pkv_config_get(config, "k", &value));
  CHECK(strcmp(value, "100") == 0);
  pkv_config_destroy(config);

  CHECK(strcmp(pkv_version(), "0.1.0") == 0);
  CHECK(strcmp(pkv_status_name(PKV_DATA_LOSS), "DATA_LOSS") == 0);
  CHECK(strcmp(pkv_status_name(2), "UNKNOWN") == 0);
  CHECK(strcmp(pkv_status_name(-1), "UNKNOWN") == 0);
}
