// What there is, as JSON texts.
#pragma once

#include <string>

#include "core/runtime/device.h"
#include "core/runtime/registry.h"

namespace pkv {

// As in pkv_runtime_describe. Opens the devices to ask what they support.
std::string describe_registry(const Registry& registry);

// As in pkv_device_describe.
std::string describe_device(const Device& device);

}  // namespace pkv
