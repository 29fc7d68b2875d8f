# What every GPU backend compiles with its own compiler and traits. Kernels lie in the .cuh beside.
set(PKV_GPU_SOURCES
  attend.cu
  cache.cu
  check.cu
  device.cu
  encode.cu
  fetch.cu
  fit.cu
  merge_outputs.cu
  query.cu
  rerank.cu
  select.cu
  step.cu
  store.cu
  vote.cu
)
list(TRANSFORM PKV_GPU_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
