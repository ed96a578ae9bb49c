#include "guard/elf.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>

namespace kvram::guard {
namespace {

struct Tables {
  const ElfW(Sym) * symbols;
  const char* strings;
  const uint32_t* gnu_hash;
  const uint32_t* sysv_hash;
};

// glibc relocates these pointers in place; other loaders leave file offsets.
template <typename T>
const T* at(const link_map* map, ElfW(Addr) value) {
  return reinterpret_cast<const T*>(value < map->l_addr ? value + map->l_addr : value);
}

Tables tables_of(const link_map* map) {
  Tables t{};
  for (const ElfW(Dyn)* d = map->l_ld; d != nullptr && d->d_tag != DT_NULL; ++d) {
    if (d->d_tag == DT_SYMTAB) t.symbols = at<ElfW(Sym)>(map, d->d_un.d_ptr);
    if (d->d_tag == DT_STRTAB) t.strings = at<char>(map, d->d_un.d_ptr);
    if (d->d_tag == DT_GNU_HASH) t.gnu_hash = at<uint32_t>(map, d->d_un.d_ptr);
    if (d->d_tag == DT_HASH) t.sysv_hash = at<uint32_t>(map, d->d_un.d_ptr);
  }
  return t;
}

// No table says how many symbols there are; the hash tables end with the last one.
uint32_t symbol_count(const Tables& t) {
  if (t.sysv_hash != nullptr) return t.sysv_hash[1];
  if (t.gnu_hash == nullptr) return 0;
  const uint32_t buckets = t.gnu_hash[0];
  const uint32_t first = t.gnu_hash[1];
  const uint32_t* bucket = t.gnu_hash + 4 + t.gnu_hash[2] * (sizeof(ElfW(Addr)) / 4);
  const uint32_t* chain = bucket + buckets;
  uint32_t last = 0;
  for (uint32_t i = 0; i < buckets; ++i) {
    if (bucket[i] > last) last = bucket[i];
  }
  if (last < first) return first;
  while ((chain[last - first] & 1) == 0) ++last;
  return last + 1;
}

uint64_t hash_of(const char* name) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (; *name != 0; ++name) h = (h ^ static_cast<unsigned char>(*name)) * 0x100000001b3ULL;
  return h;
}

bool contains(const uint64_t* known, size_t count, uint64_t hash) {
  size_t low = 0;
  size_t high = count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (known[middle] == hash) return true;
    if (known[middle] < hash) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return false;
}

}  // namespace

// The daemon may have replaced the stub's path by any other, so the entry is the one that is no plain name.
namespace {

// $ORIGIN is expanded here and not by dlopen, which takes it from its caller: in a program built with a sanitizer that
// is the sanitizer's wrapper.
void* dlopen_as_loaded(const link_map* self, const char* name) {
  constexpr char kOrigin[] = "$ORIGIN/";
  constexpr size_t kOriginLength = sizeof kOrigin - 1;
  const char* slash = strrchr(self->l_name, '/');
  char path[4096];
  if (strncmp(name, kOrigin, kOriginLength) == 0 && self->l_name[0] == '/' && slash != nullptr) {
    const size_t folder = static_cast<size_t>(slash - self->l_name) + 1;
    const size_t rest = strlen(name + kOriginLength) + 1;
    if (folder + rest <= sizeof path) {
      memcpy(path, self->l_name, folder);
      memcpy(path + folder, name + kOriginLength, rest);
      if (void* found = dlopen(path, RTLD_NOLOAD | RTLD_LAZY)) return found;
    }
  }
  return dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
}

}  // namespace

void* open_real(const void* inside, const char* stub_name) {
  Dl_info info{};
  void* extra = nullptr;
  if (dladdr1(inside, &info, &extra, RTLD_DL_LINKMAP) == 0 || extra == nullptr) return nullptr;
  const link_map* self = static_cast<const link_map*>(extra);
  const Tables t = tables_of(self);
  for (const ElfW(Dyn)* d = self->l_ld; t.strings != nullptr && d->d_tag != DT_NULL; ++d) {
    if (d->d_tag != DT_NEEDED) continue;
    const char* name = t.strings + d->d_un.d_val;
    if (strchr(name, '/') == nullptr && strcmp(name, stub_name) != 0) continue;
    return dlopen_as_loaded(self, name);
  }
  return nullptr;
}

uint32_t count_unknown(void* handle, const char* prefix, const uint64_t* known, size_t count) {
  link_map* map = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return 0;
  const Tables t = tables_of(map);
  const size_t length = strlen(prefix);
  uint32_t unknown = 0;
  const uint32_t symbols = t.symbols == nullptr || t.strings == nullptr ? 0 : symbol_count(t);
  for (uint32_t i = 1; i < symbols; ++i) {
    const ElfW(Sym)& s = t.symbols[i];
    const char* name = t.strings + s.st_name;
    if (s.st_shndx == SHN_UNDEF || ELF64_ST_BIND(s.st_info) == STB_LOCAL || ELF64_ST_TYPE(s.st_info) != STT_FUNC)
      continue;
    if (strncmp(name, prefix, length) != 0 || name[length] < 'A' || name[length] > 'Z') continue;
    if (!contains(known, count, hash_of(name))) ++unknown;
  }
  return unknown;
}

}  // namespace kvram::guard
