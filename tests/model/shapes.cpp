#include "tests/model/shapes.h"

#include <cmath>

namespace pkv::cache_model {
namespace {

Shape shape_of(const char* name, const char* k) {
  Shape shape;
  shape.name = name;
  shape.options = {{"k", k}};
  return shape;
}

}  // namespace

std::vector<Shape> model_shapes() {
  std::vector<Shape> shapes;
  shapes.push_back(shape_of("default", "12"));

  Shape wide = shape_of("wide", "50");
  wide.head_dim = wide.value_dim = 128;
  wide.query_heads = 8;
  wide.sequences = 16;
  wide.dtype = wide.query_dtype = wide.output_dtype = PKV_DTYPE_BF16;
  wide.sink = 8;
  wide.local = 32;
  wide.interval = 64;
  wide.dense_below = 256;
  wide.fit_positions = 64;
  wide.page_tokens = 128;
  shapes.push_back(wide);

  Shape paper = shape_of("paper", "20");
  paper.profile = "paper";
  paper.head_dim = paper.value_dim = 64;
  paper.dtype = paper.query_dtype = PKV_DTYPE_F16;
  paper.interval = 32;
  shapes.push_back(paper);

  Shape sketch = shape_of("sketch", "8").with("tail", "sketch2").with("codec", "scalar5");
  sketch.head_dim = 24;
  sketch.value_dim = 16;
  sketch.query_heads = 6;
  sketch.interval = 48;  // no power of two, so pages and intervals cross
  shapes.push_back(sketch);

  Shape many = shape_of("many", "6").with("fit", "keys");
  many.sequences = 64;
  many.layers = 2;
  many.kv_heads = 1;
  many.query_heads = 2;
  many.head_dim = many.value_dim = 16;
  many.interval = 32;
  many.fit_positions = 16;
  shapes.push_back(many);

  Shape layers = shape_of("layers", "10").with("tail", "mean");
  layers.layers = 3;
  layers.policies = {{PKV_CACHE_DENSE, 0}, {PKV_CACHE_SPARSE, 0}, {PKV_CACHE_WINDOW, 40}};
  layers.head_dim = 40;
  layers.value_dim = 40;
  layers.capacity = 2000;
  shapes.push_back(layers);

  Shape latent = shape_of("latent", "16");
  latent.v_source = PKV_V_SOURCE_K_PREFIX;
  latent.head_dim = 72;
  latent.value_dim = 64;
  latent.kv_heads = 1;
  latent.query_heads = 8;
  latent.dtype = PKV_DTYPE_BF16;
  latent.query_dtype = PKV_DTYPE_F16;
  latent.output_dtype = PKV_DTYPE_F16;
  shapes.push_back(latent);

  Shape keys = shape_of("keys", "16").with("tail", "drop");
  keys.v_source = PKV_V_SOURCE_NONE;
  keys.value_dim = 0;
  shapes.push_back(keys);

  Shape capped = shape_of("capped", "12").with("tail", "drop").with("rank", "mean");
  capped.soft_cap = 5;
  capped.sink_logits = {0.5F, -1, -HUGE_VALF, 3};
  shapes.push_back(capped);

  Shape deferred = shape_of("deferred", "12").with("tail", "mean");
  deferred.deferred = 1;
  shapes.push_back(deferred);

  Shape single = shape_of("single", "3").with("fit", "keys").with("tail", "drop");
  single.sink = single.local = 0;
  single.interval = single.dense_below = 1;
  single.head_dim = single.value_dim = 8;
  single.capacity = 1000;
  shapes.push_back(single);

  Shape all = shape_of("all", "1000");  // k >= zone
  all.capacity = 900;
  all.sink = 0;
  all.dtype = PKV_DTYPE_F16;
  shapes.push_back(all);

  Shape limited = shape_of("limited", "12");
  limited.max_bytes = 4 << 20;
  shapes.push_back(limited);

  Shape adaptive = shape_of("adaptive", "40").with("share", "0.9").with("vote_group", "heads");
  adaptive.options.emplace_back("value_norm", "on");
  adaptive.page_tokens = 256;
  adaptive.refits = 0;
  shapes.push_back(adaptive);
  return shapes;
}

}  // namespace pkv::cache_model
