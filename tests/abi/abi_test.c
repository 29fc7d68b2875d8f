/* What a C99 program sees of the library: layouts, numbers, struct sizes, errors, handles. */
#include <stdio.h>
#include <string.h>

#include "tests/abi/check.h"

static int checks = 0;
static int failures = 0;

void check_that(int holds, const char *text, const char *file, int line) {
  ++checks;
  if (holds) return;
  ++failures;
  fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
}

void check_status(pkv_status got, pkv_status wanted, const char *part, const char *call,
                  const char *file, int line) {
  ++checks;
  if (got == wanted && (got == PKV_OK || strstr(pkv_last_error(), part) != NULL)) return;
  ++failures;
  fprintf(stderr, "%s:%d: %s\n  wanted %s with \"%s\"\n  got    %s, last error \"%s\"\n", file,
          line, call, pkv_status_name(wanted), part, pkv_status_name(got), pkv_last_error());
}

int main(void) {
  test_layout();
  test_struct_size();
  test_arguments();
  test_errors();
  test_handles();
  test_short_way();
  printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 && checks > 0 ? 0 : 1;
}
