// Makes many budgets, each with a living process in it that has a driver open, and holds them until its standard input
// ends: what a busy daemon looks like.
//   budgets --run-dir FOLDER --count N --memory BYTES [--library LIBCUDA]
// Prints "ready N SECONDS" when all are granted. With --library each process loads it (the guard), makes a context and
// takes 1 MiB.
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "node/client.h"

namespace {

struct Options {
  std::string run_dir;
  int count = 0;
  int64_t memory = 0;
  std::string library;
};

[[noreturn]] void die(const std::string& sentence) {
  fmt::print(stderr, "budgets: {}\n", sentence);
  std::_Exit(3);
}

// Asks for a budget for this very process, as `vram run` does. Returns the index of its GPU.
int ask(const Options& o) {
  auto client = kvram::node::Client::connect(o.run_dir);
  if (!client) die(client.error().message);
  boost::json::object request{
      {"op", "run"},     {"memory", o.memory},           {"gpu", 1},  {"card", nullptr}, {"wait_s", nullptr},
      {"strict", false}, {"command", {"bench", "idle"}}, {"cwd", "/"}};
  if (auto sent = client->send(boost::json::serialize(request)); !sent) die(sent.error().message);
  for (;;) {
    auto event = client->next(60000);
    if (!event) die(event.error().message);
    const boost::json::value reply = boost::json::parse(*event);
    const std::string kind = boost::json::value_to<std::string>(reply.at("event"));
    if (kind == "waiting") continue;
    if (kind != "granted") die("refused: " + *event);
    boost::json::object started{
        {"op", "started"}, {"budget", reply.at("budget")}, {"mode", "path"}, {"why", "benchmark"}};
    if (auto ok = client->request(boost::json::serialize(started)); !ok) die(ok.error().message);
    return static_cast<int>(reply.at("gpus").at(0).at("index").as_int64());
  }
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) die(std::string("no ") + name);
  return reinterpret_cast<Function*>(found);
}

void use(const std::string& path, int gpu) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) die(dlerror());
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr block = 0;
  const CUresult statuses[] = {
      symbol<CUresult(unsigned)>(library, "cuInit")(0),
      symbol<CUresult(CUdevice*, int)>(library, "cuDeviceGet")(&device, gpu),
      symbol<CUresult(CUcontext*, CUdevice)>(library, "cuDevicePrimaryCtxRetain")(&context, device),
      symbol<CUresult(CUcontext)>(library, "cuCtxSetCurrent")(context),
      symbol<CUresult(CUdeviceptr*, size_t)>(library, "cuMemAlloc_v2")(&block, 1 << 20)};
  for (const CUresult status : statuses) {
    if (status != CUDA_SUCCESS) die(fmt::format("the guard answered {}", static_cast<int>(status)));
  }
}

[[noreturn]] void child(const Options& o, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int gpu = ask(o);  // the null driver has the same GPUs in the same order
  if (!o.library.empty()) use(o.library, gpu);
  if (write(ready, "+", 1) != 1) std::_Exit(3);
  char end = 0;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  std::_Exit(0);
}

Options parse(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  Options o{given["--run-dir"], std::atoi(given["--count"].c_str()), std::atoll(given["--memory"].c_str()),
            given["--library"]};
  if (o.run_dir.empty() || o.count < 1 || o.memory < 1) die("--run-dir, --count and --memory are needed");
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  int ready[2];
  if (pipe(ready) != 0) die("no pipe");
  const auto start = std::chrono::steady_clock::now();
  std::vector<pid_t> children;
  for (int i = 0; i < o.count; ++i) {
    const pid_t pid = fork();
    if (pid < 0) die("cannot fork");
    if (pid == 0) child(o, ready[1]);
    children.push_back(pid);
    // One at a time: the pipe never ends early, because this process has its other end too, so a child that died is
    // looked for.
    char mark = 0;
    for (;;) {
      fd_set set;
      FD_ZERO(&set);
      FD_SET(ready[0], &set);
      timeval wait{0, 100000};
      if (select(ready[0] + 1, &set, nullptr, nullptr, &wait) == 1 && read(ready[0], &mark, 1) == 1) break;
      if (waitpid(pid, nullptr, WNOHANG) == pid) die(fmt::format("process {} of {} ended early", i + 1, o.count));
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print("ready {} {:.3f}\n", o.count, took.count());
  std::fflush(stdout);
  char end = 0;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  for (const pid_t pid : children) waitpid(pid, nullptr, 0);
  return 0;
}
