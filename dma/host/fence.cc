// SPDX-License-Identifier: Apache-2.0
//
// membarrier(2) by its number: the C library has no wrapper for it.
#include "dma/host/fence.h"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace dmakit::dma::host {
namespace {

long Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

// Who calls the fence relies on it for memory safety, so there is nothing to carry on with.
[[noreturn]] void Die() {
  std::perror("dmakit: membarrier failed although registered (was a seccomp filter added later?)");
  std::abort();
}

}  // namespace

MembarrierFence::MembarrierFence() {
  constexpr int kNeeded =
      MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
  const long supported = Membarrier(MEMBARRIER_CMD_QUERY);
  available_ = supported >= 0 && (supported & kNeeded) == kNeeded &&
               Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

void MembarrierFence::HeavyBarrier() {
  while (Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
    if (errno != ENOMEM) Die();
    sched_yield();  // the kernel had no room for its processor mask just now
  }
}

}  // namespace dmakit::dma::host
