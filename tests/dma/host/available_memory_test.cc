// SPDX-License-Identifier: Apache-2.0
//
// What is left to fill, from made-up systems: machine alone, limits of both versions of control
// groups, the tightest of several.
#include "dma/host/available_memory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/catch.h"

namespace dmakit::dma::host {
namespace {

// A directory that stands for /proc and /sys/fs/cgroup.
class FakeSystem {
 public:
  FakeSystem() {
    const char* base = std::getenv("TEST_TMPDIR");
    root_ = std::filesystem::path(base != nullptr ? base : ".") / "available_memory";
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~FakeSystem() { std::filesystem::remove_all(root_); }

  void Write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  uint64_t Available() const { return AvailableMemory(root_ / "proc", root_ / "groups").value(); }

 private:
  std::filesystem::path root_;
};

constexpr char kMachine[] = "MemTotal: 4096 kB\nMemFree: 100 kB\nMemAvailable: 1000 kB\n";

TEST_CASE("available memory: nothing known is no limit") {
  const FakeSystem system;
  CHECK(system.Available() == ~uint64_t{0});
}

TEST_CASE("available memory: the machine alone") {
  FakeSystem system;
  system.Write("proc/meminfo", kMachine);
  CHECK(system.Available() == 1000 * 1024);
  system.Write("proc/self/cgroup", "0::/a/b\n");
  system.Write("groups/a/b/memory.max", "max\n");
  system.Write("groups/a/b/memory.current", "5000\n");
  CHECK(system.Available() == 1000 * 1024);
}

TEST_CASE("available memory: the tightest limit on the way to the root") {
  FakeSystem system;
  system.Write("proc/meminfo", kMachine);
  system.Write("proc/self/cgroup", "0::/a/b\n");
  system.Write("groups/a/b/memory.max", "600000\n");
  system.Write("groups/a/b/memory.current", "100000\n");
  CHECK(system.Available() == 500000);
  // Cached files can be given up, shared memory cannot.
  system.Write("groups/a/b/memory.stat", "anon 10\nfile 50000\nshmem 20000\n");
  CHECK(system.Available() == 530000);
  system.Write("groups/a/memory.max", "300000\n");
  system.Write("groups/a/memory.current", "299000\n");
  CHECK(system.Available() == 1000);
  system.Write("groups/a/memory.current", "310000\n");
  CHECK(system.Available() == 0);
}

TEST_CASE("available memory: the group of a container is the root it sees") {
  FakeSystem system;
  system.Write("proc/meminfo", kMachine);
  system.Write("proc/self/cgroup", "0::/not/visible/here\n");
  system.Write("groups/memory.max", "200000\n");
  system.Write("groups/memory.current", "50000\n");
  CHECK(system.Available() == 150000);
}

TEST_CASE("available memory: the first version of control groups") {
  FakeSystem system;
  system.Write("proc/meminfo", kMachine);
  system.Write("proc/self/cgroup", "9:name=systemd:/x\n4:hugetlb,memory:/x\n0::/\n");
  system.Write("groups/memory/x/memory.limit_in_bytes", "400000\n");
  system.Write("groups/memory/x/memory.usage_in_bytes", "150000\n");
  system.Write("groups/memory/x/memory.stat", "cache 1\ntotal_cache 60000\ntotal_shmem 10000\n");
  CHECK(system.Available() == 300000);
}

TEST_CASE("available memory: this machine has some") { CHECK(AvailableMemory() > MiB(16)); }

}  // namespace
}  // namespace dmakit::dma::host
