// SPDX-License-Identifier: Apache-2.0

#include "nic/cmd/stats_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/spec.h"

namespace dmakit::nic::cmd {
namespace {

absl::Status Unwritable(std::string_view path, int error_number) {
  return absl::InvalidArgumentError(
      absl::StrCat("--stats: ", Quote(path), " cannot be written (",
                   std::generic_category().message(error_number),
                   "); give a path in a directory that exists, has room, and is yours to write"));
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

absl::StatusOr<StatsFile> StatsFile::Create(std::string path) {
  struct stat info = {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return Unwritable(path, EISDIR);
  if (exists && !S_ISREG(info.st_mode)) {
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return Unwritable(path, errno);
    return StatsFile(std::move(path), "", fd);
  }
  // Renaming replaces a symbolic link, not what it points to.
  std::error_code error;
  if (exists) path = std::filesystem::canonical(path, error).string();
  if (error) return Unwritable(path, error.value());
  std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return Unwritable(path, errno);
  return StatsFile(std::move(path), std::move(temporary), fd);
}

StatsFile::StatsFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

StatsFile::StatsFile(StatsFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

StatsFile::~StatsFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status StatsFile::Write(std::string_view text) {
  const bool written = WriteAll(fd_, text);
  int error = written ? 0 : errno;
  if (close(std::exchange(fd_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && !temporary_.empty()) {
    if (std::rename(temporary_.c_str(), path_.c_str()) == 0) {
      temporary_.clear();
    } else {
      error = errno;
    }
  }
  return error == 0 ? absl::OkStatus() : Unwritable(path_, error);
}

}  // namespace dmakit::nic::cmd
