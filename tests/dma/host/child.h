// SPDX-License-Identifier: Apache-2.0
//
// Runs a function in a forked child: for what a test wants to see die, or to limit for one process.
// The child reports through its exit code alone and must not use Catch2.
#ifndef DMAKIT_TESTS_DMA_HOST_CHILD_H_
#define DMAKIT_TESTS_DMA_HOST_CHILD_H_

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>

namespace dmakit::dma::host::testing {

// The exit code of `body`, or minus the signal that ended it. Its stderr is dropped.
template <typename Body>
int InChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO);
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 255;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Whether the byte at `address` can be read, without a signal when it cannot.
inline bool IsMapped(const std::byte* address) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const bool mapped = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return mapped;
}

}  // namespace dmakit::dma::host::testing

#endif  // DMAKIT_TESTS_DMA_HOST_CHILD_H_
