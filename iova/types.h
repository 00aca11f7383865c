// SPDX-License-Identifier: Apache-2.0
//
// The units and address spaces of DMA memory, as types: what a device sees (Iova), what the bus
// sees (PhysAddr), lengths (Bytes, PageCount), device limits (AddressBits, AddressMask) and
// placement (NumaNode). They cost nothing at run time; every conversion is named. Plain `+` and `-`
// wrap like the integers below them, so input from outside goes through the checked forms
// (`CheckedAdd`, `AlignUp`, `Range::Make`), which return nothing instead of a wrapped value.
//
// Two shapes of a piece of address space:
//   Interval  [first, last], both inclusive, never empty. Can be all of [0, 2^64 - 1]. Apertures,
//             usable and reserved regions are intervals.
//   Range     base and size, possibly empty. May end at 2^64 - 1 (see `last()`), but its size is at
//             most 2^64 - 1, so it cannot be the whole space: `Interval::ToRange` returns nothing
//             there.
// Values only; any thread.

#ifndef DMAKIT_IOVA_TYPES_H_
#define DMAKIT_IOVA_TYPES_H_

#include <bit>
#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

namespace dmakit {

// A length in bytes.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }

  friend constexpr auto operator<=>(Bytes, Bytes) = default;
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes(a.value_ + b.value_); }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes(a.value_ - b.value_); }
  friend constexpr Bytes operator*(Bytes a, uint64_t n) { return Bytes(a.value_ * n); }
  friend constexpr Bytes operator*(uint64_t n, Bytes a) { return Bytes(a.value_ * n); }
  friend constexpr uint64_t operator/(Bytes a, Bytes b) { return a.value_ / b.value_; }
  friend constexpr Bytes operator/(Bytes a, uint64_t n) { return Bytes(a.value_ / n); }
  friend constexpr Bytes operator%(Bytes a, Bytes b) { return Bytes(a.value_ % b.value_); }
  constexpr Bytes& operator+=(Bytes b) { return *this = *this + b; }
  constexpr Bytes& operator-=(Bytes b) { return *this = *this - b; }

  template <typename H>
  friend H AbslHashValue(H h, Bytes b) {
    return H::combine(std::move(h), b.value_);
  }

 private:
  uint64_t value_ = 0;
};

constexpr Bytes KiB(uint64_t n) { return Bytes(n << 10); }
constexpr Bytes MiB(uint64_t n) { return Bytes(n << 20); }
constexpr Bytes GiB(uint64_t n) { return Bytes(n << 30); }

// An address of the space that `Tag` names. Addresses of different spaces do not mix.
template <typename Tag>
class Address {
 public:
  constexpr Address() = default;
  constexpr explicit Address(uint64_t value) : value_(value) {}
  static constexpr Address Max() { return Address(std::numeric_limits<uint64_t>::max()); }
  constexpr uint64_t value() const { return value_; }

  friend constexpr auto operator<=>(Address, Address) = default;
  friend constexpr Address operator+(Address a, Bytes n) { return Address(a.value_ + n.value()); }
  friend constexpr Address operator-(Address a, Bytes n) { return Address(a.value_ - n.value()); }
  friend constexpr Bytes operator-(Address a, Address b) { return Bytes(a.value_ - b.value_); }
  constexpr Address& operator+=(Bytes n) { return *this = *this + n; }
  constexpr Address& operator-=(Bytes n) { return *this = *this - n; }

  template <typename H>
  friend H AbslHashValue(H h, Address a) {
    return H::combine(std::move(h), a.value_);
  }

 private:
  uint64_t value_ = 0;
};

using Iova = Address<struct IovaTag>;          // as the device sees it
using PhysAddr = Address<struct PhysAddrTag>;  // as the memory bus sees it

// A number of pages; what a page is, the context says.
class PageCount {
 public:
  constexpr PageCount() = default;
  constexpr explicit PageCount(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  constexpr Bytes ToBytes(Bytes page_size) const { return page_size * value_; }

  friend constexpr auto operator<=>(PageCount, PageCount) = default;
  friend constexpr PageCount operator+(PageCount a, PageCount b) {
    return PageCount(a.value_ + b.value_);
  }
  friend constexpr PageCount operator-(PageCount a, PageCount b) {
    return PageCount(a.value_ - b.value_);
  }
  constexpr PageCount& operator+=(PageCount b) { return *this = *this + b; }
  constexpr PageCount& operator-=(PageCount b) { return *this = *this - b; }

  template <typename H>
  friend H AbslHashValue(H h, PageCount p) {
    return H::combine(std::move(h), p.value_);
  }

 private:
  uint64_t value_ = 0;
};

// A memory node, or "any".
class NumaNode {
 public:
  constexpr NumaNode() = default;  // any node
  constexpr explicit NumaNode(int id) : id_(id) {}
  static constexpr NumaNode Any() { return NumaNode(); }
  constexpr bool is_any() const { return id_ < 0; }
  constexpr int id() const { return id_; }
  friend constexpr auto operator<=>(NumaNode, NumaNode) = default;

 private:
  int id_ = -1;
};

// A mask of the address bits a device drives: 2^k - 1. Not a number of bits.
class AddressMask {
 public:
  constexpr AddressMask() = default;
  constexpr explicit AddressMask(uint64_t value) : value_(value) {}
  constexpr uint64_t value() const { return value_; }
  constexpr bool valid() const { return (value_ & (value_ + 1)) == 0 && value_ != 0; }
  constexpr Iova highest() const { return Iova(value_); }
  friend constexpr auto operator<=>(AddressMask, AddressMask) = default;

 private:
  uint64_t value_ = std::numeric_limits<uint64_t>::max();
};

// A number of address bits, 1 to 64. Not a mask.
class AddressBits {
 public:
  constexpr AddressBits() = default;
  constexpr explicit AddressBits(unsigned value) : value_(value) {}
  static constexpr std::optional<AddressBits> FromMask(AddressMask mask) {
    if (!mask.valid()) return std::nullopt;
    return AddressBits(static_cast<unsigned>(std::bit_width(mask.value())));
  }
  constexpr unsigned value() const { return value_; }
  constexpr bool valid() const { return value_ >= 1 && value_ <= 64; }
  // Needs `valid()`; more than 64 bits count as 64.
  constexpr AddressMask ToMask() const {
    return AddressMask(value_ >= 64 ? ~uint64_t{0} : (uint64_t{1} << value_) - 1);
  }
  friend constexpr auto operator<=>(AddressBits, AddressBits) = default;

 private:
  unsigned value_ = 64;
};

constexpr bool IsPowerOfTwo(Bytes n) { return std::has_single_bit(n.value()); }

// The alignment helpers need a power of two.
template <typename Tag>
constexpr bool IsAligned(Address<Tag> a, Bytes alignment) {
  return (a.value() & (alignment.value() - 1)) == 0;
}
constexpr bool IsAligned(Bytes n, Bytes alignment) {
  return (n.value() & (alignment.value() - 1)) == 0;
}
template <typename Tag>
constexpr Address<Tag> AlignDown(Address<Tag> a, Bytes alignment) {
  return Address<Tag>(a.value() & ~(alignment.value() - 1));
}
constexpr Bytes AlignDown(Bytes n, Bytes alignment) {
  return Bytes(n.value() & ~(alignment.value() - 1));
}
// Nothing when the next multiple is 2^64 or more.
template <typename Tag>
constexpr std::optional<Address<Tag>> AlignUp(Address<Tag> a, Bytes alignment) {
  const uint64_t low = alignment.value() - 1;
  if (a.value() > std::numeric_limits<uint64_t>::max() - low) return std::nullopt;
  return Address<Tag>((a.value() + low) & ~low);
}
constexpr std::optional<Bytes> AlignUp(Bytes n, Bytes alignment) {
  const uint64_t low = alignment.value() - 1;
  if (n.value() > std::numeric_limits<uint64_t>::max() - low) return std::nullopt;
  return Bytes((n.value() + low) & ~low);
}

// Nothing when the sum is 2^64 or more.
template <typename Tag>
constexpr std::optional<Address<Tag>> CheckedAdd(Address<Tag> a, Bytes n) {
  if (n.value() > std::numeric_limits<uint64_t>::max() - a.value()) return std::nullopt;
  return a + n;
}

// `size` bytes from `base`. Size 0 is the empty range: it contains and overlaps nothing. Built from
// outside input with `Make`; a literal must not wrap (base + size - 1 <= 2^64 - 1).
struct Range {
  Iova base{};
  Bytes size{};

  // Nothing when the range would go past 2^64 - 1.
  static constexpr std::optional<Range> Make(Iova base, Bytes size) {
    if (size.value() != 0 && size.value() - 1 > Iova::Max().value() - base.value()) {
      return std::nullopt;
    }
    return Range{base, size};
  }

  constexpr bool empty() const { return size.value() == 0; }
  // The last address inside. Needs a range that is not empty.
  constexpr Iova last() const { return base + (size - Bytes(1)); }
  constexpr bool Contains(Iova a) const { return a >= base && a - base < size; }
  constexpr bool Contains(const Range& r) const {
    return !r.empty() && Contains(r.base) && r.size <= size - (r.base - base);
  }
  constexpr bool Overlaps(const Range& r) const {
    return !empty() && !r.empty() && base <= r.last() && r.base <= last();
  }
  friend constexpr auto operator<=>(const Range&, const Range&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const Range& r) {
    return H::combine(std::move(h), r.base, r.size);
  }
};

// [first, last], both inside; never empty when `valid()`.
struct Interval {
  Iova first{};
  Iova last{};

  static constexpr Interval All() { return {Iova(0), Iova::Max()}; }
  // Nothing for an empty range.
  static constexpr std::optional<Interval> FromRange(const Range& r) {
    if (r.empty()) return std::nullopt;
    return Interval{r.base, r.last()};
  }
  // Nothing when invalid, and for all of [0, 2^64 - 1], whose size has no 64-bit value.
  constexpr std::optional<Range> ToRange() const {
    if (!valid() || *this == All()) return std::nullopt;
    return Range{first, (last - first) + Bytes(1)};
  }

  constexpr bool valid() const { return first <= last; }
  constexpr bool Contains(Iova a) const { return first <= a && a <= last; }
  constexpr bool Contains(const Range& r) const {
    return !r.empty() && first <= r.base && r.last() <= last;
  }
  constexpr bool Overlaps(const Interval& i) const { return first <= i.last && i.first <= last; }
  friend constexpr auto operator<=>(const Interval&, const Interval&) = default;
};

// For messages: addresses as 0x-hex, lengths as decimal bytes, pieces as "[0x1000, 0x1fff]".
std::string ToString(Iova a);
std::string ToString(PhysAddr a);
std::string ToString(Bytes n);
std::string ToString(const Range& r);
std::string ToString(const Interval& i);

}  // namespace dmakit

#endif  // DMAKIT_IOVA_TYPES_H_
