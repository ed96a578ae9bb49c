/* The table behind the null driver's cuGetProcAddress; made by bench/null/gen.py, sorted by name. */
#pragma once

enum { KV_NULL_NOT_SUPPORTED = 801 };

struct kv_null_entry {
  const char* name;
  void* plain;
  void* per_thread; /* the same where there is no such variant */
};

extern const struct kv_null_entry kv_null_entries[];
extern const unsigned kv_null_entry_count;
