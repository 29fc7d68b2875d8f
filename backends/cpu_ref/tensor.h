// Tensor views as backends on the host read them.
#pragma once

#include "backends/host/tensor.h"

namespace pkv::cpu_ref {

using host::dtype_bytes;
using host::load_element;
using host::load_elements;
using host::load_row;
using host::row_at;
using host::store_element;
using host::stride_of;
using host::token_at;

}  // namespace pkv::cpu_ref
