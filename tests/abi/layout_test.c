/* Sizes, offsets and numbers against the committed tables. */
#include <stdio.h>

#include "pariskv/pariskv_stages.h"
#include "tests/abi/check.h"

/* Offsets are those of a system with 64-bit pointers. */
typedef char pointers_have_8_bytes[sizeof(void *) == 8 ? 1 : -1];

static void check_number(const char *what, const char *field, long long got, long long wanted) {
  if (got != wanted) fprintf(stderr, "%s %s: %lld, in the table %lld\n", what, field, got, wanted);
  CHECK(got == wanted);
}

/* One struct is under way; `end` is where its next field has to begin. */
static const char *current = "";
static size_t current_size = 0;
static size_t end = 0;

static void begin_struct(const char *name, size_t size, size_t wanted) {
  check_number(current, "end of the last field", (long long)end, (long long)current_size);
  check_number(name, "size", (long long)size, (long long)wanted);
  current = name;
  current_size = size;
  end = 0;
}

static void check_field(const char *field, size_t offset, size_t wanted_offset, size_t size,
                        size_t wanted_size) {
  check_number(current, field, (long long)offset, (long long)wanted_offset);
  check_number(current, field, (long long)size, (long long)wanted_size);
  check_number(current, "gap in front of the field", (long long)offset, (long long)end);
  end = offset + size;
}

void test_layout(void) {
#define STRUCT(name, bytes) begin_struct(#name, sizeof(name), bytes);
#define FIELD(name, field, offset, bytes) \
  check_field(#field, offsetof(name, field), offset, sizeof(((name *)0)->field), bytes);
#include "tests/abi/layout.def"
#undef FIELD
#undef STRUCT
  begin_struct("", 0, 0);

#define CONSTANT(name, value) check_number("constant", #name, (long long)(name), value);
#include "tests/abi/constants.def"
#undef CONSTANT
}
