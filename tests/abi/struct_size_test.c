/* Structs of older and newer headers: nothing behind the caller's bytes is written, what they lack
 * takes its default. */
#include <stdio.h>
#include <string.h>

#include "tests/abi/check.h"

#define GUARD 0xAB
#define ROOM 70000

typedef pkv_status (*init_fn)(void *target, size_t struct_size);
#define ADAPT(name) \
  static pkv_status init_##name(void *target, size_t n) { return pkv_##name##_init(target, n); }
ADAPT(runtime_options)
ADAPT(backend_info)
ADAPT(option_info)
ADAPT(codec_data)
ADAPT(geometry)
ADAPT(index_stats)
ADAPT(plan_desc)
ADAPT(hits)
ADAPT(rows)
ADAPT(attention)
ADAPT(step)

static const struct {
  const char *name;
  init_fn init;
  size_t size;
} inits[] = {
    {"runtime_options", init_runtime_options, sizeof(pkv_runtime_options)},
    {"backend_info", init_backend_info, sizeof(pkv_backend_info)},
    {"option_info", init_option_info, sizeof(pkv_option_info)},
    {"codec_data", init_codec_data, sizeof(pkv_codec_data)},
    {"geometry", init_geometry, sizeof(pkv_geometry)},
    {"index_stats", init_index_stats, sizeof(pkv_index_stats)},
    {"plan_desc", init_plan_desc, sizeof(pkv_plan_desc)},
    {"hits", init_hits, sizeof(pkv_hits)},
    {"rows", init_rows, sizeof(pkv_rows)},
    {"attention", init_attention, sizeof(pkv_attention)},
    {"step", init_step, sizeof(pkv_step)},
};

static unsigned char room[ROOM];
static unsigned char full[ROOM];

static int all_are(const unsigned char *bytes, size_t count, unsigned char value) {
  size_t i;
  for (i = 0; i < count; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

/* Writes `size` bytes: struct_size, then a prefix of what the full size gets, then zeros. */
static void check_init(init_fn init, size_t size, size_t known) {
  uint32_t stored = 0;
  const size_t prefix = size < known ? size : known;
  memset(room, GUARD, ROOM);
  memset(full, GUARD, ROOM);
  CHECK_OK(init(room, size));
  CHECK_OK(init(full, known));
  memcpy(&stored, room, sizeof(stored));
  CHECK(stored == size);
  CHECK(memcmp(room + 4, full + 4, prefix - 4) == 0);
  CHECK(all_are(room + prefix, size - prefix, 0));
  CHECK(all_are(room + size, ROOM - size, GUARD));
}

static void check_refused(init_fn init, size_t size, const char *text) {
  memset(room, GUARD, ROOM);
  CHECK_FAILS(init(room, size), PKV_INVALID_ARGUMENT, text);
  CHECK(all_are(room, ROOM, GUARD));
}

static void test_inits(void) {
  size_t i;
  for (i = 0; i < sizeof(inits) / sizeof(inits[0]); ++i) {
    const init_fn init = inits[i].init;
    const size_t known = inits[i].size;
    check_init(init, 4, known);
    check_init(init, known - 8, known);
    check_init(init, known - 1, known);
    check_init(init, known, known);
    check_init(init, known + 16, known);
    check_init(init, 10000, known);
    check_init(init, 65536, known);
    check_refused(init, 0, "struct_size=0, accepted: 4..65536");
    check_refused(init, 1, "struct_size=1, accepted: 4..65536");
    check_refused(init, 3, "struct_size=3, accepted: 4..65536");
    check_refused(init, 65537, "struct_size=65537, accepted: 4..65536");
    check_refused(init, (size_t)-1, "accepted: 4..65536");
    CHECK_FAILS(init(NULL, known), PKV_INVALID_ARGUMENT, "is NULL");
  }
}

/* The options of a program that was built when there were fewer, or more. */
static void test_reading(void) {
  pkv_runtime *runtime = NULL;
  pkv_runtime_options options;
  union {
    pkv_runtime_options known;
    unsigned char bytes[sizeof(pkv_runtime_options) + 16];
  } newer;

  /* log_level lies within 8 bytes and is obeyed; the pointers behind do not, garbage or not. */
  memset(&options, GUARD, sizeof(options));
  options.struct_size = 8;
  options.log_level = 7;
  CHECK_FAILS(pkv_runtime_create(&options, &runtime), PKV_INVALID_ARGUMENT, "log_level=7");
  options.log_level = 3;
  CHECK_OK(pkv_runtime_create(&options, &runtime));
  pkv_runtime_destroy(runtime);

  /* A size that ends within a pointer: the pointer does not count, or the log would follow it. */
  options.struct_size = 12;
  CHECK_OK(pkv_runtime_create(&options, &runtime));
  pkv_runtime_destroy(runtime);

  CHECK_OK(pkv_runtime_options_init(&newer.known, sizeof(newer)));
  CHECK_OK(pkv_runtime_create(&newer.known, &runtime));
  pkv_runtime_destroy(runtime);
  newer.bytes[sizeof(newer) - 1] = 1;
  CHECK_FAILS(pkv_runtime_create(&newer.known, &runtime), PKV_INVALID_ARGUMENT,
              "byte 47 of 48 is set, this library knows 32");
  CHECK(runtime == NULL);

  options.struct_size = 3;
  CHECK_FAILS(pkv_runtime_create(&options, &runtime), PKV_INVALID_ARGUMENT, "struct_size=3");
  options.struct_size = 65537;
  CHECK_FAILS(pkv_runtime_create(&options, &runtime), PKV_INVALID_ARGUMENT, "struct_size=65537");
}

/* Outputs write the caller's bytes and leave struct_size alone. */
static void test_writing(void) {
  union {
    pkv_option_info info;
    unsigned char bytes[sizeof(pkv_option_info) + 16];
  } out;
  const size_t up_to_name = offsetof(pkv_option_info, accepts);

  memset(&out, GUARD, sizeof(out));
  CHECK_OK(pkv_option_info_init(&out.info, up_to_name));
  CHECK_OK(pkv_config_option_info(0, &out.info));
  CHECK(out.info.struct_size == up_to_name);
  CHECK(strcmp(out.info.name, "head_dim") == 0);
  CHECK(all_are(out.bytes + up_to_name, sizeof(out) - up_to_name, GUARD));

  CHECK_OK(pkv_option_info_init(&out.info, sizeof(out)));
  CHECK_OK(pkv_config_option_info(0, &out.info));
  CHECK(out.info.struct_size == sizeof(out));
  CHECK(strstr(out.info.accepts, "8..576") != NULL);

  memset(&out, 0, sizeof(out));
  CHECK_FAILS(pkv_config_option_info(0, &out.info), PKV_INVALID_ARGUMENT, "struct_size=0");
  CHECK(all_are(out.bytes, sizeof(out), 0));
}

void test_struct_size(void) {
  test_inits();
  test_reading();
  test_writing();
}
