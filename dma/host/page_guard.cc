// SPDX-License-Identifier: Apache-2.0
//
// The signal handler reads a fixed table of atomics and calls mprotect, nothing else. A slot is in
// use while `first` is not 0; it is written under a mutex that the handler does not take.
#include "dma/host/page_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace dmakit::dma::host {

namespace {

struct Slot {
  std::atomic<uintptr_t> first{0};
  std::atomic<uintptr_t> size{0};
  std::atomic<uintptr_t> touched{0};
};

std::array<Slot, FaultGuard::kMaxRegions> slots;
std::atomic<size_t> used_slots{0};  // none beyond was ever used
std::mutex table_mutex;
size_t guards = 0;
struct sigaction before;

void Pass(int signal, siginfo_t* info, void* context) {
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    sigaction(SIGSEGV, &before, nullptr);  // the access is tried again, and ends the process
  }
}

void OnFault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const size_t end = used_slots.load(std::memory_order_acquire);
  for (size_t i = 0; i < end; ++i) {
    Slot& slot = slots[i];
    const uintptr_t first = slot.first.load(std::memory_order_acquire);
    const uintptr_t size = slot.size.load(std::memory_order_relaxed);
    if (first == 0 || address - first >= size) continue;
    uintptr_t none = 0;
    slot.touched.compare_exchange_strong(none, address, std::memory_order_relaxed);
    if (mprotect(reinterpret_cast<void*>(first), size, PROT_READ | PROT_WRITE) == 0) {
      errno = error;
      return;
    }
  }
  errno = error;
  Pass(signal, info, context);
}

// With the table's mutex.
Slot* FreeSlot() {
  const size_t end = used_slots.load(std::memory_order_relaxed);
  for (size_t i = 0; i < end; ++i) {
    if (slots[i].first.load(std::memory_order_relaxed) == 0) return &slots[i];
  }
  if (end == slots.size()) return nullptr;
  used_slots.store(end + 1, std::memory_order_release);
  return &slots[end];
}

}  // namespace

FaultGuard::FaultGuard() {
  std::lock_guard<std::mutex> lock(table_mutex);
  if (guards++ != 0) return;
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &before);
}

FaultGuard::~FaultGuard() {
  std::lock_guard<std::mutex> lock(table_mutex);
  if (--guards == 0) sigaction(SIGSEGV, &before, nullptr);
}

size_t FaultGuard::page_size() const { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

absl::Status FaultGuard::Protect(std::span<std::byte> pages) {
  const auto first = reinterpret_cast<uintptr_t>(pages.data());
  if (pages.empty() || first % page_size() != 0 || pages.size() % page_size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("page guard: ", pages.size(), " bytes at 0x",
                                                   absl::Hex(first), ": must be whole pages of ",
                                                   page_size(), " bytes"));
  }
  std::lock_guard<std::mutex> lock(table_mutex);
  Slot* const slot = FreeSlot();
  if (slot == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("page guard: ", kMaxRegions,
                                                     " regions are protected, the most there can "
                                                     "be; restore some first"));
  }
  slot->touched.store(0, std::memory_order_relaxed);
  slot->size.store(pages.size(), std::memory_order_relaxed);
  slot->first.store(first, std::memory_order_release);
  if (mprotect(pages.data(), pages.size(), PROT_NONE) == 0) return absl::OkStatus();
  slot->first.store(0, std::memory_order_release);
  return absl::InternalError(
      absl::StrCat("page guard: protecting ", pages.size(), " bytes: ", std::strerror(errno)));
}

const std::byte* FaultGuard::Restore(std::span<std::byte> pages) {
  const auto first = reinterpret_cast<uintptr_t>(pages.data());
  std::lock_guard<std::mutex> lock(table_mutex);
  for (Slot& slot : slots) {
    if (slot.first.load(std::memory_order_relaxed) != first || first == 0) continue;
    // The slot goes last: until then another thread may fault here.
    (void)mprotect(pages.data(), pages.size(), PROT_READ | PROT_WRITE);
    const uintptr_t touched = slot.touched.load(std::memory_order_relaxed);
    slot.first.store(0, std::memory_order_release);
    return touched == 0 ? nullptr : pages.data() + (touched - first);
  }
  return nullptr;
}

}  // namespace dmakit::dma::host
