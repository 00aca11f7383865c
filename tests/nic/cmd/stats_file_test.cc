// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/stats_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/nic/wire/capture.h"

namespace dmakit::nic::cmd {
namespace {

namespace fs = std::filesystem;
using testing::ReadFile;
using testing::TempPath;
using testing::WriteFile;

// A new, empty directory.
std::string Directory() {
  const std::string path = TempPath("stats_file_test");
  fs::remove_all(path);
  fs::create_directory(path);
  return path;
}

size_t Entries(const std::string& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), {}));
}

TEST_CASE("a file appears whole, and only when it was written") {
  const std::string directory = Directory();
  {
    auto file = StatsFile::Create(directory + "/s.json");
    REQUIRE(file.ok());
    CHECK_FALSE(fs::exists(directory + "/s.json"));
    REQUIRE(file->Write("{}\n").ok());
    CHECK(ReadFile(directory + "/s.json") == "{}\n");
  }
  CHECK(Entries(directory) == 1);
}

TEST_CASE("what is never written leaves everything as it was") {
  const std::string directory = Directory();
  WriteFile(directory + "/s.json", "old");
  {
    auto file = StatsFile::Create(directory + "/s.json");
    REQUIRE(file.ok());
    const StatsFile moved = *std::move(file);
    CHECK(ReadFile(directory + "/s.json") == "old");
  }
  CHECK(ReadFile(directory + "/s.json") == "old");
  CHECK(Entries(directory) == 1);
}

TEST_CASE("a symbolic link stays one") {
  const std::string directory = Directory();
  WriteFile(directory + "/real", "old");
  fs::create_symlink("real", directory + "/link");
  auto file = StatsFile::Create(directory + "/link");
  REQUIRE(file.ok());
  REQUIRE(file->Write("new").ok());
  CHECK(fs::is_symlink(directory + "/link"));
  CHECK(ReadFile(directory + "/real") == "new");
}

TEST_CASE("paths that cannot be written are named at once") {
  const std::string directory = Directory();
  for (const std::string& path :
       {directory + "/no/s.json", directory, std::string("/proc/s.json")}) {
    const auto file = StatsFile::Create(path);
    REQUIRE_FALSE(file.ok());
    INFO(file.status().message());
    CHECK(absl::StartsWith(file.status().message(), "--stats: \"" + path + "\" cannot be written"));
  }
}

TEST_CASE("a full disk is an error when it is written") {
  auto file = StatsFile::Create("/dev/full");
  REQUIRE(file.ok());
  CHECK(absl::StrContains(file->Write("{}").message(), "No space left on device"));
}

TEST_CASE("what is no regular file is written directly") {
  auto file = StatsFile::Create("/dev/null");
  REQUIRE(file.ok());
  CHECK(file->Write("{}").ok());
  CHECK(fs::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace dmakit::nic::cmd
