// SPDX-License-Identifier: Apache-2.0
//
// A file that is either complete or as it was before: written under another name in the same
// directory and renamed. A path that exists and is no regular file (/dev/stdout, a pipe) is written
// directly. Move-only, one thread.
#ifndef DMAKIT_NIC_CMD_STATS_FILE_H_
#define DMAKIT_NIC_CMD_STATS_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace dmakit::nic::cmd {

class StatsFile {
 public:
  // Makes sure that `path` can be written before a run begins.
  static absl::StatusOr<StatsFile> Create(std::string path);
  StatsFile(StatsFile&& other) noexcept;
  StatsFile& operator=(StatsFile&&) = delete;
  // Without a successful Write nothing is left behind.
  ~StatsFile();

  // Once.
  absl::Status Write(std::string_view text);

 private:
  StatsFile(std::string path, std::string temporary, int fd);

  std::string path_;
  std::string temporary_;  // empty: written directly
  int fd_ = -1;
};

}  // namespace dmakit::nic::cmd

#endif  // DMAKIT_NIC_CMD_STATS_FILE_H_
