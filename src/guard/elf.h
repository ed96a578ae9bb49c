// The genuine library behind ours: found through our own list of needed libraries, so that the daemon decides by
// patching that string which file it is.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace kvram::guard {

// The needed library of the object that contains `inside` whose name ends like one of ours (".real.so" or a path); a
// dlopen handle, or null.
void* open_real(const void* inside, const char* stub_name);
// Functions that the library exports under the prefix followed by a capital letter, but whose hash is not in the sorted
// list.
uint32_t count_unknown(void* handle, const char* prefix, const uint64_t* known, size_t count);

}  // namespace kvram::guard
