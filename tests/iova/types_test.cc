// SPDX-License-Identifier: Apache-2.0

#include "iova/types.h"

#include <limits>
#include <type_traits>

#include "absl/hash/hash.h"
#include "iova/counter.h"
#include "tests/catch.h"

namespace dmakit {
namespace {

constexpr uint64_t kTop = std::numeric_limits<uint64_t>::max();

static_assert(!std::is_convertible_v<uint64_t, Iova>);
static_assert(!std::is_convertible_v<Iova, PhysAddr>);
static_assert(!std::is_constructible_v<Iova, PhysAddr>);
static_assert(!std::is_convertible_v<AddressBits, AddressMask>);
static_assert(!std::is_constructible_v<AddressMask, AddressBits>);
static_assert(!std::is_convertible_v<PageCount, Bytes>);
static_assert(sizeof(Iova) == 8 && sizeof(Range) == 16);

TEST_CASE("Addresses and lengths combine only in ways that make sense") {
  CHECK((Iova(0x1000) + KiB(4)).value() == 0x2000);
  CHECK(Iova(0x3000) - Iova(0x1000) == Bytes(0x2000));
  CHECK(Iova(0x3000) - KiB(4) == Iova(0x2000));
  CHECK(PageCount(3).ToBytes(KiB(4)) == Bytes(12288));
  CHECK(GiB(1) / MiB(2) == 512);
  CHECK(GiB(1) / 512 == MiB(2));
  CHECK(Bytes(4097) % KiB(4) == Bytes(1));
  CHECK(absl::Hash<Iova>()(Iova(7)) == absl::Hash<Iova>()(Iova(7)));
  CHECK(absl::Hash<Range>()({Iova(7), Bytes(1)}) != absl::Hash<Range>()({Iova(7), Bytes(2)}));
}

TEST_CASE("Range ends at 2^64 - 1 without overflow (exclusive-end overflow)") {
  const auto last_page = Range::Make(Iova(kTop - 4095), KiB(4));
  REQUIRE(last_page);
  CHECK(last_page->last() == Iova::Max());
  CHECK(last_page->Contains(Iova::Max()));
  CHECK(!last_page->Contains(Iova(0)));
  CHECK(!Range::Make(Iova(kTop - 4095), Bytes(4097)));
  CHECK(Range::Make(Iova(1), Bytes(kTop))->last() == Iova::Max());
  CHECK(!Range::Make(Iova(2), Bytes(kTop)));
  CHECK(Range::Make(Iova(0), Bytes(kTop))->last() == Iova(kTop - 1));
  CHECK(Range::Make(Iova::Max(), Bytes(1))->last() == Iova::Max());
  CHECK(!Range::Make(Iova::Max(), Bytes(2)));
}

TEST_CASE("Range of size 0 is empty: holds and overlaps nothing") {
  const Range empty{Iova(0x1000), Bytes(0)};
  const Range page{Iova(0x1000), KiB(4)};
  CHECK(empty.empty());
  CHECK(Range::Make(Iova::Max(), Bytes(0)));
  CHECK(!empty.Contains(Iova(0x1000)));
  CHECK(!empty.Overlaps(page));
  CHECK(!page.Overlaps(empty));
  CHECK(!page.Contains(empty));
  CHECK(!Interval::FromRange(empty));
}

TEST_CASE("Range overlap and containment at the edges") {
  const Range page{Iova(0x2000), KiB(4)};
  CHECK(page.Contains(page));
  CHECK(page.Contains(Range{Iova(0x2FFF), Bytes(1)}));
  CHECK(!page.Contains(Range{Iova(0x2FFF), Bytes(2)}));
  CHECK(!page.Contains(Range{Iova(0x1FFF), Bytes(2)}));
  CHECK(page.Overlaps(Range{Iova(0x1FFF), Bytes(2)}));
  CHECK(!page.Overlaps(Range{Iova(0x1000), KiB(4)}));
  CHECK(!page.Overlaps(Range{Iova(0x3000), KiB(4)}));
  const Range top{Iova(kTop - 4095), KiB(4)};
  CHECK(top.Overlaps(Range{Iova(kTop), Bytes(1)}));
  CHECK(!top.Overlaps(Range{Iova(0), KiB(4)}));
}

TEST_CASE("Interval holds the whole space, which no Range can") {
  CHECK(Interval::All().valid());
  CHECK(Interval::All().Contains(Iova::Max()));
  CHECK(!Interval::All().ToRange());
  CHECK((Interval{Iova(1), Iova::Max()}.ToRange() == Range{Iova(1), Bytes(kTop)}));
  CHECK((Interval{Iova(0), Iova(kTop - 1)}.ToRange() == Range{Iova(0), Bytes(kTop)}));
  CHECK((!Interval{Iova(2), Iova(1)}.valid()));
  CHECK((!Interval{Iova(2), Iova(1)}.ToRange()));
  CHECK((Interval{Iova(0x1000), Iova(0x1FFF)}.Contains(Range{Iova(0x1000), KiB(4)})));
  CHECK((!Interval{Iova(0x1000), Iova(0x1FFE)}.Contains(Range{Iova(0x1000), KiB(4)})));
  CHECK((Interval{Iova(0), Iova(5)}.Overlaps({Iova(5), Iova(9)})));
  CHECK((!Interval{Iova(0), Iova(5)}.Overlaps({Iova(6), Iova(9)})));
}

TEST_CASE("Alignment helpers do not wrap (size_t overflow)") {
  CHECK(AlignDown(Iova(0x1FFF), KiB(4)) == Iova(0x1000));
  CHECK(AlignUp(Iova(0x1001), KiB(4)) == Iova(0x2000));
  CHECK(AlignUp(Iova(0x1000), KiB(4)) == Iova(0x1000));
  for (const uint64_t less : {0, 1, 2, 63, 64, 127, 4094}) {
    CHECK(!AlignUp(Iova(kTop - less), KiB(4)));
    CHECK(!AlignUp(Bytes(kTop - less), KiB(4)));
  }
  CHECK(AlignUp(Bytes(kTop - 4095), KiB(4)) == Bytes(kTop - 4095));
  CHECK(CheckedAdd(Iova(kTop), Bytes(0)) == Iova(kTop));
  CHECK(!CheckedAdd(Iova(kTop), Bytes(1)));
  CHECK(IsAligned(Iova(0), GiB(1)));
  CHECK(!IsPowerOfTwo(Bytes(0)));
}

TEST_CASE("A number of bits and a mask are told apart (unit confusion)") {
  CHECK(AddressBits(39).ToMask().value() == 0x7FFFFFFFFF);
  CHECK(AddressBits(64).ToMask().value() == kTop);
  CHECK(AddressBits(32).ToMask().highest() == Iova(0xFFFFFFFF));
  CHECK(AddressBits::FromMask(AddressMask(0xFFFFFFFF)) == AddressBits(32));
  CHECK(AddressBits::FromMask(AddressMask(kTop)) == AddressBits(64));
  CHECK(!AddressBits::FromMask(AddressMask(39)));  // bits given as a mask
  CHECK(!AddressBits::FromMask(AddressMask(0)));
  CHECK(!AddressBits(0).valid());
  CHECK(!AddressBits(65).valid());
  CHECK(NumaNode().is_any());
  CHECK(!NumaNode(0).is_any());
}

TEST_CASE("A counter adds, subtracts, is set, and rises only") {
  Counter counter;
  CHECK(counter.Get() == 0);
  counter.Add();
  counter.Add(41);
  CHECK(counter.Get() == 42);
  counter.Sub(2);
  CHECK(counter.Get() == 40);
  counter.RaiseTo(39);
  CHECK(counter.Get() == 40);
  counter.RaiseTo(41);
  CHECK(counter.Get() == 41);
  counter.Set(7);
  CHECK(counter.Get() == 7);
}

TEST_CASE("Text forms") {
  CHECK(ToString(Iova(0xFEE00000)) == "0xfee00000");
  CHECK(ToString(Bytes(4096)) == "4096");
  CHECK(ToString(Range{Iova(0x1000), KiB(4)}) == "[0x1000, 0x1fff]");
  CHECK(ToString(Range{Iova(0x1000), Bytes(0)}) == "[0x1000, empty)");
  CHECK(ToString(Interval::All()) == "[0x0, 0xffffffffffffffff]");
}

}  // namespace
}  // namespace dmakit
