/* The layout of key records: signs, codes, vote factors, factors of `capacity` tokens, one plane
 * after another. docs/format.md has the canonical planes that they come from and go to. */
#include "backend.h"

static int64_t bytes_of(const pkv_geometry *geometry, int64_t capacity) {
  return capacity * (geometry->head_dim / 8 * 4 + 4);
}

record record_at(const pkv_geometry *geometry, const pkv_store *store, int64_t sequence,
                 int32_t head, int64_t position) {
  const int64_t plane = geometry->head_dim / 8;
  const int64_t capacity = store->capacity;
  uint8_t *row = store->base;
  if (store->pages == NULL) {
    row += (sequence * geometry->kv_heads + head) * store->row_bytes;
  } else {
    row = store->pages[sequence * store->pages_stride + position / capacity];
    row += head * store->row_bytes;
    position %= capacity;
  }
  uint16_t *factors = (uint16_t *)(row + capacity * 4 * plane);
  record r;
  r.signs = row + position * plane;
  r.codes = row + capacity * plane + position * 3 * plane;
  r.vote_factor = factors + position;
  r.factor = factors + capacity + position;
  return r;
}

static pkv_status row_bytes(pkv_backend_device *device, const pkv_geometry *geometry,
                            int64_t capacity, int64_t *out) {
  const pkv_status status = check_geometry(device, geometry);
  if (status == PKV_OK) *out = (bytes_of(geometry, capacity) + 255) / 256 * 256;
  return status;
}

static pkv_status import(pkv_backend_device *device, pkv_backend_stream *stream,
                         const pkv_geometry *geometry, const pkv_store *store, int64_t row,
                         int64_t begin, int64_t count, const pkv_records *source) {
  const size_t plane = (size_t)geometry->head_dim / 8;
  (void)device, (void)stream;
  for (int64_t i = 0; i < count; ++i) {
    const record r = record_at(geometry, store, row / geometry->kv_heads,
                               (int32_t)(row % geometry->kv_heads), begin + i);
    memcpy(r.signs, source->signs + (size_t)i * plane, plane);
    memcpy(r.codes, source->codes + (size_t)i * 3 * plane, 3 * plane);
    *r.vote_factor = source->vote_factors[i];
    *r.factor = source->factors[i];
  }
  return PKV_OK;
}

static pkv_status export(pkv_backend_device *device, pkv_backend_stream *stream,
                         const pkv_geometry *geometry, const pkv_store *store, int64_t row,
                         int64_t begin, int64_t count, const pkv_records *target) {
  const size_t plane = (size_t)geometry->head_dim / 8;
  (void)device, (void)stream;
  for (int64_t i = 0; i < count; ++i) {
    const record r = record_at(geometry, store, row / geometry->kv_heads,
                               (int32_t)(row % geometry->kv_heads), begin + i);
    memcpy(target->signs + (size_t)i * plane, r.signs, plane);
    memcpy(target->codes + (size_t)i * 3 * plane, r.codes, 3 * plane);
    target->vote_factors[i] = *r.vote_factor;
    target->factors[i] = *r.factor;
  }
  return PKV_OK;
}

void fill_store_slots(pkv_backend *table) {
  table->store_row_bytes = row_bytes;
  table->store_import = import;
  table->store_export = export;
}
