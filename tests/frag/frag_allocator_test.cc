// SPDX-License-Identifier: Apache-2.0
//
// FragAllocator: cutting on pages of every size, counts that cannot overflow, sizes that cannot
// wrap, and a long random run against a model.
#include "frag/frag_allocator.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/frag/testing.h"

namespace dmakit::frag::testing {
namespace {

bool Inside(const Fragment& fragment, uint32_t tailroom = 0) {
  return uint64_t{fragment.offset} + fragment.size + tailroom <= fragment.page->size;
}

TEST_CASE("options that make no sense are refused by value and rule") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3});
  const auto refused = [&](FragAllocator::Options options) {
    auto made = FragAllocator::Create(*pool, options);
    return !made.ok() && made.status().code() == absl::StatusCode::kInvalidArgument;
  };
  CHECK(refused({.size = 0}));
  CHECK(refused({.size = 64, .alignment = 0}));
  CHECK(refused({.size = 64, .alignment = 48}));
  CHECK(refused({.size = 64, .alignment = 8192}));
  CHECK(refused({.size = 32769, .alignment = 1}));
  CHECK(refused({.size = 32768, .alignment = 1, .tailroom = 1}));
  CHECK_FALSE(refused({.size = 32768, .alignment = 4096}));
  CHECK_FALSE(refused({.size = 1, .alignment = 1, .tailroom = 32767}));
  auto made = FragAllocator::Create(*pool, {.size = 40000});
  CHECK(made.status().message().find("40000") != absl::string_view::npos);
  CHECK(made.status().message().find("32768") != absl::string_view::npos);
}

TEST_CASE("huge requests do not round up to small ones") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3});
  FragAllocator cutter = Cutter(*pool, {.size = 100, .tailroom = 0});
  for (uint32_t alignment = 1; alignment <= 4096; alignment *= 2) {
    for (uint32_t below : {0u, 1u, 2u, 63u, 64u, 127u, 4095u}) {
      const uint32_t huge = 0xffffffffu - below;
      CHECK_FALSE(FragAllocator::Create(*pool, {.size = huge, .alignment = alignment}).ok());
      CHECK_FALSE(
          FragAllocator::Create(*pool, {.size = 1, .alignment = alignment, .tailroom = huge}).ok());
      CHECK_FALSE(
          FragAllocator::Create(*pool, {.size = huge, .alignment = alignment, .tailroom = huge})
              .ok());
      CHECK(cutter.AllocateSize(huge).empty());
      FragAllocator aligned = Cutter(*pool, {.size = 1, .alignment = alignment, .tailroom = 31});
      CHECK(aligned.AllocateSize(huge).empty());
      CHECK(aligned.AllocateSize(0x80000000u).empty());
    }
  }
  CHECK(pool->stats().pages == 0);  // not even a page was taken for them
  CHECK(cutter.AllocateSize(0).empty());
}

TEST_CASE("fragments: consecutive, aligned, inside, with their IOVA") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3});
  FragAllocator cutter = Cutter(*pool, {.size = 1500, .alignment = 128, .tailroom = 20});
  CHECK(cutter.stride() == 1536);
  std::vector<Fragment> fragments;
  for (int i = 0; i < 21; ++i) fragments.push_back(cutter.Allocate());
  for (int i = 0; i < 21; ++i) {
    CHECK(fragments[i].page == fragments[0].page);
    CHECK(fragments[i].offset == 1536u * i);
    CHECK(fragments[i].size == 1500);
    CHECK(Inside(fragments[i], 20));
    CHECK(fragments[i].iova() == fragments[0].page->iova + Bytes{1536u * i});
    CHECK(fragments[i].data() == fragments[0].page->base + 1536 * i);
  }
  CHECK(fragments[0].page->outstanding == 22);  // and the cutter's
  Fragment next = cutter.Allocate();
  CHECK(next.page != fragments[0].page);
  CHECK(fragments[0].page->outstanding == 21);
  for (const Fragment& fragment : fragments) pool->Release(fragment);
  pool->Release(next);
  CHECK(pool->pages_in_use() == 1);
  CHECK(pool->stats().maps == 2);
  CHECK(pool->stats().recycle_cached == 1);
}

TEST_CASE("the cutter's own reference cannot be given back by others") {
  FakeRig rig;
  rig.audit.Expect(dma::AuditCode::kBadRelease);
  auto pool = rig.Pool({.order = 0});
  FragAllocator cutter = Cutter(*pool, {.size = 64});
  Fragment fragment = cutter.Allocate();
  pool->Release(fragment);
  pool->Release(fragment);  // twice
  CHECK(pool->stats().bad_releases == 1);
  {
    Returner returner;
    returner.Return(fragment);
  }
  pool->Fold();
  CHECK(pool->stats().bad_releases == 2);
  CHECK(fragment.page->outstanding == 1);
  Fragment second = cutter.Allocate();
  CHECK(second.page == fragment.page);
  CHECK(second.offset == 64);
  pool->Release(second);
}

TEST_CASE("one-byte fragments to the end of the page: each counted, one page release") {
  const unsigned order = GENERATE(0u, 1u, 2u, 3u, 9u);
  const bool others = GENERATE(false, true);
  FakeRig rig({.largest = Bytes{4096u << order}});
  auto pool = rig.Pool({.order = 9, .policy = Policy::kStrict});
  const uint32_t size = 4096u << order;
  std::vector<uint32_t> offsets;
  Page* page = nullptr;
  {
    FragAllocator cutter = Cutter(*pool, {.size = 1, .alignment = 1});
    for (uint32_t i = 0; i < size; ++i) {
      Fragment fragment = cutter.Allocate();
      if (page == nullptr) page = fragment.page;
      if (fragment.page != page || fragment.offset != i) FAIL("fragment " << i);
      offsets.push_back(fragment.offset);
    }
    CHECK(page->outstanding == size + 1);
  }
  CHECK(page->outstanding == size);
  CHECK(page->size == size);
  Random random(order);
  std::shuffle(offsets.begin(), offsets.end(), random);
  Returner returner;
  for (uint32_t i = 0; i < size; ++i) {
    if (page->outstanding == 0 || rig.domain.stats().unmaps != 0) FAIL("released early at " << i);
    if (others && (i & 1)) {
      returner.Return(page);
    } else {
      pool->Release(page);
    }
  }
  returner.Flush();
  pool->Fold();
  CHECK(page->outstanding == 0);
  CHECK(pool->stats().recycle_cached + pool->stats().recycle_ring == 1);
  CHECK(rig.domain.stats().unmaps == 1);
  CHECK(rig.domain.stats().invalidations == 1);
  CHECK(pool->pages_in_use() == 0);
  CHECK(pool->stats().bad_releases == 0);
}

TEST_CASE("fallback pages: sizes around a page are inside or refused") {
  const uint32_t tailroom = GENERATE(0u, 1u, 64u);
  const uint32_t alignment = GENERATE(1u, 64u, 4096u);
  FakeRig rig;
  auto pool = rig.Pool({.order = 3, .max_bytes = Bytes{1 << 20}});
  FragAllocator cutter = Cutter(*pool, {.size = 512, .alignment = alignment, .tailroom = tailroom});
  Random random(alignment + tailroom);
  std::vector<Fragment> out;
  uint64_t served = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    // Large orders come and go.
    if (i % 7 == 0) rig.memory.set_largest(Bytes{4096u << Below(random, 4)});
    static constexpr uint32_t kSizes[] = {1,     4095,  4096,  4097,  8191,  8193,
                                          16384, 16385, 32767, 32768, 32769, 65536};
    const uint32_t size = kSizes[Below(random, std::size(kSizes))];
    const Fragment fragment = cutter.AllocateSize(size);
    if (fragment.empty()) {
      ++refused;
    } else {
      ++served;
      REQUIRE(fragment.size == size);
      REQUIRE(Inside(fragment, tailroom));
      REQUIRE(fragment.offset % alignment == 0);
      fragment.data()[0] = std::byte{1};
      fragment.data()[size - 1] = std::byte{2};
      out.push_back(fragment);
    }
    REQUIRE((size + tailroom <= 32768 || fragment.empty()));
    if (const Fragment plain = cutter.Allocate(); !plain.empty()) {
      REQUIRE(Inside(plain, tailroom));
      out.push_back(plain);
    }
    while (out.size() > 12) {
      pool->Release(out.front());
      out.erase(out.begin());
    }
  }
  CHECK(served > 500);
  CHECK(refused > 100);
  CHECK(pool->stats().order_fallbacks > 0);
  for (const Fragment& fragment : out) pool->Release(fragment);
  CHECK(pool->pages_in_use() <= 1);
  CHECK(pool->stats().bad_releases == 0);
}

TEST_CASE("a page too small for the fragment is not even taken") {
  FakeRig rig({.largest = Bytes{8192}});
  auto pool = rig.Pool({.order = 3});
  FragAllocator cutter = Cutter(*pool, {.size = 9000});
  CHECK(cutter.Allocate().empty());
  CHECK(pool->stats().alloc_failed_memory == 1);
  CHECK(pool->stats().pages == 0);
  CHECK(rig.memory.blocks() == 0);
  rig.memory.set_largest(Bytes{16384});
  Fragment fragment = cutter.Allocate();
  REQUIRE_FALSE(fragment.empty());
  CHECK(fragment.page->size == 16384);
  pool->Release(fragment);
}

TEST_CASE("an order lowered below the fragment's size stops nobody") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 3});
  FragAllocator cutter = Cutter(*pool, {.size = 9000});
  REQUIRE(pool->SetOrder(0).ok());
  for (int i = 0; i < 10; ++i) {
    Fragment fragment = cutter.Allocate();
    REQUIRE_FALSE(fragment.empty());
    CHECK(fragment.page->size == 16384);
    pool->Release(fragment);
  }
  CHECK(pool->stats().maps == 1);  // and its pages are recycled
  CHECK(cutter.AllocateSize(9000).size == 9000);
  CHECK(cutter.AllocateSize(17000).empty());
}

TEST_CASE("at the cap the page whose fragments are all back is the next one") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  auto pool = rig.Pool({.order = 0, .max_bytes = Bytes{4096}, .policy = policy});
  FragAllocator cutter = Cutter(*pool, {.size = 2048});
  for (int i = 0; i < 10; ++i) {
    Fragment a = cutter.Allocate(), b = cutter.Allocate();
    REQUIRE_FALSE(b.empty());
    CHECK(cutter.Allocate().empty());
    CHECK(cutter.Allocate().empty());
    pool->Release(a);
    pool->Release(b);
  }
  CHECK(pool->stats().pages_peak == 1);
  CHECK(pool->stats().alloc_failed_cap == 20);
}

TEST_CASE("Retire gives up the page, not the fragments") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0});
  FragAllocator cutter = Cutter(*pool, {.size = 64});
  cutter.Retire();
  Fragment a = cutter.Allocate();
  cutter.Retire();
  CHECK(a.page->outstanding == 1);
  Fragment b = cutter.Allocate();
  CHECK(b.page != a.page);
  CHECK(b.offset == 0);
  pool->Release(a);
  pool->Release(b);
  cutter.Retire();
  cutter.Retire();
  CHECK(pool->pages_in_use() == 0);
  CHECK(pool->stats().bad_releases == 0);
}

TEST_CASE("moving a cutter moves its page and its reference") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 0});
  auto other = rig.Pool({.label = "rx1", .order = 0});
  FragAllocator first = Cutter(*pool, {.size = 1024});
  Fragment a = first.Allocate();
  FragAllocator second = std::move(first);
  CHECK(first.Allocate().empty());  // NOLINT: what was moved from is empty
  CHECK(first.AllocateSize(1).empty());
  Fragment b = second.Allocate();
  CHECK(b.page == a.page);
  CHECK(b.offset == 1024);
  FragAllocator third = Cutter(*other, {.size = 512});
  Fragment c = third.Allocate();
  third = std::move(second);
  CHECK(&third.pool() == pool.get());
  CHECK(third.Allocate().page == a.page);
  other->Release(c);
  CHECK(other->pages_in_use() == 0);  // its cutter gave the page up
  pool->Release(a.page, 3);
  CHECK(pool->pages_in_use() == 1);
  { FragAllocator last = std::move(third); }
  CHECK(pool->pages_in_use() == 0);
  CHECK(pool->stats().bad_releases == 0);
}

TEST_CASE("BestOrder and FragmentsPerPage") {
  CHECK(FragAllocator::FragmentsPerPage(9088, 3) == 3);
  CHECK(FragAllocator::FragmentsPerPage(9088, 4) == 7);
  CHECK(FragAllocator::FragmentsPerPage(1600, 3) == 20);
  CHECK(FragAllocator::FragmentsPerPage(4097, 0) == 0);
  CHECK(FragAllocator::FragmentsPerPage(0, 3) == 0);
  CHECK(FragAllocator::FragmentsPerPage(1, 9) == 2 << 20);
  CHECK(FragAllocator::FragmentsPerPage(1, 10) == 0);
  CHECK(FragAllocator::BestOrder(9088, 3, 9) == 4);
  CHECK(FragAllocator::BestOrder(1600, 3, 9) == 3);
  CHECK(FragAllocator::BestOrder(4096, 0, 9) == 0);
  CHECK(FragAllocator::BestOrder(9088, 3, 3) == 3);
  CHECK(FragAllocator::BestOrder(9088, 0, 1) == 0);  // none fits
  CHECK(FragAllocator::BestOrder(9088, 9, 3) == 3);
  CHECK(FragAllocator::BestOrder(0xffffffff, 0, 99) == 0);
  CHECK(FragAllocator::BestOrder(0, 2, 9) == 2);
  // None wastes at most a sixteenth: the one that wastes least.
  CHECK(FragAllocator::BestOrder(2100, 0, 1) == 1);
  CHECK(FragAllocator::BestOrder(3000, 0, 1) == 0);  // both the same
  CHECK(FragAllocator::BestOrder(9000, 1, 2) == 2);
  for (uint32_t stride = 64; stride < 20000; stride += 64) {
    const unsigned order = FragAllocator::BestOrder(stride, 3, 9);
    const uint64_t page = 4096u << order;
    const uint64_t waste = page - FragAllocator::FragmentsPerPage(stride, order) * uint64_t{stride};
    REQUIRE(waste * 16 <= page);
    for (unsigned smaller = 3; smaller < order; ++smaller) {
      const uint64_t small = 4096u << smaller;
      REQUIRE((small % stride) * 16 > small);
    }
  }
}

TEST_CASE("an element holds headroom, the largest frame and tailroom for every MTU") {
  FakeRig rig;
  auto pool = rig.Pool({.order = 9});
  for (uint32_t mtu = 68; mtu <= 9000; ++mtu) {
    for (uint32_t tailroom : {0u, 320u}) {
      const uint32_t size = BufferSize(mtu);
      FragAllocator cutter = Cutter(*pool, {.size = size, .tailroom = tailroom});
      REQUIRE(64 + mtu + 18 <= size);
      REQUIRE(size + tailroom <= cutter.stride());
      const Fragment a = cutter.Allocate(), b = cutter.Allocate();
      if (b.offset - a.offset < 64 + mtu + 18 + tailroom) FAIL("MTU " << mtu);
      pool->Release(a.page, 2);
    }
  }
}

// A map of pages, fragments and references, kept beside the allocator.
TEST_CASE("a long random run against a model") {
  const Policy policy = GENERATE(Policy::kPersistent, Policy::kStrict, Policy::kDeferred);
  FakeRig rig;
  auto pool = rig.Pool({.order = 2, .max_bytes = Bytes{64 * 16384}, .policy = policy});
  std::vector<FragAllocator> cutters;
  cutters.push_back(Cutter(*pool, {.size = 700, .alignment = 64, .tailroom = 10}));
  cutters.push_back(Cutter(*pool, {.size = 3, .alignment = 1}));
  Returner returner;
  Random random(99);
  struct Live {
    uint32_t end;
    Fragment fragment;
  };
  std::map<Page*, std::map<uint32_t, Live>> model;
  std::vector<Fragment> out;
  uint64_t pending = 0;
  const int rounds = kSanitized ? 20000 : 100000;
  for (int i = 0; i < rounds; ++i) {
    const uint64_t dice = Below(random, 100);
    if (dice < 50) {
      FragAllocator& cutter = cutters[Below(random, 2)];
      const uint32_t size = 1 + static_cast<uint32_t>(Below(random, 5000));
      const Fragment fragment = dice < 40 ? cutter.Allocate() : cutter.AllocateSize(size);
      if (fragment.empty()) continue;
      const uint32_t end = fragment.offset + fragment.size + cutter.options().tailroom;
      REQUIRE(end <= fragment.page->size);
      auto& page = model[fragment.page];
      auto after = page.lower_bound(fragment.offset);
      REQUIRE((after == page.end() || after->first >= end));
      REQUIRE((after == page.begin() || std::prev(after)->second.end <= fragment.offset));
      page.emplace(fragment.offset, Live{end, fragment});
      out.push_back(fragment);
    } else if (dice < 97 && !out.empty()) {
      const size_t at = Below(random, out.size());
      const Fragment fragment = out[at];
      out[at] = out.back();
      out.pop_back();
      auto& page = model[fragment.page];
      page.erase(fragment.offset);
      if (page.empty()) model.erase(fragment.page);
      if (Below(random, 4) == 0) {
        returner.Return(fragment);
        ++pending;
      } else {
        pool->Release(fragment);
      }
    } else if (dice == 97) {
      returner.Flush();
      pool->Fold();
      pending = 0;
    } else if (dice == 98 && Below(random, 20) == 0) {
      REQUIRE(pool->SetOrder(2 + static_cast<unsigned>(Below(random, 3))).ok());
    }
    REQUIRE(pool->stats().bytes <= pool->options().max_bytes.value());
    if (pending == 0) {
      const size_t used = pool->pages_in_use() - pool->stats().pages_waiting_flush;
      REQUIRE(used >= model.size());
      REQUIRE(used <= model.size() + cutters.size());
    }
  }
  cutters.clear();
  for (const Fragment& fragment : out) pool->Release(fragment);
  returner.Flush();
  pool->Fold();
  const PagePoolStats stats = pool->stats();
  CHECK(pool->pages_in_use() == stats.pages_waiting_flush);
  CHECK(stats.bad_releases == 0);
  CHECK(stats.alloc_waive > 0);
  CHECK(stats.recycle_cached + stats.recycle_ring ==
        stats.alloc_fast + stats.alloc_slow + stats.alloc_slow_high_order);
}

}  // namespace
}  // namespace dmakit::frag::testing
