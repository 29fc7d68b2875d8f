#include <pariskv/pariskv.h>
#include <stdio.h>

int main(void) {
  pkv_runtime *runtime = NULL;
  pkv_device *device = NULL;
  pkv_status status = pkv_runtime_create(NULL, &runtime);
  if (status == PKV_OK) status = pkv_device_open(runtime, "cpu_ref", 0, &device);
  if (status != PKV_OK) fprintf(stderr, "%s\n", pkv_last_error());
  pkv_device_close(device);
  pkv_runtime_destroy(runtime);
  return status != PKV_OK;
}
