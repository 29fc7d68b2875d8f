// The library itself: version, names of statuses, the text of the last error.
#include "core/base/status.h"
#include "pariskv/pariskv.h"

#define PKV_TEXT(number) PKV_TEXT_OF(number)
#define PKV_TEXT_OF(number) #number

const char* pkv_version(void) {
  return PKV_TEXT(PKV_VERSION_MAJOR) "." PKV_TEXT(PKV_VERSION_MINOR) "." PKV_TEXT(
      PKV_VERSION_PATCH);
}

const char* pkv_status_name(pkv_status status) { return pkv::status_name(status); }

const char* pkv_last_error(void) { return pkv::last_error(); }
