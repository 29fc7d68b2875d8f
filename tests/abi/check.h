/* CHECK(condition): counts, and says where it failed. The program goes on. */
#ifndef TESTS_ABI_CHECK_H_
#define TESTS_ABI_CHECK_H_

#include <stddef.h>

#include "pariskv/pariskv.h"

void check_that(int holds, const char *text, const char *file, int line);
/* The status, and, for other than PKV_OK, that pkv_last_error() has `part` in it. */
void check_status(pkv_status got, pkv_status wanted, const char *part, const char *call,
                  const char *file, int line);

#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_OK(call) check_status((call), PKV_OK, "", #call, __FILE__, __LINE__)
#define CHECK_FAILS(call, status, part) \
  check_status((call), (status), (part), #call, __FILE__, __LINE__)

void test_layout(void);
void test_struct_size(void);
void test_arguments(void);
void test_errors(void);
void test_handles(void);
void test_short_way(void);

#endif /* TESTS_ABI_CHECK_H_ */
