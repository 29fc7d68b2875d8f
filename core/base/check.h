// PKV_DCHECK(condition): what our own code guarantees; nothing in release builds.
// Not for what a caller or a file can get wrong: that is a status.
#pragma once

#include <cassert>

#define PKV_DCHECK(condition) assert(condition)
