// Facts about processes that only the kernel can give: /proc and pidfds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvram::node {

struct ProcessFacts {
  int32_t pid = 0;
  int32_t parent = 0;
  uint64_t start = 0;  // clock ticks after boot
  char state = '?';
  std::string name;
};

// Nothing when there is no such process (or it is a reaped one).
std::optional<ProcessFacts> process_facts(int32_t pid);
// Inode of the process's mount namespace; 0 when it cannot be told (ended, or the kernel does not let us look).
uint64_t mount_namespace_of(int32_t pid);
uint64_t user_of(int32_t pid);  // real uid; UINT64_MAX when it ended
std::vector<int32_t> all_pids();
// A pidfd of exactly the process that started at `start`, or -1.
int open_pidfd(int32_t pid, uint64_t start);
std::string boot_id();
std::string user_name(uint32_t uid);  // the number as text where there is no name
// A descriptor of the process that leads to the memfd with this inode, opened anew; -1 if it has none.
int find_memfd(int32_t pid, uint64_t inode);

}  // namespace kvram::node
