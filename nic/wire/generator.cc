// SPDX-License-Identifier: Apache-2.0

#include "nic/wire/generator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nic/wire/spec.h"

namespace dmakit::nic {
namespace {

constexpr size_t kIp = 14;
constexpr size_t kUdp = kIp + 20;
constexpr size_t kSequence = kUdp + 8;
constexpr size_t kPattern = kSequence + 8;
static_assert(kPattern <= Generator::kMinSize);

void Put16(std::byte* at, uint32_t value) {
  at[0] = std::byte(value >> 8);
  at[1] = std::byte(value);
}

void Put32(std::byte* at, uint32_t value) {
  Put16(at, value >> 16);
  Put16(at + 2, value & 0xffff);
}

// Adds up `bytes` as big-endian 16-bit words, modulo 0xffff, onto `sum`. The carry goes round, so
// wider words in the machine's own order may be added first and swapped at the end.
uint64_t Sum(std::span<const std::byte> bytes, uint64_t sum = 0) {
  uint64_t words = 0;
  uint32_t word = 0;
  size_t i = 0;
  for (; i + sizeof(word) <= bytes.size(); i += sizeof(word)) {
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    words += word;
  }
  word = 0;
  if (i < bytes.size()) std::memcpy(&word, bytes.data() + i, bytes.size() - i);
  words += word;
  while (words >> 16 != 0) words = (words & 0xffff) + (words >> 16);
  if constexpr (std::endian::native == std::endian::little) {
    words = (words >> 8) | ((words & 0xff) << 8);
  }
  return sum + words;
}

uint32_t Checksum(uint64_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return ~static_cast<uint32_t>(sum) & 0xffff;
}

// A fixed, well-mixed function of n (the finaliser of a 64-bit hash): the "random" of a generator
// that makes the same frames in every run.
uint64_t Mix(uint64_t n) {
  n += 0x9e3779b97f4a7c15;
  n = (n ^ (n >> 30)) * 0xbf58476d1ce4e5b9;
  n = (n ^ (n >> 27)) * 0x94d049bb133111eb;
  return n ^ (n >> 31);
}

absl::Status ParseSize(std::string_view text, Generator::Options& options) {
  const size_t dash = text.find('-');
  const auto low =
      ParseNumber("wire gen: size", text.substr(0, dash), Generator::kMinSize, Generator::kMaxSize);
  if (!low.ok()) return low.status();
  options.size = options.max_size = static_cast<uint32_t>(*low);
  if (dash == std::string_view::npos) return absl::OkStatus();
  const auto high =
      ParseNumber("wire gen: end of size range", text.substr(dash + 1), *low, Generator::kMaxSize);
  if (!high.ok()) return high.status();
  options.max_size = static_cast<uint32_t>(*high);
  return absl::OkStatus();
}

absl::Status ParsePattern(std::string_view text, Generator::Options& options) {
  using Pattern = Generator::Pattern;
  static constexpr std::array<std::pair<std::string_view, Pattern>, 4> kPatterns = {{
      {"counter", Pattern::kCounter},
      {"zeros", Pattern::kZeros},
      {"ones", Pattern::kOnes},
      {"random", Pattern::kRandom},
  }};
  for (const auto& [name, pattern] : kPatterns) {
    if (name != text) continue;
    options.pattern = pattern;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("wire gen: pattern ", Quote(text), " must be counter, zeros, ones or random"));
}

absl::Status ParseKey(const std::string& key, std::string_view value, Generator::Options& options) {
  if (key == "size") return ParseSize(value, options);
  if (key == "pattern") return ParsePattern(value, options);
  if (key == "count") {
    const auto count = ParseNumber("wire gen: count", value, 1, Generator::kEndless - 1);
    if (count.ok()) options.count = *count;
    return count.status();
  }
  if (key == "flows") {
    const auto flows = ParseNumber("wire gen: flows", value, 1, Generator::kMaxFlows);
    if (flows.ok()) options.flows = static_cast<uint32_t>(*flows);
    return flows.status();
  }
  return absl::InvalidArgumentError(absl::StrCat("wire gen: unknown key ", Quote(key),
                                                 "; the keys are size, count, flows, pattern"));
}

}  // namespace

absl::StatusOr<Generator::Options> Generator::Parse(std::string_view text) {
  auto keys = ParseKeys("wire gen", text);
  if (!keys.ok()) return keys.status();
  Options options;
  for (const auto& [key, value] : *keys) {
    if (absl::Status s = ParseKey(key, value, options); !s.ok()) return s;
  }
  return options;
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const Options& options) {
  if (options.size < kMinSize || options.max_size < options.size || options.max_size > kMaxSize) {
    return absl::InvalidArgumentError(absl::StrCat("wire gen: sizes ", options.size, "-",
                                                   options.max_size, " must ascend within ",
                                                   kMinSize, "-", kMaxSize));
  }
  if (options.flows == 0 || options.flows > kMaxFlows) {
    return absl::InvalidArgumentError(
        absl::StrCat("wire gen: flows ", options.flows, " must be a number from 1 to ", kMaxFlows));
  }
  return std::unique_ptr<Generator>(new Generator(options));
}

Generator::Generator(const Options& options) : options_(options), frame_(options.max_size) {
  switch (options.pattern) {
    case Pattern::kCounter:
      for (size_t i = kPattern; i < frame_.size(); ++i) frame_[i] = std::byte(i - kPattern);
      break;
    case Pattern::kOnes:
      std::fill(frame_.begin(), frame_.end(), std::byte{0xff});
      break;
    case Pattern::kZeros:
    case Pattern::kRandom:  // made anew for every frame
      break;
  }
}

std::optional<std::span<const std::byte>> Generator::Peek() {
  if (exhausted()) return std::nullopt;
  if (size_ == 0) Build(sent_.load(std::memory_order_relaxed));
  return std::span<const std::byte>(frame_).first(size_);
}

void Generator::Pop() {
  if (size_ == 0) return;
  counters_.ToNic(size_);
  size_ = 0;
  sent_.store(sent_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Generator::Accept(std::span<const std::byte> frame) {
  counters_.FromNic(frame.size());
  counters_.Lost(1, frame.size());
}

uint32_t Generator::SizeOf(uint64_t n) const {
  const uint64_t sizes = options_.max_size - options_.size + 1;
  return options_.size + static_cast<uint32_t>(sizes == 1 ? 0 : Mix(n) % sizes);
}

void Generator::Build(uint64_t n) {
  size_ = SizeOf(n);
  const uint32_t flow = static_cast<uint32_t>(n % options_.flows);
  std::byte* const f = frame_.data();

  Put16(f, 0x0200);  // locally administered addresses
  Put32(f + 2, 2);
  Put16(f + 6, 0x0200);
  Put32(f + 8, 1);
  Put16(f + 12, 0x0800);

  std::byte* const ip = f + kIp;
  Put16(ip, 0x4500);
  Put16(ip + 2, size_ - kIp);
  Put16(ip + 4, n & 0xffff);
  Put16(ip + 6, 0x4000);  // do not fragment
  Put16(ip + 8, 0x4011);  // TTL 64, UDP
  Put16(ip + 10, 0);
  Put32(ip + 12, (198u << 24) + (18u << 16) + flow);
  Put32(ip + 16, (198u << 24) + (19u << 16) + flow);
  Put16(ip + 10, Checksum(Sum({ip, 20})));

  std::byte* const udp = f + kUdp;
  Put16(udp, 1024 + flow % 64000);
  Put16(udp + 2, 9);  // discard
  Put16(udp + 4, size_ - kUdp);
  Put16(udp + 6, 0);
  Put32(f + kSequence, static_cast<uint32_t>(n >> 32));
  Put32(f + kSequence + 4, static_cast<uint32_t>(n));
  if (options_.pattern == Pattern::kRandom) {
    for (size_t i = kPattern; i < size_; i += 8) {
      const uint64_t word = Mix(n * kMaxSize + i);
      for (size_t b = 0; b < 8 && i + b < size_; ++b) f[i + b] = std::byte(word >> (8 * b));
    }
  }
  // The pseudo header: addresses, protocol, UDP length.
  const uint64_t pseudo = Sum({ip + 12, 8}, 17 + uint64_t{size_ - kUdp});
  const uint32_t checksum = Checksum(Sum({udp, size_ - kUdp}, pseudo));
  Put16(udp + 6, checksum == 0 ? 0xffff : checksum);  // 0 would say that there is none
}

}  // namespace dmakit::nic
