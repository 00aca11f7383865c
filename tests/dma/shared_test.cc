// SPDX-License-Identifier: Apache-2.0
//
// Shared<T>: byte order, layout, and whole accesses.
#include "dma/shared.h"

#include <array>
#include <cstring>
#include <thread>
#include <type_traits>

#include "tests/catch.h"

namespace dmakit::dma {
namespace {

template <typename S>
auto BytesOf(const S& word) {
  std::array<unsigned char, sizeof(S)> bytes;
  std::memcpy(bytes.data(), static_cast<const void*>(&word), sizeof(S));
  return bytes;
}

template <typename S>
void SetBytes(S& word, const std::array<unsigned char, sizeof(S)>& bytes) {
  std::memcpy(static_cast<void*>(&word), bytes.data(), sizeof(S));
}

// A descriptor is a struct of them, laid out as the device reads it.
struct Descriptor {
  SharedLe64 address;
  SharedLe16 length;
  SharedU8 flags;
  SharedU8 owner;
  SharedBe32 cookie;
};
static_assert(sizeof(Descriptor) == 16);
static_assert(offsetof(Descriptor, length) == 8 && offsetof(Descriptor, owner) == 11);
static_assert(offsetof(Descriptor, cookie) == 12);
static_assert(std::is_standard_layout_v<Descriptor>);

template <typename S, typename T>
constexpr bool kSameShape = sizeof(S) == sizeof(T) && alignof(S) == alignof(T);
static_assert(kSameShape<SharedU8, uint8_t> && kSameShape<SharedLe16, uint16_t>);
static_assert(kSameShape<SharedLe32, uint32_t> && kSameShape<SharedLe64, uint64_t>);
static_assert(kSameShape<SharedBe64, uint64_t>);
static_assert(!std::is_copy_constructible_v<SharedLe32> && !std::is_copy_assignable_v<SharedLe32>);

TEST_CASE("shared word: little-endian devices") {
  SharedLe16 a;
  a.Store(0x1122);
  CHECK(BytesOf(a) == std::array<unsigned char, 2>{0x22, 0x11});
  SharedLe32 b;
  b.StoreRelease(0x11223344);
  CHECK(BytesOf(b) == std::array<unsigned char, 4>{0x44, 0x33, 0x22, 0x11});
  SharedLe64 c;
  SetBytes(c, {1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(c.Load() == 0x0807060504030201);
  CHECK(c.LoadAcquire() == 0x0807060504030201);
  SharedU8 d;
  d.Store(0xa5);
  CHECK(d.Load() == 0xa5);
}

TEST_CASE("shared word: big-endian devices") {
  SharedBe16 a;
  a.StoreRelease(0x1122);
  CHECK(BytesOf(a) == std::array<unsigned char, 2>{0x11, 0x22});
  SharedBe32 b;
  b.Store(0x80223344);
  CHECK(BytesOf(b) == std::array<unsigned char, 4>{0x80, 0x22, 0x33, 0x44});
  SharedBe64 c;
  SetBytes(c, {0xff, 2, 3, 4, 5, 6, 7, 8});
  CHECK(c.Load() == 0xff02030405060708);
  CHECK(c.LoadAcquire() == 0xff02030405060708);
  c.Store(c.Load());
  CHECK(BytesOf(c) == std::array<unsigned char, 8>{0xff, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("shared word: byte swap of every width") {
  CHECK(internal::SwapBytes<uint8_t>(0x12) == 0x12);
  CHECK(internal::SwapBytes<uint16_t>(0x1234) == 0x3412);
  CHECK(internal::SwapBytes<uint32_t>(0x12345678) == 0x78563412);
  CHECK(internal::SwapBytes<uint64_t>(0x0123456789abcdef) == 0xefcdab8967452301);
}

// The other side flips between two values; a load that is torn or done twice would mix them.
TEST_CASE("shared word: a load is one access of the whole word") {
  SharedBe64 word;
  constexpr uint64_t kA = 0x0123456789abcdef;
  constexpr uint64_t kB = ~kA;
  word.Store(kA);
  uint64_t mixed = 0;
  {
    const std::jthread other([&word](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        word.Store(kB);
        word.StoreRelease(kA);
      }
    });
    for (int i = 0; i < 100000; ++i) {
      const uint64_t relaxed = word.Load();
      const uint64_t acquired = word.LoadAcquire();
      mixed += (relaxed != kA && relaxed != kB) || (acquired != kA && acquired != kB) ? 1 : 0;
    }
  }
  CHECK(mixed == 0);
}

TEST_CASE("shared word: what was stored before the release is seen after the acquire") {
  Descriptor d;
  d.owner.Store(0);
  uint64_t wrong = 0;
  {
    const std::jthread device([&d] {
      for (uint32_t i = 1; i <= 2000; ++i) {
        while (d.owner.LoadAcquire() != 0) std::this_thread::yield();
        d.address.Store(i);
        d.cookie.Store(~i);
        d.owner.StoreRelease(1);
      }
    });
    for (uint32_t i = 1; i <= 2000; ++i) {
      while (d.owner.LoadAcquire() != 1) std::this_thread::yield();
      wrong += d.address.Load() == i && d.cookie.Load() == ~i ? 0 : 1;
      d.owner.StoreRelease(0);
    }
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace dmakit::dma
