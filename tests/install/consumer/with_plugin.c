#include <pariskv/pariskv.h>
#include <stdio.h>
#include <string.h>

/* with_plugin PATH: loads a plug-in, which must refuse with its own sentence. */
int main(int argc, char **argv) {
  pkv_runtime *runtime = NULL;
  int32_t index = 0;
  if (argc != 2 || pkv_runtime_create(NULL, &runtime) != PKV_OK) return 1;
  pkv_status status = pkv_runtime_backend_load(runtime, argv[1], &index);
  const int is_refused = status != PKV_OK && strstr(pkv_last_error(), " outside") != NULL;
  if (!is_refused) fprintf(stderr, "status %d: %s\n", status, pkv_last_error());
  pkv_runtime_destroy(runtime);
  return !is_refused;
}
