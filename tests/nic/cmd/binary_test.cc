// SPDX-License-Identifier: Apache-2.0
//
// The binaries as a shell sees them: exit codes, streams, directories, signals, full disks.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/nic/cmd/command.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic {
namespace {

namespace fs = std::filesystem;
using absl::StrContains;
using testing::MakeFrame;
using testing::OneLine;
using testing::Outcome;
using testing::ReadFile;
using testing::ReadFrames;
using testing::TempPath;
using testing::WriteCapture;

// The runfiles directory, where a test starts.
const std::string kDmakit = fs::absolute("nic/cmd/dmakit").string();
const std::string kDriver = fs::absolute("nic/enic/driver").string();
const std::string kLiquidio = fs::absolute("nic/liquidio/driver").string();

struct Process {
  pid_t pid = -1;
  std::string out = TempPath("stdout");
  std::string err = TempPath("stderr");
};

struct Settings {
  std::string directory = TempPath("");
  std::string working_directory = "";  // BUILD_WORKING_DIRECTORY, if any
  rlim_t file_size = RLIM_INFINITY;
};

// Runs `args` in a shell's way: streams go to files.
Process Start(const std::vector<std::string>& args, const Settings& settings = {}) {
  Process process;
  process.pid = fork();
  REQUIRE(process.pid >= 0);
  if (process.pid > 0) return process;
  // The child. Only what is safe between fork and exec, and a little more: it has one thread.
  const int out = open(process.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const int err = open(process.err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (chdir(settings.directory.c_str()) != 0) _exit(126);
  unsetenv("BUILD_WORKING_DIRECTORY");
  if (!settings.working_directory.empty()) {
    setenv("BUILD_WORKING_DIRECTORY", settings.working_directory.c_str(), 1);
  }
  if (settings.file_size != RLIM_INFINITY) {
    const rlimit limit = {settings.file_size, settings.file_size};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  std::vector<char*> argv;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  _exit(127);
}

// -1: it did not exit by itself.
Outcome Wait(const Process& process) {
  int status = 0;
  waitpid(process.pid, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadFile(process.out),
          ReadFile(process.err)};
}

Outcome Run(const std::vector<std::string>& args, const Settings& settings = {}) {
  return Wait(Start(args, settings));
}

TEST_CASE("the demo runs from any directory, silent on the error stream") {
  for (const std::string& program : {kDmakit, kDriver, kLiquidio}) {
    const Outcome demo = Run({program, "demo"}, {.directory = "/"});
    INFO(demo.err);
    CHECK(demo.code == 0);
    CHECK(demo.err.empty());
    CHECK(StrContains(demo.out, " frames out, 0 lost, 0 IOMMU faults\n"));
  }
}

TEST_CASE("relative paths are the caller's, also under bazel run") {
  WriteCapture("in.pcap", {MakeFrame(60, 1), MakeFrame(9000, 2)});
  const std::vector<std::string> args = {kDriver, "forward", "--in=enic,wire=pcap:in.pcap",
                                         "--out=enic,wire=pcap:out.pcap", "--stats=stats.json"};
  for (const bool bazel_run : {false, true}) {
    fs::remove(TempPath("out.pcap"));
    fs::remove(TempPath("stats.json"));
    Settings settings;
    if (bazel_run) settings = {.directory = "/", .working_directory = TempPath("")};
    const Outcome run = Run(args, settings);
    INFO(run.err);
    CHECK(run.code == 0);
    CHECK(run.err.empty());  // no progress: this is no terminal
    CHECK(ReadFrames(TempPath("out.pcap")) ==
          std::vector<Frame>{MakeFrame(60, 1), MakeFrame(9000, 2)});
    CHECK(testing::Stats()["frames_out"] == 2);
  }
}

TEST_CASE("exit codes as documented") {
  WriteCapture("in.pcap", {MakeFrame(60, 1), MakeFrame(2000, 2)});
  const std::string in = "--in=enic,wire=pcap:in.pcap";
  struct Case {
    std::vector<std::string> args;
    int code;
  };
  const Case cases[] = {
      {{kDmakit, "--help"}, 0},
      {{kDmakit}, 2},
      {{kDmakit, "forward", in, "--out=enic,wire=null"}, 0},
      {{kDmakit, "forward", in, "--out=enic,wire=null", "--mtu=1500"}, 1},
      {{kDmakit, "forward", in, "--out=enic,wire=null", "--ring=48"}, 2},
      {{kDmakit, "forward", in, "--out=liquidio,mode=buffer,wire=null"}, 0},
      {{kLiquidio, "forward", "--in=liquidio,wire=pcap:in.pcap", "--out=liquidio,wire=null"}, 0},
      {{kLiquidio, "forward", in, "--out=liquidio,wire=null"}, 2},
      {{kLiquidio, "forward", "--in=liquidio,speed=1,wire=pcap:in.pcap",
        "--out=liquidio,wire=null"},
       2},
      {{kDmakit, "forward", in, "--out=enic,wire=pcap:/dev/full"}, 2},
      {{kDmakit, "forward", in, "--out=enic,wire=pcap:in.pcap"}, 2},
  };
  for (const Case& c : cases) {
    const Outcome run = Run(c.args);
    INFO(run.err);
    CHECK(run.code == c.code);
    CHECK((run.err.empty() || OneLine(run.err)));
    CHECK(run.err.empty() == (c.code == 0));
  }
}

TEST_CASE("signals end a run cleanly, with totals") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string path = TempPath("signal.pcap");
    fs::remove(path);
    const Process process = Start({kDmakit, "forward", "--in=enic,wire=gen:size=64",
                                   "--out=enic,wire=pcap:signal.pcap", "--stats=stats.json"});
    // Frames are moving once the output is more than its header.
    std::error_code error;
    for (int i = 0; i < 2000 && !(fs::file_size(path, error) > 24 && !error); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(kill(process.pid, signal) == 0);
    const Outcome run = Wait(process);
    INFO(run.err);
    CHECK(run.code == 0);
    CHECK(run.err.empty());
    CHECK(StrContains(run.out, "frames_dropped         0\n"));
    CHECK(testing::Stats()["frames_out"] > 0);
    CHECK(testing::Stats()["frames_out"] == ReadFrames(path)->size());
    CHECK(testing::Stats()["interrupted"] == true);
    fs::remove(path);
  }
}

TEST_CASE("a disk that runs full is loss, not death") {
  const Outcome run = Run({kDmakit, "forward", "--in=enic,wire=gen:size=1000,count=10000",
                           "--out=enic,wire=pcap:full.pcap", "--mtu=1500", "--ring=64"},
                          {.file_size = 8 << 20});
  INFO(run.err);
  CHECK(run.code == 1);
  CHECK(OneLine(run.err));
  CHECK(StrContains(run.err, " not written); capture "));
  CHECK(StrContains(run.err,
                    "frames were lost, the file is incomplete: writing failed (File too large)"));
}

}  // namespace
}  // namespace dmakit::nic
