// SPDX-License-Identifier: Apache-2.0
//
// Returner gives fragments back from a thread that need not be their owner: a transmit ring that
// sends packets of several receive rings, a worker. It gathers references per page and gives them
// back in batches: one atomic addition per page and batch; the one that raises a page's count from
// zero also pushes the page on its pool's list, which is intrusive and so never full. Pages of
// `own`, the pool whose owner thread this is, are released directly, with no atomic at all.
//
// One thread at a time. What was given to Return may sit here until Flush: flush at the end of each
// burst.
#ifndef DMAKIT_FRAG_RETURNER_H_
#define DMAKIT_FRAG_RETURNER_H_

#include <array>
#include <cstdint>

#include "frag/page.h"
#include "frag/page_pool.h"

namespace dmakit::frag {

class Returner {
 public:
  // `own` may be nullptr; it must outlive the Returner. Other pools may end while references to
  // their pages sit here: see ~PagePool.
  explicit Returner(PagePool* own = nullptr) : own_(own) {}
  Returner(const Returner&) = delete;
  Returner& operator=(const Returner&) = delete;
  ~Returner() { Flush(); }

  // Gives back one reference (an empty fragment has none).
  void Return(Page* page);
  void Return(const Fragment& fragment) { Return(fragment.page); }
  void Flush();

  uint64_t atomics() const { return atomics_; }  // read-modify-writes so far, for tests

 private:
  static constexpr size_t kSlots = 8;
  struct Slot {
    Page* page = nullptr;
    uint32_t count = 0;
  };
  void GiveBack(Slot& slot);

  PagePool* own_;
  std::array<Slot, kSlots> slots_{};
  uint32_t next_ = 0;    // the slot to evict
  uint32_t recent_ = 0;  // the slot used last
  uint64_t atomics_ = 0;
};

}  // namespace dmakit::frag

#endif  // DMAKIT_FRAG_RETURNER_H_
