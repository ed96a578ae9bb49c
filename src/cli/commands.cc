#include "cli/commands.h"

namespace kvram::cli {
namespace {

CommandSpec run_command() {
  CommandSpec c{};
  c.name = "run";
  c.summary = "run a program with a budget of GPU memory";
  c.argument = "-- COMMAND [ARG...]";
  c.argument_offer = Offer::kCommand;
  c.description = {
      "Reserves memory on the GPU that suits best, puts the guard in front of the driver and becomes the command: "
      "standard input and output, signals, job control and the exit status are the command's own, because it is the "
      "same process. The program sees a GPU of the size of its budget; what it asks for beyond that is refused with "
      "CUDA_ERROR_OUT_OF_MEMORY and leaves a post-mortem for `vram oom`.",
      "The budget is the sum over the command and everything it starts, and lasts until the last of them has ended. "
      "The "
      "first use of a GPU by a process takes a context, whose size `vram run -v` shows; it counts too.",
      "The guard goes in front by a private mount namespace where the system allows one (mode `namespace`: programs "
      "that "
      "open the driver by name or by absolute path both meet it), else by LD_LIBRARY_PATH (mode `path`: programs that "
      "open the driver by absolute path, have an rpath of their own or are setuid slip past it). Both are cooperative: "
      "exact for unmodified programs, no wall against one that was written to get round it. The daemon compares with "
      "the "
      "driver's own figures and shows who holds more than was asked for.",
      "When no daemon answers, one is started for this user. With neither --memory nor --card the command line is "
      "refused."};
  c.options = {
      {"--memory", "-m", "QUANTITY", false, Offer::kNothing,
       "the budget in total, such as 6Gi; each GPU's part is rounded up to 1 MiB"},
      {"--gpu", "", "K", false, Offer::kGpuCount, "spread the budget equally over K GPUs (default 1)"},
      {"--card", "", "N", false, Offer::kGpuCount, "N whole GPUs with nobody else on them; not beside --memory"},
      {"--wait", "", "DURATION", false, Offer::kNothing,
       "wait for room, in order of arrival, for at most this long (30s, 10m, 1h30m); without it a lack of room is an "
       "error at once"},
      {"--strict", "", "", false, Offer::kNothing,
       "end the program (TERM, then KILL) when the driver shows that it holds more than its budget"},
      {"--no-namespace", "", "", false, Offer::kNothing,
       "make no mount namespace and use mode `path` (also KUBE_VRAM_MODE=path)"},
      {"--verbose", "-v", "", false, Offer::kNothing,
       "say on standard error which budget, GPUs and mode the command got, and what slips past the guard"}};
  c.examples = {{"vram run --memory 6Gi -- ./server --port 80", "a budget of 6 GiB on the GPU that suits best"},
                {"vram run --memory 40Gi --gpu 2 -- python train.py", "20 GiB on each of two GPUs"},
                {"vram run --card 1 -- ./train", "a whole card"},
                {"vram run --memory 6Gi --wait 10m -- ./job", "waits up to ten minutes for room"},
                {"vram run --sim 2xA10 --memory 6Gi -- ./server", "the same on two simulated GPUs"}};
  return c;
}

CommandSpec ps_command() {
  CommandSpec c{};
  c.name = "ps";
  c.summary = "list budgets and their processes";
  c.description = {
      "One line for each budget and, below it, one for each process that uses a GPU. ASKED is the limit, CHARGED what "
      "the programs have taken of it (contexts included), RESIDENT what the driver says they hold, PEAK the most that "
      "was charged, REFUSED the requests beyond the limit. Of other users' budgets only the owner and the amounts are "
      "shown, "
      "unless you are root.",
      "-o wide adds the mode of the guard, --strict, refusals that a retry overcame, memory that no call announced, "
      "the age, and what slips past the guard in each budget's mode."};
  c.examples = {{"vram ps", "budgets and processes"}, {"vram ps -o json", "the same for programs, amounts in bytes"}};
  return c;
}

CommandSpec top_command() {
  CommandSpec c{};
  c.name = "top";
  c.summary = "watch GPUs and budgets live";
  c.description = {
      "Draws each GPU as a bar of bytes: # is the driver's reserve, % foreign memory (held by programs outside "
      "kube-vram), a capital letter what that budget has charged, the small letter what it asked for and has not "
      "used, and . what is free. Keys: q quits, any other key draws at once.",
      "Without a terminal it prints plain lines, again and again; with -o json one line of JSON each time."};
  c.options = {
      {"--once", "", "", false, Offer::kNothing, "print one picture and end"},
      {"--interval", "-n", "SECONDS", false, Offer::kNothing, "time between pictures, 0.1 to 3600 (default 1)"}};
  c.examples = {{"vram top", "live, until q"}, {"vram top --once --no-color", "one picture, to copy into a report"}};
  return c;
}

CommandSpec gpus_command() {
  CommandSpec c{};
  c.name = "gpus";
  c.summary = "list GPUs and what is free on them";
  c.description = {
      "TOTAL is the memory of the card, RESERVE what the driver keeps, FOREIGN what programs outside kube-vram hold "
      "(which, "
      "and how much, is in the last column), ASSIGNED the sum of the budgets, RESIDENT what their programs hold, FREE "
      "what a new budget can get.",
      "-o wide adds the UUIDs."};
  c.examples = {{"vram gpus", "the inventory"}, {"vram gpus --sim", "the simulated one"}};
  return c;
}

CommandSpec oom_command() {
  CommandSpec c{};
  c.name = "oom";
  c.summary = "explain refused allocations";
  c.argument = "[last|ID]";
  c.argument_offer = Offer::kOom;
  c.description = {
      "Without an argument: the refusals, newest first. With `last` or an id: what was asked by which call, who held "
      "what at that moment, what was left and what would have fitted. A refusal that the program overcame by asking "
      "again (PyTorch empties "
      "its cache and retries) is counted, not listed."};
  c.examples = {{"vram oom last", "the newest refusal in full"}};
  return c;
}

CommandSpec kill_command() {
  CommandSpec c{};
  c.name = "kill";
  c.summary = "end the processes of a budget";
  c.argument = "ID";
  c.argument_offer = Offer::kBudget;
  c.description = {
      "Sends a signal to all processes of a budget. Its bytes are free once the kernel says that the processes are "
      "gone "
      "and the driver no longer lists them."};
  c.options = {{"--signal", "-s", "SIGNAL", false, Offer::kSignal,
                "TERM (default), KILL, INT, HUP, QUIT, USR1, USR2, STOP, CONT or a number"}};
  c.examples = {{"vram kill 7", "TERM to all processes of budget 7"}, {"vram kill 7 --signal KILL", "without mercy"}};
  return c;
}

CommandSpec daemon_command() {
  CommandSpec status{};
  status.name = "status";
  status.summary = "show how the daemon does";
  status.description = {
      "Process id, version, folders, driver, number of budgets and connections, memory, and warnings such as a full "
      "disk."};
  CommandSpec stop{};
  stop.name = "stop";
  stop.summary = "end the daemon";
  stop.description = {
      "Refused while there are budgets, unless --force. Budgets outlive the daemon: programs keep what they hold, get "
      "nothing "
      "new, and are found again by the next daemon."};
  stop.options = {{"--force", "-f", "", false, Offer::kNothing, "also while there are budgets"}};
  CommandSpec c{};
  c.name = "daemon";
  c.summary = "look after the node's daemon";
  c.description = {"The daemon keeps the ledger of the machine. `vram run` starts one where none is running."};
  c.children = {status, stop};
  return c;
}

CommandSpec explain_command() {
  CommandSpec c{};
  c.name = "explain";
  c.summary = "explain an error code";
  c.argument = "CODE";
  c.argument_offer = Offer::kErrorCode;
  c.description = {"Prints the long form of an error, such as VRAM-1001. docs/errors.md has all of them."};
  c.examples = {{"vram explain VRAM-1001", "what that error means and what to do"}};
  return c;
}

CommandSpec completion_command() {
  CommandSpec c{};
  c.name = "completion";
  c.summary = "print a completion script for a shell";
  c.argument = "bash|zsh|fish";
  c.argument_offer = Offer::kShell;
  c.description = {"Prints a script that completes commands, options, budget ids and error codes."};
  c.examples = {{"source <(vram completion bash)", "in bash, for this session"},
                {"vram completion zsh > ~/.zfunc/_vram", "in zsh, with ~/.zfunc in fpath"},
                {"vram completion fish > ~/.config/fish/completions/vram.fish", "in fish"}};
  return c;
}

CommandSpec generate_command() {
  CommandSpec c{};
  c.name = "generate";
  c.summary = "write man pages, command pages, the error page or completions";
  c.argument = "man|commands|errors|completions FOLDER";
  c.hidden = true;
  c.description = {"Used by the build."};
  return c;
}

CommandSpec complete_command() {
  CommandSpec c{};
  c.name = "__complete";
  c.summary = "print what a completion script offers";
  c.argument = "budgets|ooms|codes";
  c.hidden = true;
  c.description = {"Used by the completion scripts."};
  return c;
}

CommandSpec make_tree() {
  CommandSpec root{};
  root.name = "vram";
  root.summary = "GPU memory: ask for it, get exactly that, see where it went";
  root.description = {
      "Runs programs with a budget of GPU memory, shares one GPU between several of them, refuses what goes beyond a "
      "budget, and says who holds what.",
      "Errors go to standard error as `vram: CODE: sentence`, with -o json as one JSON object {\"error\": {\"code\", "
      "\"message\", "
      "\"exit_status\"}}; `vram explain CODE` tells more. Amounts in JSON and YAML are bytes."};
  root.options = {
      {"--output", "-o", "FORMAT", false, Offer::kFormat, "json, yaml or wide"},
      {"--no-color", "", "", false, Offer::kNothing, "no colours (also NO_COLOR)"},
      {"--sim", "", "GPUS", true, Offer::kSim,
       "use simulated GPUs, such as 2xA10,1xH100-80GB (also KUBE_VRAM_SIM); without a list those of the running "
       "simulation, else one A10"},
      {"--help", "-h", "", false, Offer::kNothing, "show help"},
      {"--version", "", "", false, Offer::kNothing, "show the version"}};
  root.examples = {{"vram run --memory 6Gi -- ./server", "run a program with 6 GiB"},
                   {"vram ps", "who has what"},
                   {"vram oom last", "why the last allocation was refused"}};
  root.children = {run_command(),        ps_command(),       top_command(),     gpus_command(),
                   oom_command(),        kill_command(),     daemon_command(),  explain_command(),
                   completion_command(), generate_command(), complete_command()};
  return root;
}

}  // namespace

const CommandSpec& command_tree() {
  static const CommandSpec kTree = make_tree();
  return kTree;
}

const CommandSpec* child_of(const CommandSpec& parent, std::string_view name) {
  for (const CommandSpec& child : parent.children) {
    if (child.name == name) return &child;
  }
  return nullptr;
}

}  // namespace kvram::cli
