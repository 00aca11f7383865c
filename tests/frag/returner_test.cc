// SPDX-License-Identifier: Apache-2.0
//
// Returner: batches and what they cost, storms of releases from several threads, an order that
// changes under traffic, and pools that end while the last page is being returned.
#include "frag/returner.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

TEST_CASE("one addition per page and batch, one push per page") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3});
  FragAllocator cutter = Cutter(*pool, {.size = 1600});
  std::vector<Fragment> fragments;
  for (int i = 0; i < 40; ++i) fragments.push_back(cutter.Allocate());
  Returner returner;
  for (int i = 0; i < 32; ++i) returner.Return(fragments[i]);
  CHECK(returner.atomics() == 0);
  CHECK(fragments[0].page->returned.load() == 0);
  returner.Flush();
  CHECK(returner.atomics() == 4);  // two pages, an addition and a push each, for 32 fragments
  CHECK(fragments[0].page->returned.load() == 20);
  CHECK(pool->Fold() == 1);
  CHECK(pool->stats().recycle_ring == 1);

  // On the list already: the addition alone.
  returner.Return(fragments[32]);
  returner.Flush();
  CHECK(returner.atomics() == 6);
  returner.Return(fragments[33]);
  returner.Flush();
  CHECK(returner.atomics() == 7);
  returner.Flush();
  CHECK(returner.atomics() == 7);
  for (int i = 34; i < 40; ++i) pool->Release(fragments[i]);
  CHECK(pool->pages_in_use() == 1);
  pool->Fold();
  CHECK(fragments[32].page->outstanding == 1);
}

TEST_CASE("pages of the own pool cost no atomic; other pools' pages find their way") {
  FakeRig rig;
  auto own = rig.Pool({.label = "rx0", .order = 0});
  auto other = rig.Pool({.label = "rx1", .order = 0});
  Returner returner(own.get());
  Page* mine = own->Take();
  Page* theirs = other->Take();
  returner.Return(mine);
  CHECK(returner.atomics() == 0);
  CHECK(own->pages_in_use() == 0);
  returner.Return(theirs);
  returner.Flush();
  CHECK(returner.atomics() == 2);
  CHECK(own->Fold() == 0);
  CHECK(other->Fold() == 1);
  returner.Return(Fragment{});  // nothing
  returner.Flush();
  CHECK(returner.atomics() == 2);
}

TEST_CASE("more pages than slots: each reference arrives, in any order") {
  FakeRig rig;
  rig.audit.Expect(dma::AuditCode::kBadRelease);
  auto pool = rig.Pool({.order = 0});
  std::vector<Page*> pages;
  for (int i = 0; i < 50; ++i) {
    pages.push_back(pool->Take());
    pages.back()->outstanding += 9;  // ten references each
  }
  Random random(3);
  std::vector<Page*> references;
  for (Page* page : pages) references.insert(references.end(), 10, page);
  std::shuffle(references.begin(), references.end(), random);
  {
    Returner returner;
    for (Page* page : references) returner.Return(page);
  }  // its end flushes
  CHECK(pool->Fold() == 50);
  CHECK(pool->stats().bad_releases == 0);
  CHECK(pool->pages_in_use() == 0);
  CHECK(pool->Take() != nullptr);
  CHECK(pool->stats().alloc_slow == 50);
  pool->Release(pages[0]);
}

TEST_CASE("Take finds what others returned, by itself") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{2 * 4096}});
  Page* a = pool->Take();
  Page* b = pool->Take();
  CHECK(pool->Take() == nullptr);
  {
    Returner returner;
    returner.Return(a);
    returner.Return(b);
  }
  Page* c = pool->Take();
  CHECK((c == a || c == b));
  CHECK(pool->stats().alloc_refill == 1);
  CHECK(pool->stats().recycle_ring == 2);
  Page* d = pool->Take();
  CHECK(pool->stats().alloc_refill == 1);
  CHECK(d != c);
  pool->Release(c);
  pool->Release(d);
}

// --- Threads ---------------------------------------------------------------------------------

// Hands fragments to one worker.
struct Mailbox {
  std::mutex mutex;
  std::vector<Fragment> fragments;
};

void Stamp(const Fragment& fragment, uint64_t stamp) {
  std::memcpy(fragment.data(), &stamp, sizeof stamp);
}
uint64_t StampOf(const Fragment& fragment) {
  uint64_t stamp;
  std::memcpy(&stamp, fragment.data(), sizeof stamp);
  return stamp;
}
// What the fragment says about itself: reuse before its release would break it.
uint64_t Expected(const Fragment& fragment) {
  return reinterpret_cast<uintptr_t>(fragment.data()) * 0x9e3779b97f4a7c15u;
}

struct Storm {
  explicit Storm(size_t workers) : boxes(workers) {}
  std::vector<Mailbox> boxes;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> returned{0};

  void Work(size_t index) {
    Returner returner;
    Random random(index);
    std::vector<Fragment> batch;
    bool last = false;
    for (;;) {
      {
        std::lock_guard<std::mutex> lock(boxes[index].mutex);
        batch.swap(boxes[index].fragments);
      }
      if (batch.empty()) {
        if (last) break;
        last = done.load(std::memory_order_acquire);
        std::this_thread::yield();
        continue;
      }
      for (const Fragment& fragment : batch) {
        if (StampOf(fragment) != Expected(fragment)) wrong.fetch_add(1);
        returner.Return(fragment);
        if (Below(random, 16) == 0) returner.Flush();
      }
      returned.fetch_add(batch.size());
      batch.clear();
      returner.Flush();
    }
  }
};

TEST_CASE("storms of releases by the owner and other threads, the order changing meanwhile") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  constexpr size_t kWorkers = 3;
  const uint64_t target = kSanitized ? 30'000 : 300'000;
  FakeRig rig;
  auto pool = rig.Pool({.order = 1, .max_bytes = Bytes{64 * 8192}, .policy = policy});
  Storm storm(kWorkers);
  uint64_t made = 0, released = 0, wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kWorkers; ++i) threads.emplace_back([&storm, i] { storm.Work(i); });
    std::jthread tuner([&](std::stop_token stop) {
      Random random(5);
      while (!stop.stop_requested()) {
        (void)pool->SetOrder(static_cast<unsigned>(Below(random, 4)));
        if (pool->stats().bytes > 64 * 8192) storm.wrong.fetch_add(1);
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }
    });
    FragAllocator cutter = Cutter(*pool, {.size = 300, .alignment = 32});
    Random random(17);
    std::vector<Fragment> own;
    while (made < target) {
      const Fragment fragment = cutter.Allocate();
      if (fragment.empty()) {
        if (own.empty()) {
          std::this_thread::yield();
        } else {
          pool->Release(own.back());
          own.pop_back();
          ++released;
        }
        continue;
      }
      ++made;
      Stamp(fragment, Expected(fragment));
      const uint64_t to = Below(random, kWorkers + 1);
      if (to == kWorkers) {
        own.push_back(fragment);
      } else {
        std::lock_guard<std::mutex> lock(storm.boxes[to].mutex);
        storm.boxes[to].fragments.push_back(fragment);
      }
      if (own.size() > 100) {
        const size_t at = Below(random, own.size());
        wrong += StampOf(own[at]) != Expected(own[at]);
        pool->Release(own[at]);
        own[at] = own.back();
        own.pop_back();
        ++released;
      }
    }
    for (const Fragment& fragment : own) pool->Release(fragment);
    released += own.size();
    tuner.request_stop();
    storm.done.store(true, std::memory_order_release);
  }
  pool->Fold();
  CHECK(wrong == 0);
  CHECK(storm.wrong.load() == 0);
  CHECK(storm.returned.load() + released == made);
  const PagePoolStats stats = pool->stats();
  CHECK(stats.bad_releases == 0);
  CHECK(stats.recycle_ring > 0);
  CHECK(stats.alloc_waive > 0);
  CHECK(pool->pages_in_use() == stats.pages_waiting_flush);
  CHECK(stats.recycle_cached + stats.recycle_ring ==
        stats.alloc_fast + stats.alloc_slow + stats.alloc_slow_high_order);
  CHECK(rig.memory.bytes_in_use() == Bytes{stats.bytes});
  pool.reset();
  CHECK(rig.memory.blocks() == 0);
  CHECK(rig.memory.written_after_free() == 0);
  CHECK(rig.space->quarantine().count() == 0);
}

// Thread A ends pools in a loop, thread B returns the last reference of each.
TEST_CASE("the pool ends while its last page is being recycled") {
  const int rounds = kSanitized ? 2000 : 4000;
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict);
  FakeRig rig;
  std::atomic<Page*> handed{nullptr};
  std::jthread other([&](std::stop_token stop) {
    Random random(1);
    for (;;) {
      Page* page = handed.exchange(nullptr, std::memory_order_acquire);
      if (page == nullptr) {
        if (stop.stop_requested()) return;
        std::this_thread::yield();
        continue;
      }
      for (uint64_t spin = Below(random, 200); spin > 0; --spin) {
        [[maybe_unused]] volatile uint64_t sink = spin;
      }
      Returner returner;
      returner.Return(page);
    }
  });
  for (int round = 0; round < rounds; ++round) {
    PagePool::Options options{.label = "rx0", .order = 0, .policy = policy};
    options.waiter = &dma::SystemWaiter();
    options.teardown_deadline = dma::Nanos{60'000'000'000};
    auto pool = rig.Pool(std::move(options));
    Page* page = pool->Take();
    handed.store(page, std::memory_order_release);
    pool.reset();
  }
  other.request_stop();
  other.join();
  CHECK(rig.space->quarantine().total_held() == 0);
  CHECK(rig.memory.blocks() == 0);
}

// As above, but several threads hold references of the same page: one pushes it, the others only
// add to its count, and the owner folds several times.
TEST_CASE("the pool ends while several threads return one page") {
  const int rounds = kSanitized ? 700 : 1500;
  constexpr int kThreads = 3;
  FakeRig rig;
  std::atomic<Page*> handed{nullptr};
  std::atomic<int> round_now{0}, finished{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 1; round <= rounds; ++round) {
        while (round_now.load(std::memory_order_acquire) < round) std::this_thread::yield();
        Page* page = handed.load(std::memory_order_relaxed);
        for (int reference = 0; reference < 4; ++reference) {
          Returner returner;
          returner.Return(page);
        }
        finished.fetch_add(1, std::memory_order_release);
      }
    });
  }
  for (int round = 1; round <= rounds; ++round) {
    PagePool::Options options{.label = "rx0", .order = 0};
    options.waiter = &dma::SystemWaiter();
    options.teardown_deadline = dma::Nanos{60'000'000'000};
    auto pool = rig.Pool(std::move(options));
    Page* page = pool->Take();
    page->outstanding = kThreads * 4;
    handed.store(page, std::memory_order_relaxed);
    round_now.store(round, std::memory_order_release);
    pool.reset();
    while (finished.load(std::memory_order_acquire) < round * kThreads) std::this_thread::yield();
  }
  threads.clear();
  CHECK(rig.space->quarantine().total_held() == 0);
  CHECK(rig.memory.blocks() == 0);
}

// References that come back after the deadline, from another thread, while the owner quarantines.
TEST_CASE("a return that races with the deadline is folded or quarantined, never lost") {
  const int rounds = kSanitized ? 700 : 1500;
  FakeRig rig;
  std::atomic<Page*> handed{nullptr};
  std::atomic<int> finished{0};
  std::jthread other([&](std::stop_token stop) {
    while (!stop.stop_requested()) {
      if (Page* page = handed.exchange(nullptr, std::memory_order_acquire)) {
        Returner returner;
        returner.Return(page);
        returner.Flush();
        finished.fetch_add(1, std::memory_order_release);
      } else {
        std::this_thread::yield();
      }
    }
  });
  uint64_t held = 0;
  for (int round = 1; round <= rounds; ++round) {
    PagePool::Options options{.label = "rx0", .order = 0};
    options.waiter = &dma::SystemWaiter();
    options.teardown_deadline = dma::Nanos{(round % 8) * 500};
    auto pool = rig.Pool(std::move(options));
    Page* page = pool->Take();
    handed.store(page, std::memory_order_release);
    pool.reset();
    while (finished.load(std::memory_order_acquire) < round) std::this_thread::yield();
    held += rig.space->quarantine().count();
    REQUIRE(rig.space->quarantine().ReleaseAfterReset("").ok());
    REQUIRE(rig.memory.blocks() == 0);
  }
  CHECK(held == rig.space->quarantine().total_held());
}

}  // namespace
}  // namespace dmakit::frag::testing
