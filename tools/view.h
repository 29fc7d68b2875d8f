// Tensor views of a trace, with the shapes and strides that they point to.
#pragma once

#include <cstdint>

#include "tools/engine.h"
#include "tools/trace.h"

namespace pkv::cli {

// A view of tokens [begin, begin + count) of keys or values: [1, h, count, d], or without the first
// axis. Stays where it is: the tensor points into it.
class TokenView {
 public:
  TokenView(const Engine& engine, const TraceTensor& source, int64_t begin, int64_t count)
      : shape_{1, source.shape[0], count, source.shape[2]},
        strides_{source.shape[0] * source.shape[1] * source.shape[2],
                 source.shape[1] * source.shape[2], source.shape[2], 1},
        batch_(engine.tensor(PKV_ALLOC_HOST, source.row(0, begin), source.dtype, shape_, strides_)),
        heads_(engine.tensor(PKV_ALLOC_HOST, source.row(0, begin), source.dtype,
                             std::span(shape_).subspan(1), strides_ + 1)) {}
  TokenView(const TokenView&) = delete;
  TokenView& operator=(const TokenView&) = delete;

  const pkv_tensor& batch() const { return batch_; }  // [1, h, count, d]
  const pkv_tensor& heads() const { return heads_; }  // [h, count, d]

 private:
  int64_t shape_[4];
  int64_t strides_[4];
  pkv_tensor batch_;
  pkv_tensor heads_;
};

// Queries of a trace: one as [1, hq, d], or the first `count` as the fit wants them, [hq, count,
// d].
class QueryView {
 public:
  static QueryView one(const Engine& engine, const TraceTensor& queries, int64_t query) {
    return {engine,
            queries.row(query, 0),
            queries.dtype,
            {1, queries.shape[1], queries.shape[2]},
            {queries.shape[1] * queries.shape[2], queries.shape[2], 1}};
  }
  static QueryView first(const Engine& engine, const TraceTensor& queries, int64_t count) {
    return {engine,
            queries.row(0, 0),
            queries.dtype,
            {queries.shape[1], count, queries.shape[2]},
            {queries.shape[2], queries.shape[1] * queries.shape[2], 1}};
  }
  QueryView(const QueryView&) = delete;
  QueryView& operator=(const QueryView&) = delete;

  const pkv_tensor& tensor() const { return tensor_; }

 private:
  struct Axes {
    int64_t at[3];
  };
  QueryView(const Engine& engine, void* data, pkv_dtype dtype, Axes shape, Axes strides)
      : shape_(shape),
        strides_(strides),
        tensor_(engine.tensor(PKV_ALLOC_HOST, data, dtype, shape_.at, strides_.at)) {}

  Axes shape_;
  Axes strides_;
  pkv_tensor tensor_;
};

}  // namespace pkv::cli
