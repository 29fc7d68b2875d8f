// PKV_HD: marks a function that host and device code share.
// core/format is included by every backend: freestanding standard headers and pariskv_types.h or
// pariskv_backend.h only. Device compilers need `--expt-relaxed-constexpr` (nvcc) for <array> and
// <bit>. Tables are host constants; a device backend copies them into constant memory of its own.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define PKV_HD __host__ __device__
#else
#define PKV_HD
#endif
