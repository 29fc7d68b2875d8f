/* As much of .safetensors as these traces need: 8 bytes with the length of a JSON header, the
 * header, the tensors. A program for any file takes a JSON parser. */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain(const char *path, const char *what) {
  fprintf(stderr, "%s: %s\n", path, what);
  return -1;
}

/* "NAME":{"dtype":"F16","shape":[a,b,c],"data_offsets":[begin,end]}, spaces removed. */
static int find_tensor(const char *header, const char *name, char *data, int64_t size,
                       trace_tensor *out) {
  char key[32];
  long long a, b, c, begin, end;
  const char *at;
  snprintf(key, sizeof key, "\"%s\":{", name);
  at = strstr(header, key);
  if (at == NULL) return -1;
  if (sscanf(at + strlen(key),
             "\"dtype\":\"F16\",\"shape\":[%lld,%lld,%lld],\"data_offsets\":[%lld,%lld]", &a, &b,
             &c, &begin, &end) != 5) {
    return -1;
  }
  if (begin < 0 || end < begin || end > size || end - begin != 2 * a * b * c) return -1;
  out->shape[0] = a;
  out->shape[1] = b;
  out->shape[2] = c;
  out->data = data + begin;
  return 0;
}

static char *read_all(const char *path, int64_t *size) {
  FILE *file = fopen(path, "rb");
  char *bytes = NULL;
  long end;
  if (file == NULL) return NULL;
  if (fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > 8 && fseek(file, 0, SEEK_SET) == 0) {
    bytes = malloc((size_t)end);
    *size = end;
    if (bytes != NULL && fread(bytes, 1, (size_t)end, file) != (size_t)end) {
      free(bytes);
      bytes = NULL;
    }
  }
  fclose(file);
  return bytes;
}

int trace_read(const char *path, trace *out) {
  int64_t size = 0;
  uint64_t length = 0;
  char *header;
  char *data;
  size_t i, kept = 0;
  int found;
  out->bytes = read_all(path, &size);
  if (out->bytes == NULL) return complain(path, "cannot be read");
  memcpy(&length, out->bytes, 8); /* little-endian, as this machine */
  if (length > (uint64_t)size - 8) return complain(path, "is no safetensors file");
  data = out->bytes + 8 + length;
  header = malloc((size_t)length + 1);
  if (header == NULL) return complain(path, "is too large");
  for (i = 0; i < length; ++i) {
    if (out->bytes[8 + i] != ' ') header[kept++] = out->bytes[8 + i];
  }
  header[kept] = '\0';
  size -= 8 + (int64_t)length;
  found = find_tensor(header, "k", data, size, &out->keys) == 0 &&
          find_tensor(header, "v", data, size, &out->values) == 0 &&
          find_tensor(header, "q", data, size, &out->queries) == 0;
  free(header);
  return found ? 0 : complain(path, "has no float16 tensors k, v and q of three axes");
}
